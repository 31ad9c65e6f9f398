// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"kubeproxy/test/kit"
)

// Each change of each kind reaches the Sink, alone.
func TestEachChangeIsDelivered(t *testing.T) {
	for _, streams := range []bool{true, false} {
		t.Run(fmt.Sprint("streams ", streams), func(t *testing.T) {
			bubble(t, func(t *testing.T) { testEachChange(t, streams) })
		})
	}
}

func testEachChange(t *testing.T, streams bool) {
	s := newFakeAPI(100)
	s.streams = streams
	r := &recorder{open: true}
	slice := map[string]any{"addressType": "IPv4", "endpoints": []any{map[string]any{"addresses": []any{"10.0.0.1"}}}}
	service := map[string]any{"spec": map[string]any{"clusterIP": "10.96.0.1"}}
	cidr := map[string]any{"spec": map[string]any{"cidrs": []any{"10.96.0.0/16"}}}
	s.set(kindServices, "old", service)
	s.set(kindSlices, "old", slice)
	s.set(kindCIDRs, "old", cidr)
	s.follow(t, &APIServer{}, r, func() {
		calls, _ := r.take()
		kit.Same(t, "at the start (-want +got)", []string{"set range old [10.96.0.0/16]", "set service d/old 10.96.0.1", "set slice d/old of  [10.0.0.1]", "synced"}, sorted(calls))
		for _, c := range []struct {
			kind, name string
			set        map[string]any // nil means removed
			want       string
		}{
			{kindServices, "new", service, "set service d/new 10.96.0.1"},
			{kindServices, "new", map[string]any{"spec": map[string]any{"clusterIP": "10.96.0.2"}}, "set service d/new 10.96.0.2"},
			{kindServices, "new", nil, "delete service d/new"},
			{kindServices, "old", nil, "delete service d/old"},
			{kindSlices, "new", slice, "set slice d/new of  [10.0.0.1]"},
			{kindSlices, "new", map[string]any{"addressType": "IPv4"}, "set slice d/new of  []"},
			{kindSlices, "new", nil, "delete slice d/new"},
			{kindSlices, "old", nil, "delete slice d/old"},
			{kindNodes, "a", map[string]any{}, "set node a"},
			{kindNodes, "a", map[string]any{"spec": map[string]any{"podCIDR": "10.244.1.0/24"}}, "set node a"},
			{kindNodes, "a", nil, "delete node"},
			{kindCIDRs, "new", cidr, "set range new [10.96.0.0/16]"},
			{kindCIDRs, "new", map[string]any{}, "set range new []"},
			{kindCIDRs, "new", nil, "delete range new"},
			{kindCIDRs, "old", nil, "delete range old"},
		} {
			if c.set == nil {
				s.remove(c.kind, c.name)
			} else {
				s.set(c.kind, c.name, c.set)
			}
			synctest.Wait()
			if calls, _ := r.take(); !slices.Equal(calls, []string{c.want}) {
				t.Errorf("%s %s: the Sink got %q, want %q", c.kind, c.name, calls, c.want)
			}
		}
	})
}

// In a cluster where nothing changes, bookmarks are signs of life: no kind is ever silent
// for longer than one takes.
func TestBookmarksAreContact(t *testing.T) {
	for _, streams := range []bool{true, false} {
		bubble(t, func(t *testing.T) { testBookmarks(t, streams) })
	}
}

func testBookmarks(t *testing.T, streams bool) {
	s := newFakeAPI(100)
	s.streams = streams
	var mu sync.Mutex
	last, longest := map[string]time.Time{}, map[string]time.Duration{}
	a := &APIServer{Contact: func(kind string) {
		mu.Lock()
		defer mu.Unlock()
		if !last[kind].IsZero() {
			longest[kind] = max(longest[kind], time.Since(last[kind]))
		}
		last[kind] = time.Now()
	}, WatchTimedOut: func(kind string) { t.Errorf("the watch of %s counts as silent", kind) }}
	s.follow(t, a, &recorder{open: true}, func() {
		pass(time.Hour)
		mu.Lock()
		defer mu.Unlock()
		for kind := range apiKinds {
			if longest[kind] == 0 || longest[kind] > 65*time.Second || time.Since(last[kind]) > 65*time.Second {
				t.Errorf("no sign of life of %s for %s, want one a minute", kind, longest[kind])
			}
		}
		later := func(r apiRequest) bool { return r.verb != "watch" && r.at.Sub(s.requests[0].at) > time.Second }
		if i := slices.IndexFunc(s.requests, later); i >= 0 {
			t.Errorf("%v, want watches alone after the start", s.requests[i])
		}
	})
}

