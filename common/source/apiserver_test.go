// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
)

// bubble runs test in a synctest bubble. After an error the library sleeps if less than a
// millisecond has passed since the last one, in any bubble. A bubble starts in the year
// 2000, so the last error of another bubble, or the start of the process, can be years
// ahead, and the sleep takes as long.
func bubble(t *testing.T, test func(*testing.T)) {
	t.Helper()
	pause := utilruntime.ErrorHandlers
	utilruntime.ErrorHandlers = nil
	defer func() { utilruntime.ErrorHandlers = pause }()
	synctest.Test(t, test)
}

// refusingTransport is an API server that does not run.
type refusingTransport struct{}

func (refusingTransport) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, syscall.ECONNREFUSED
}

// A stop takes effect at once, even after a long outage with long pauses.
func TestStopInOutage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		a := &APIServer{Config: &rest.Config{Host: "https://192.0.2.1", Transport: refusingTransport{}, QPS: -1}, NodeName: "a"}
		var err error
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			err = a.Run(ctx, nil)
		}()
		time.Sleep(10*time.Minute + time.Millisecond)
		stop()
		begin := time.Now()
		<-ended
		if took := time.Since(begin); took > 0 || err != nil {
			t.Errorf("Run ended after %s with %v, want at once without error", took, err)
		}
	})
}

// forbiddingTransport forbids ServiceCIDRs and fails for all other kinds.
type forbiddingTransport struct{ requests atomic.Int32 }

func (f *forbiddingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if !strings.HasSuffix(r.URL.Path, "/"+kindCIDRs) {
		return nil, syscall.ECONNREFUSED
	}
	f.requests.Add(1)
	const text = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`
	return &http.Response{
		StatusCode: http.StatusForbidden, Header: http.Header{"Content-Type": {"application/json"}}, Request: r,
		Body: io.NopCloser(strings.NewReader(text)),
	}, nil
}

// An API server that has just started forbids what it will soon permit. So a forbidden
// request is retried within seconds, and then less and less often.
func TestForbiddenIsRetried(t *testing.T) {
	bubble(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		g := &forbiddingTransport{}
		a := &APIServer{Config: &rest.Config{Host: "https://192.0.2.1", Transport: g, QPS: -1}, NodeName: "a"}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = a.Run(ctx, nil)
		}()
		time.Sleep(time.Minute)
		synctest.Wait()
		first := g.requests.Load()
		time.Sleep(23 * time.Hour)
		synctest.Wait()
		later := g.requests.Load() - first
		stop()
		<-ended
		if first < 3 || first > 8 || later > 160 {
			t.Errorf("asked %d times in the first minute and %d times in the rest of a day, want 3 to 8, and one in ten minutes", first, later)
		}
	})
}

// cannedTransport answers every request with one text.
type cannedTransport string

func (c cannedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Request: r,
		Body: io.NopCloser(strings.NewReader(string(c))),
	}, nil
}

// Lists of another kind are a failure. They neither end the process nor delete objects.
func TestForeignLists(t *testing.T) {
	for name, text := range map[string]string{
		"other kind":         `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"a"}}]}`,
		"other kind, empty":  `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}`,
		"one object":         `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","resourceVersion":"1"}}`,
		"no kind":            `{}`,
		"for people to read": `<html></html>`,
	} {
		t.Run(name, func(t *testing.T) { bubble(t, func(t *testing.T) { testForeignList(t, text) }) })
	}
}

func testForeignList(t *testing.T, text string) {
	ctx, stop := context.WithCancel(t.Context())
	var failed sync.Map
	a := &APIServer{
		Config: &rest.Config{Host: "https://192.0.2.1", Transport: cannedTransport(text), QPS: -1}, NodeName: "a",
		Report:  func(err error) { failed.Store(err.Error(), true) },
		Contact: func(kind string) { t.Errorf("%s counts as read", kind) },
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = a.Run(ctx, nil)
	}()
	time.Sleep(time.Minute)
	stop()
	<-ended
	seen := 0
	failed.Range(func(_, _ any) bool {
		seen++
		return true
	})
	if seen < 4 { // at least one for each kind
		t.Errorf("%d different failures were reported", seen)
	}
}
