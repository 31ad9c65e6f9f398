// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"
)

// apiKinds are the kinds that fakeAPI has, with their API versions.
var apiKinds = map[string][2]string{
	kindServices: {"Service", "v1"}, kindNodes: {"Node", "v1"},
	kindSlices: {"EndpointSlice", "discovery.k8s.io/v1"}, kindCIDRs: {"ServiceCIDR", "networking.k8s.io/v1"},
}

// fakeAPI is an API server with a watch cache. Like the real one, it grants a watch from
// a version that it has not reached, and sends nothing until it does; refuses a list at
// such a version; and sends a bookmark a minute, but none that is older than the watch.
type fakeAPI struct {
	streams bool // existing objects can be watched, as in new versions
	mute    bool // no bookmarks are sent
	// refuse, if set, may answer a request in place of the server.
	refuse func(r *http.Request) *http.Response

	mu       sync.Mutex
	revision int
	objects  map[string]map[string]map[string]any // by kind and name
	watches  map[*fakeWatch]bool
	requests []apiRequest
}

type apiRequest struct {
	at                  time.Time
	kind, verb, version string
}

type fakeWatch struct {
	kind   string
	from   int
	events chan map[string]any
	broken chan struct{}
}

func newFakeAPI(revision int) *fakeAPI {
	s := &fakeAPI{revision: revision, objects: map[string]map[string]map[string]any{}, watches: map[*fakeWatch]bool{}}
	for kind := range apiKinds {
		s.objects[kind] = map[string]map[string]any{}
	}
	return s
}

// set creates or changes an object. Its note makes it differ.
func (f *fakeAPI) set(kind, name string, more map[string]any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	verb := "ADDED"
	if f.objects[kind][name] != nil {
		verb = "MODIFIED"
	}
	f.revision++
	meta := map[string]any{"name": name, "resourceVersion": strconv.Itoa(f.revision)}
	if kind == kindServices || kind == kindSlices {
		meta["namespace"] = "d"
	}
	o := map[string]any{"kind": apiKinds[kind][0], "apiVersion": apiKinds[kind][1], "metadata": meta}
	for k, v := range more {
		o[k] = v
	}
	f.objects[kind][name] = o
	f.send(kind, verb, o)
}

func (f *fakeAPI) remove(kind, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	o := f.objects[kind][name]
	delete(f.objects[kind], name)
	f.revision++
	o["metadata"].(map[string]any)["resourceVersion"] = strconv.Itoa(f.revision)
	f.send(kind, "DELETED", o)
}

// send sends an event to the watches that it is new to. The lock is held.
func (f *fakeAPI) send(kind, verb string, o map[string]any) {
	for w := range f.watches {
		if w.kind == kind && f.revision > w.from {
			w.events <- map[string]any{"type": verb, "object": o}
		}
	}
}

// restore sets the revision back. All connections break.
func (f *fakeAPI) restore(revision int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.revision = revision
	for w := range f.watches {
		close(w.broken)
	}
	clear(f.watches)
}

func (f *fakeAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	kind, q := path.Base(r.URL.Path), r.URL.Query()
	version := q.Get("resourceVersion")
	from, _ := strconv.Atoi(version) // empty is 0
	verb := "list"
	if q.Get("watch") != "" {
		verb = "watch"
	}
	if q.Get("limit") == "1" {
		verb = "probe"
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests = append(f.requests, apiRequest{time.Now(), kind, verb, version})
	if f.refuse != nil {
		if answer := f.refuse(r); answer != nil {
			answer.Request = r
			return answer, nil
		}
	}
	initial := q.Get("sendInitialEvents") == "true"
	switch {
	case verb == "watch" && initial && !f.streams:
		return statusAnswer(http.StatusUnprocessableEntity, `"reason":"Invalid"`), nil
	case verb == "watch":
		return f.watch(r, kind, from, initial), nil
	case from > f.revision:
		return statusAnswer(http.StatusGatewayTimeout, `"reason":"Timeout","details":{"retryAfterSeconds":1,"causes":[{"reason":"ResourceVersionTooLarge"}]}`), nil
	}
	items := []any{}
	for _, o := range f.objects[kind] {
		items = append(items, o)
	}
	text, _ := json.Marshal(map[string]any{
		"kind": apiKinds[kind][0] + "List", "apiVersion": apiKinds[kind][1],
		"metadata": map[string]any{"resourceVersion": strconv.Itoa(f.revision)}, "items": items,
	})
	return answer(http.StatusOK, io.NopCloser(strings.NewReader(string(text)))), nil
}

// watch answers a watch. The lock is held.
func (f *fakeAPI) watch(r *http.Request, kind string, from int, initial bool) *http.Response {
	w := &fakeWatch{kind: kind, from: from, events: make(chan map[string]any, 100), broken: make(chan struct{})}
	if initial {
		for _, o := range f.objects[kind] {
			w.events <- map[string]any{"type": "ADDED", "object": o}
		}
		w.events <- f.bookmark(kind, map[string]any{"k8s.io/initial-events-end": "true"})
	}
	f.watches[w] = true
	body, out := io.Pipe()
	seconds, _ := strconv.Atoi(r.URL.Query().Get("timeoutSeconds"))
	go func() {
		over, minute := time.After(time.Duration(seconds)*time.Second), time.NewTicker(time.Minute)
		defer minute.Stop()
		defer func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			delete(f.watches, w)
		}()
		for {
			var e map[string]any
			select {
			case <-r.Context().Done():
				_ = out.CloseWithError(r.Context().Err())
				return
			case <-w.broken:
				_ = out.CloseWithError(io.ErrUnexpectedEOF)
				return
			case <-over:
				_ = out.Close()
				return
			case e = <-w.events:
			case <-minute.C:
				f.mu.Lock()
				if f.revision >= from && !f.mute {
					e = f.bookmark(kind, nil)
				}
				f.mu.Unlock()
			}
			if e != nil {
				text, _ := json.Marshal(e)
				_, _ = out.Write(text) // the reader may have gone
			}
		}
	}()
	return answer(http.StatusOK, body)
}

func (f *fakeAPI) bookmark(kind string, annotations map[string]any) map[string]any {
	return map[string]any{"type": "BOOKMARK", "object": map[string]any{
		"kind": apiKinds[kind][0], "apiVersion": apiKinds[kind][1],
		"metadata": map[string]any{"resourceVersion": strconv.Itoa(f.revision), "annotations": annotations},
	}}
}

// goBack sets the revision back. Connections stay.
func (f *fakeAPI) goBack(revision int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.revision = revision
}

// asked returns the requests for a kind.
func (f *fakeAPI) asked(kind string) []apiRequest {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(f.requests), func(r apiRequest) bool { return r.kind != kind })
}

func answer(code int, body io.ReadCloser) *http.Response {
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: body}
}

// statusAnswer is a refusal.
func statusAnswer(code int, more string) *http.Response {
	text := fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d,%s}`, code, more)
	return answer(code, io.NopCloser(strings.NewReader(text)))
}

// pass lets time pass in a bubble, and all that is due happen.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// follow runs a, which reads f, with to as Sink in a bubble while test runs.
func (f *fakeAPI) follow(t *testing.T, a *APIServer, to Sink, test func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	a.Config, a.NodeName = &rest.Config{Host: "https://192.0.2.1", Transport: f, QPS: -1}, "a"
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := a.Run(ctx, to); err != nil {
			t.Error(err)
		}
	}()
	synctest.Wait()
	test()
	stop()
	<-ended
	synctest.Wait()
}