// After a restore of etcd from a backup the proxy follows the new history, and says so. Changes before
// the old revision is reached again are not lost, not even if it is reached soon.
func TestRestoredEtcd(t *testing.T) {
	for name, c := range map[string]struct {
		streams bool
		happens func(*fakeAPI)
		within  time.Duration
	}{
		"connections break":                 {within: 10 * time.Second, happens: func(s *fakeAPI) { s.restore(1000) }},
		"connections break, streams":        {streams: true, within: 10 * time.Second, happens: func(s *fakeAPI) { s.restore(1000) }},
		"connections stay, a bookmark":      {within: 65 * time.Second, happens: func(s *fakeAPI) { s.goBack(1000); s.forceBookmark(kindNodes) }},
		"connections stay, an event":        {within: 10 * time.Second, happens: func(s *fakeAPI) { s.goBack(1000); s.forceEvent(kindCIDRs) }},
		"connections stay, all are silent":  {within: 190 * time.Second, happens: func(s *fakeAPI) { s.goBack(1000) }},
		"the old revision is reached again": {within: 10 * time.Second, happens: func(s *fakeAPI) { s.restore(1000); s.growLater(300) }},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) { testRestored(t, c.streams, c.happens, c.within) })
		})
	}
}

func testRestored(t *testing.T, streams bool, happens func(*fakeAPI), within time.Duration) {
	s := newFakeAPI(1200)
	s.streams = streams
	s.set(kindServices, "gone", nil)
	s.set(kindServices, "kept", nil)
	r := &recorder{open: true}
	var mu sync.Mutex
	var restored []string
	a := &APIServer{Restored: func(kind, before, now string) {
		mu.Lock()
		defer mu.Unlock()
		restored = append(restored, fmt.Sprint(kind, " ", before, " ", now))
	}}
	s.follow(t, a, r, func() {
		pass(6 * time.Second)
		r.take()
		s.mu.Lock()
		delete(s.objects[kindServices], "gone") // it is not in the backup
		s.mu.Unlock()
		happens(s)
		s.set(kindSlices, "moved", nil)
		pass(within)
		calls, _ := r.take()
		for _, want := range []string{"set slice d/moved of  []", "delete service d/gone"} {
			if !slices.Contains(calls, want) {
				t.Errorf("no %q within %s, but %q; requests %v", want, within, calls, s.asked(kindSlices))
			}
		}
		kit.Check(t, !slices.Contains(calls, "delete service d/kept"),
			"the Service that is still there was deleted: %q", calls)
		mu.Lock()
		defer mu.Unlock()
		kit.Check(t, len(restored) == 1, "reported: %q, want one line", restored)
		before := len(s.requests) // it ends: nothing is asked for again while watches last, which is five minutes at least
		pass(3 * time.Minute)
		if n := len(s.requests) - before; n > 0 {
			t.Errorf("%d more requests: %v", n, s.requests[before:])
		}
	})
}

// After too long a silence a kind is listed again, whatever the API server would say of
// its revision: the silence may have hidden changes.
func TestSilentWatch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFakeAPI(1200)
		s.mute = true
		s.follow(t, &APIServer{}, &recorder{open: true}, func() {
			pass(190 * time.Second)
			for kind := range apiKinds {
				all := s.asked(kind)
				lists := slices.DeleteFunc(all, func(r apiRequest) bool { return r.verb != "list" })
				kit.Check(t, len(lists) == 2 && lists[1].version == "",
					"%s was listed %v, want twice, the second time without a version", kind, lists)
			}
		})
	})
}

// forceBookmark and forceEvent send to watches from any version.
func (f *fakeAPI) forceBookmark(kind string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for w := range f.watches {
		if w.kind == kind {
			w.events <- f.bookmark(kind, nil)
		}
	}
}

func (f *fakeAPI) forceEvent(kind string) {
	f.mu.Lock()
	for w := range f.watches {
		w.from = min(w.from, f.revision)
		if w.kind != kind {
			w.from = 1 << 30 // this kind is silent
		}
	}
	f.mu.Unlock()
	f.set(kind, "new", nil)
}

// growLater raises the revision after some seconds.
func (f *fakeAPI) growLater(by int) {
	time.AfterFunc(8*time.Second, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.revision += by
	})
}

