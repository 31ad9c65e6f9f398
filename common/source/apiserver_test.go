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
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"

	"kubeproxy/test/kit"
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
		took := time.Since(begin)
		kit.Check(t, took <= 0 && err == nil, "Run ended after %s with %v, want at once without error", took, err)
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

func named(name string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
}

// TestFeed calls a feed like a reflector calls its store.
func TestFeed(t *testing.T) {
	var calls, alive []string
	f := &feed{
		kind: kindServices, known: map[types.NamespacedName]bool{}, listed: make(chan struct{}), pace: newPacer(),
		set:     func(o any) { calls = append(calls, "set "+o.(*corev1.Service).Name) },
		remove:  func(n types.NamespacedName) { calls = append(calls, "gone "+n.String()) },
		contact: func(kind string) { alive = append(alive, kind) },
	}
	steps := []struct {
		do   func() error
		want []string
	}{
		{func() error { return f.Replace([]any{named("a"), named("b")}, "1") }, []string{"set a", "set b"}},
		{func() error { return f.Add(named("c")) }, []string{"set c"}},
		{func() error { return f.Update(named("a")) }, []string{"set a"}},
		{func() error { return f.Delete(named("b")) }, []string{"gone shop/b"}},
		{func() error { return f.Replace([]any{named("d"), named("c")}, "9") }, []string{"set d", "set c", "gone shop/a"}},
		{func() error { return f.Replace(nil, "10") }, []string{"gone shop/c", "gone shop/d"}},
		{f.Resync, nil},
	}
	for i, s := range steps {
		calls = nil
		select {
		case <-f.listed:
			kit.Check(t, i != 0, "listed before the first list")
		default:
			kit.Check(t, i <= 0, "step %d: not listed after the first list", i)
		}
		err := s.do()
		kit.Need(t, err == nil, "step %d: %v", i, err)
		if i == 5 { // in random order
			calls = sorted(calls)
		}
		kit.Same(t, fmt.Sprintf("step %d (-want +got)", i), s.want, calls)
	}
	err := f.Bookmark("11")
	kit.Check(t, err == nil, "%v", err)
	if len(alive) != len(steps) { // each step except Resync, and the bookmark
		t.Errorf("%d signs of life, want %d", len(alive), len(steps))
	}
	err = f.Add("no object")
	kit.Check(t, err != nil, "Add of no object = nil")
	err = f.Delete("no object")
	kit.Check(t, err != nil, "Delete of no object = nil")
}

func sorted(s []string) []string {
	slices.Sort(s)
	return s
}

// Existing objects are delivered while they are collected. Objects that are missing from
// the complete list, because they were deleted during an outage, are deleted at the end.
func TestFeedCollects(t *testing.T) {
	var calls []string
	f := &feed{
		kind: kindServices, known: map[types.NamespacedName]bool{}, listed: make(chan struct{}), pace: newPacer(),
		set:    func(o any) { calls = append(calls, "set "+o.(*corev1.Service).Name) },
		remove: func(n types.NamespacedName) { calls = append(calls, "gone "+n.Name) },
	}
	kit.Must(t, f.Replace([]any{named("old")}, "1"))
	var collected []any
	for _, name := range []string{"a", "b", "c"} {
		kept, err := f.Transformer()(named(name))
		kit.Must(t, err)
		_, isObject := kept.(*corev1.Service)
		kit.Check(t, !isObject, "all of %s is kept", name)
		if name != "b" { // which was deleted meanwhile
			collected = append(collected, kept)
		}
	}
	kit.Must(t, f.Replace(collected, "2"))
	want := []string{"gone b", "gone old", "set a", "set b", "set c", "set old"}
	kit.Same(t, "(-want +got)", want, sorted(calls))
	kit.Check(t, len(f.known) == 2, "known = %v, want a and c", f.known)
}

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
	kit.Check(t, outage <= time.Minute || spread >= 100*time.Millisecond,
		"all kinds were read within %s, want them spread", spread)
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
		took := time.Since(start)
		kit.Check(t, took >= 20*time.Second && took <= 30*time.Second, "waited %s, want 20 to 30 s", took)
	})
}

