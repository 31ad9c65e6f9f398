// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"
)

// returningTransport is an API server that does not run until it is back. It has no
// objects.
type returningTransport struct {
	back     atomic.Bool
	requests atomic.Int32
}

func (t *returningTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	t.requests.Add(1)
	if !t.back.Load() {
		return nil, syscall.ECONNREFUSED
	}
	const event = `{"type":"BOOKMARK","object":{"kind":%q,"apiVersion":%q,"metadata":{"resourceVersion":"1","annotations":{"k8s.io/initial-events-end":"true"}}}}`
	kind := map[string][2]string{
		kindServices: {"Service", "v1"}, kindNodes: {"Node", "v1"},
		kindSlices: {"EndpointSlice", "discovery.k8s.io/v1"}, kindCIDRs: {"ServiceCIDR", "networking.k8s.io/v1"},
	}[path.Base(r.URL.Path)]
	body, w := io.Pipe()
	go func() {
		_, _ = fmt.Fprintf(w, event, kind[0], kind[1]) // the reader may have gone
		<-r.Context().Done()
		_ = w.CloseWithError(io.EOF)
	}()
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Request: r, Body: body}, nil
}

// After an outage, all kinds are read soon after the first one, although each has pauses of
// its own. In a long outage they are spread, because all nodes return together. And the
// API server gets no more requests than from client-go's pauses.
func TestKindsReturnTogether(t *testing.T) {
	for _, outage := range []time.Duration{2 * time.Second, 10 * time.Minute, 613 * time.Second, time.Hour} {
		t.Run(outage.String(), func(t *testing.T) { bubble(t, func(t *testing.T) { testReturn(t, outage) }) })
	}
}

func testReturn(t *testing.T, outage time.Duration) {
	ctx, stop := context.WithCancel(t.Context())
	server := &returningTransport{}
	var mu sync.Mutex
	read := map[string]time.Time{}
	a := &APIServer{
		Config: &rest.Config{Host: "https://192.0.2.1", Transport: server, QPS: -1}, NodeName: "a",
		Contact: func(kind string) {
			mu.Lock()
			defer mu.Unlock()
			if read[kind].IsZero() {
				read[kind] = time.Now()
			}
		},
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = a.Run(ctx, discard{})
	}()
	time.Sleep(outage)
	asked, back := server.requests.Load(), time.Now()
	server.back.Store(true)
	time.Sleep(3 * lastInterval)
	synctest.Wait()
	stop()
	<-ended
	var first, last time.Time
	for _, at := range read {
		if first.IsZero() || at.Before(first) {
			first = at
		}
		if at.After(last) {
			last = at
		}
	}
	t.Logf("first %s, last %s after the return; %d requests in %s", first.Sub(back), last.Sub(back), asked, outage)
	spread, within := last.Sub(first), min(outage/10, lastSpread)+2*time.Second
	if len(read) != 4 || spread > within {
		t.Errorf("after the return, kinds were read after %s to %s: %v; want all four, within %s", first.Sub(back), last.Sub(back), read, within)
	}
	if outage > time.Minute && spread < 100*time.Millisecond {
		t.Errorf("all kinds were read within %s, want them spread", spread)
	}
	if perMinute := float64(asked) / outage.Minutes(); outage > time.Minute && perMinute > 10 {
		t.Errorf("%.1f requests a minute during the outage, want some 6", perMinute)
	}
}

// A kind that can be read again shortens the waits of others, but not below what the API
// server asked for.
func TestEarlyEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, start := newPacer(), time.Now()
		p.wait(t.Context(), "busy")
		p.failed("other")
		for range 8 { // its interval is the longest now
			p.failed("busy")
			p.failing["busy"].Step()
		}
		p.bar("busy", 20*time.Second)
		go func() {
			time.Sleep(5 * time.Second)
			p.read("other")
		}()
		p.wait(t.Context(), "busy")
		if took := time.Since(start); took < 20*time.Second || took > 30*time.Second {
			t.Errorf("waited %s, want 20 to 30 s", took)
		}
	})
}

// discard is a Sink that keeps nothing.
type discard struct{ Sink }

func (discard) Synced() {}