// A server whose versions make no sense is still followed, with few requests.
func TestRevisionsWithoutOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFakeAPI(1000)
		r := &recorder{open: true}
		s.follow(t, &APIServer{}, r, func() {
			for i := range 600 {
				s.goBack(1000 - i)
				s.forceBookmark(kindNodes)
				time.Sleep(time.Second)
			}
			n := len(s.asked(kindServices))
			kit.Check(t, n <= 120, "%d requests for Services in ten minutes, want few", n)
		})
	})
}

// Retry-After of a busy API server is a lower bound for each kind, whether it refuses lists or
// watches, and whether another kind can be read meanwhile.
func TestRetryAfter(t *testing.T) {
	seconds := func() string { return "20" }
	date := func() string { return time.Now().Add(20 * time.Second).UTC().Format(http.TimeFormat) }
	for name, c := range map[string]struct {
		code    int
		header  func() string // nil means in the body
		refuses func(kind string, watch bool) bool
	}{
		"everything":        {429, seconds, func(string, bool) bool { return true }},
		"in the body":       {429, nil, func(string, bool) bool { return true }},
		"date":              {503, date, func(string, bool) bool { return true }},
		"lists":             {503, seconds, func(_ string, watch bool) bool { return !watch }},
		"watches":           {429, seconds, func(_ string, watch bool) bool { return watch }},
		"all but Services":  {429, seconds, func(kind string, _ bool) bool { return kind != kindServices }},
		"ServiceCIDRs only": {429, date, func(kind string, _ bool) bool { return kind == kindCIDRs }},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newFakeAPI(100)
				barred := map[string]time.Time{}
				s.refuse = func(r *http.Request) *http.Response {
					kind := path.Base(r.URL.Path)
					if time.Now().Before(barred[kind]) {
						t.Errorf("%s is asked for %s too early", kind, time.Until(barred[kind]))
					}
					if !c.refuses(kind, r.URL.Query().Get("watch") != "") {
						return nil
					}
					barred[kind] = time.Now().Add(19 * time.Second) // a date has no fractions of a second
					if c.header == nil {
						return statusAnswer(c.code, `"reason":"TooManyRequests","details":{"retryAfterSeconds":20}`)
					}
					a := statusAnswer(c.code, `"reason":"Unknown"`)
					a.Header.Set("Retry-After", c.header())
					return a
				}
				s.follow(t, &APIServer{}, &recorder{open: true}, func() {
					pass(3 * time.Minute)
					for kind := range apiKinds {
						if n := len(s.asked(kind)); n < 3 && c.refuses(kind, true) {
							t.Errorf("%s was asked for %d times in three minutes, want more", kind, n)
						}
					}
				})
			})
		})
	}
}

// An error within a watch may have the bound too.
func TestRetryAfterInWatch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFakeAPI(100)
		s.follow(t, &APIServer{}, &recorder{open: true}, func() {
			pass(10 * time.Second)
			before, at := len(s.asked(kindSlices)), time.Now()
			s.mu.Lock()
			for w := range s.watches {
				w.events <- map[string]any{"type": "ERROR", "object": map[string]any{
					"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "TooManyRequests", "code": 429,
					"details": map[string]any{"retryAfterSeconds": 20},
				}}
			}
			s.mu.Unlock()
			pass(time.Minute)
			all := s.asked(kindSlices)[before:]
			kit.Check(t, len(all) != 0 && all[0].at.Sub(at) >= 20*time.Second && all[0].at.Sub(at) <= 31*time.Second,
				"asked again at %v, want 20 to 30 s after %v", all, at)
		})
	})
}

// An old API server refuses to stream what exists. That is no fault.
func TestOldAPIServer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFakeAPI(100)
		var errs []error
		s.follow(t, &APIServer{Report: func(err error) { errs = append(errs, err) }}, &recorder{open: true}, func() {
			pass(time.Minute)
			kit.Check(t, len(errs) == 0, "reported: %v", errs)
		})
	})
	// Another refusal is one.
	bubble(t, func(t *testing.T) {
		s := newFakeAPI(100)
		s.refuse = func(r *http.Request) *http.Response {
			if r.URL.Query().Get("sendInitialEvents") != "" {
				return statusAnswer(http.StatusInternalServerError, `"reason":"InternalError"`)
			}
			return nil
		}
		var mu sync.Mutex
		var errs []error
		a := &APIServer{Report: func(err error) {
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		}}
		s.follow(t, a, &recorder{open: true}, func() {
			pass(time.Minute)
			if len(errs) != 4 || !strings.Contains(errors.Join(errs...).Error(), "watch services at the API server") {
				t.Errorf("reported: %v, want one fault for each kind", errs)
			}
		})
	})
}