// discard is a Sink that keeps nothing.
type discard struct{ Sink }

func (discard) Synced() {}

// selecting records the label selectors of requests for Services.
type selecting struct{ labels chan string }

func (s selecting) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasSuffix(r.URL.Path, "/services") {
		select {
		case s.labels <- r.URL.Query().Get("labelSelector"):
		default:
		}
	}
	return nil, syscall.ECONNREFUSED
}

// TestServicesOfThisProxy checks that no other Services are requested.
func TestServicesOfThisProxy(t *testing.T) {
	for name, want := range map[string]string{
		"":     "!service.kubernetes.io/service-proxy-name",
		"mesh": "service.kubernetes.io/service-proxy-name=mesh",
	} {
		bubble(t, func(t *testing.T) {
			ctx, stop := context.WithTimeout(t.Context(), time.Second)
			defer stop()
			s := selecting{make(chan string, 1)}
			a := &APIServer{Config: &rest.Config{Host: "https://192.0.2.1", Transport: s, QPS: -1}, NodeName: "a", ProxyName: name}
			kit.Must(t, a.Run(ctx, nil))
			got := <-s.labels
			kit.Check(t, got == want, "proxy %q asks for %q, want %q", name, got, want)
		})
	}
}

// TestAnotherServer moves from one API server to another one, whose versions are older or newer. What it lacks
// is deleted once it is known. Before, a server that refuses changes nothing.
func TestAnotherServer(t *testing.T) {
	for _, streams := range []bool{true, false} {
		for _, revision := range []int{10, 1000} {
			t.Run(fmt.Sprintf("streams %t, revision %d", streams, revision), func(t *testing.T) {
				bubble(t, func(t *testing.T) { testAnotherServer(t, streams, revision) })
			})
		}
	}
}

func testAnotherServer(t *testing.T, streams bool, revision int) {
	first, second := newFakeAPI(100), newFakeAPI(revision)
	first.streams, second.streams = streams, streams
	for s, names := range map[*fakeAPI][]string{first: {"gone", "kept"}, second: {"kept", "new"}} {
		for _, name := range names {
			s.set(kindServices, name, map[string]any{"spec": map[string]any{"clusterIP": "10.96.0.1"}})
		}
	}
	to := &rest.Config{Host: "https://192.0.2.2", Transport: second, QPS: -1}
	second.refuse = func(*http.Request) *http.Response {
		return statusAnswer(http.StatusUnauthorized, `"reason":"Unauthorized"`)
	}
	a, r := &APIServer{}, &recorder{open: true}
	first.follow(t, a, r, func() {
		r.take()
		err := a.Use(t.Context(), to)
		kit.Check(t, err != nil && strings.Contains(err.Error(), "services"), "a server that refuses is used: %v", err)
		first.set(kindServices, "kept", map[string]any{"spec": map[string]any{"clusterIP": "10.96.0.2"}})
		synctest.Wait()
		if calls, _ := r.take(); !slices.Equal(calls, []string{"set service d/kept 10.96.0.2"}) {
			t.Errorf("with a server that refuses, the Sink got %q", calls)
		}

		second.refuse = nil
		kit.Must(t, a.Use(t.Context(), to))
		pass(2*maxRelistPause + time.Second)
		calls, _ := r.take()
		kit.Same(t, "after the move (-want +got)", []string{"delete service d/gone", "set service d/kept 10.96.0.1", "set service d/new 10.96.0.1"}, sorted(calls))
		kit.Check(t, len(first.watches) == 0 && len(second.watches) == len(apiKinds),
			"%d watches of the server before, %d of the other one", len(first.watches), len(second.watches))
		second.set(kindServices, "new", map[string]any{"spec": map[string]any{"clusterIP": "10.96.0.3"}})
		synctest.Wait()
		if calls, _ := r.take(); !slices.Equal(calls, []string{"set service d/new 10.96.0.3"}) {
			t.Errorf("later, the Sink got %q", calls)
		}
	})
}

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
		err := a.Run(ctx, to)
		kit.Check(t, err == nil, "%v", err)
	}()
	synctest.Wait()
	test()
	stop()
	<-ended
	synctest.Wait()
}