func TestIsComplete(t *testing.T) {
	failure := func(code int32, reason metav1.StatusReason) runtime.Object {
		return &metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason}
	}
	end := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}}
	for name, c := range map[string]struct {
		event apiwatch.Event
		first bool
		want  bool
	}{
		"event":                       {apiwatch.Event{Type: apiwatch.Added, Object: named("a")}, false, true},
		"existing object":             {apiwatch.Event{Type: apiwatch.Added, Object: named("a")}, true, false},
		"bookmark":                    {apiwatch.Event{Type: apiwatch.Bookmark, Object: named("")}, false, true},
		"bookmark before the end":     {apiwatch.Event{Type: apiwatch.Bookmark, Object: named("")}, true, false},
		"end of the existing objects": {apiwatch.Event{Type: apiwatch.Bookmark, Object: end}, true, true},
		"object that looks like one":  {apiwatch.Event{Type: apiwatch.Added, Object: end}, true, false},
		"normal end":                  {apiwatch.Event{Type: apiwatch.Error, Object: failure(410, metav1.StatusReasonExpired)}, false, true},
		"normal end, among existing":  {apiwatch.Event{Type: apiwatch.Error, Object: failure(410, metav1.StatusReasonGone)}, true, true},
		"failure":                     {apiwatch.Event{Type: apiwatch.Error, Object: failure(500, metav1.StatusReasonInternalError)}, false, false},
		"failure among existing ones": {apiwatch.Event{Type: apiwatch.Error, Object: failure(500, metav1.StatusReasonInternalError)}, true, false},
	} {
		kit.Equal(t, isComplete(c.event, c.first), c.want, "%s: isComplete", name)
	}
}

func TestAsked(t *testing.T) {
	const date = "Mon, 02 Jan 2006 15:04:05 GMT"
	const inBody = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"TooManyRequests","code":429,"details":{"retryAfterSeconds":7}}`
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	for name, c := range map[string]struct {
		code         int
		header, body string
		want         time.Duration
	}{
		"seconds":               {429, "20", "", 20 * time.Second},
		"unavailable":           {503, "20", "", 20 * time.Second},
		"seconds with a Status": {429, "20", `{"kind":"Status","apiVersion":"v1","status":"Failure","code":429}`, 20 * time.Second},
		"in the body only":      {429, "", inBody, 7 * time.Second},
		"the longer one":        {429, "3", inBody, 7 * time.Second},
		"date":                  {503, "Mon, 02 Jan 2006 15:04:35 GMT", "", 30 * time.Second},
		"date in the past":      {503, "Mon, 02 Jan 2006 15:04:01 GMT", "", 0},
		"absurd":                {429, "4000000000", "", MaxRetryAfter},
		"absurd date":           {429, "Mon, 02 Jan 2096 15:04:05 GMT", "", MaxRetryAfter},
		"no number":             {429, "soon", "", 0},
		"negative":              {429, "-4", "", 0},
		"not found":             {404, "20", `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`, 20 * time.Second},
		"granted":               {200, "20", `{"kind":"Status","apiVersion":"v1","status":"Success"}`, 0},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Date", date)
				w.Header().Set("Content-Type", "application/json")
				if c.header != "" {
					w.Header().Set("Retry-After", c.header)
				}
				w.WriteHeader(c.code)
				_, _ = w.Write([]byte(c.body))
			}))
			defer server.Close()
			config := &rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{
				GroupVersion:         &schema.GroupVersion{Version: "v1"},
				NegotiatedSerializer: serializer.NewCodecFactory(scheme).WithoutConversion(),
			}}
			NoteRetryAfter(config)
			client, err := rest.RESTClientFor(config)
			kit.Must(t, err)
			ctx := WithRetryAfter(t.Context())
			err = client.Get().Resource("services").MaxRetries(0).Do(ctx).Error()
			refused := c.code != http.StatusOK
			kit.Need(t, (err != nil) == refused, "the request failed: %v", err)
			kit.Equal(t, RetryAfter(ctx, err), c.want, "Asked")
		})
	}
	// Without a clock of the server, that of this node counts.
	now := time.Date(2006, 1, 2, 15, 4, 5, 0, time.UTC)
	got := retryInHeader(http.Header{"Retry-After": {"Mon, 02 Jan 2006 15:04:15 GMT"}}, now)
	kit.Check(t, got == 10*time.Second, "inHeader without Date = %s, want 10s", got)
}
