// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package events

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	kind    = schema.GroupResource{Resource: "events"}
	broken  = Topic{Bad: "Broken", Good: "Mended"}
	mistake = Topic{Bad: "Mistake", Reach: Cluster}
	start   = Topic{Bad: "Starting", Calm: true}
)

func about(name string) Object {
	return Object{Kind: "Service", Namespace: "shop", Name: name, UID: "uid-of-" + "x"}
}

// store is the writer of tests: an API server that is as strict as the real
// one about names and may be told to fail.
type store struct {
	mu     sync.Mutex
	begin  time.Time
	events map[string]*corev1.Event
	calls  []string // when, verb, reason and what came of it
	fail   func(verb string) error
}

func newStore() *store { return &store{begin: time.Now(), events: map[string]*corev1.Event{}} }

func (s *store) call(verb, what string, do func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	if s.fail != nil {
		err = s.fail(verb)
	}
	if err == nil {
		err = do()
	}
	result := "ok"
	if err != nil {
		result = string(apierrors.ReasonForError(err))
	}
	s.calls = append(s.calls, fmt.Sprintf("%ds %s %s: %s", int(time.Since(s.begin).Seconds()), verb, what, result))
	return err
}

func (s *store) create(_ context.Context, e *corev1.Event) error {
	return s.call("create", e.InvolvedObject.Name+" "+e.Reason, func() error {
		if s.events[e.Name] != nil {
			return apierrors.NewAlreadyExists(kind, e.Name)
		}
		s.events[e.Name] = e
		return nil
	})
}

func (s *store) patch(_ context.Context, _, name string, change []byte) error {
	return s.call("patch", "", func() error {
		if s.events[name] == nil {
			return apierrors.NewNotFound(kind, name)
		}
		return json.Unmarshal(change, s.events[name])
	})
}

func (s *store) said() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.calls
	s.calls = nil
	return all
}

// tale runs a Recorder in a bubble of time.
type tale struct {
	*Recorder
	*store
	dropped, reports []string
	written          int
}

func tell(t *testing.T, story func(t *testing.T, r *tale)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &tale{store: newStore()}
		r.Recorder = newRecorder(Options{
			Node:    "node-a",
			Report:  func(err error) { r.noting(func() { r.reports = append(r.reports, err.Error()) }) },
			Written: func() { r.noting(func() { r.written++ }) },
			Dropped: func(why string) { r.noting(func() { r.dropped = append(r.dropped, why) }) },
		}, r.store)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			r.Run(ctx)
			close(done)
		}()
		story(t, r)
		stop()
		<-done
	})
}

// noting has do happen between two looks of the test.
func (r *tale) noting(do func()) {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	do()
}

// after lets time pass and waits until all is done. What the test read and
// wrote before comes before that, what it reads then after it.
func (r *tale) after(d time.Duration) {
	r.noting(func() {})
	time.Sleep(d)
	synctest.Wait()
	r.noting(func() {})
}

func (r *tale) wants(t *testing.T, after time.Duration, want ...string) {
	t.Helper()
	r.after(after)
	if diff := cmp.Diff(want, r.said()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestOncePerChange(t *testing.T) {
	tell(t, func(t *testing.T, r *tale) {
		r.Good(about("web"), broken, "was never bad")
		for range 10 {
			r.Bad(about("web"), broken, "no space")
			time.Sleep(time.Second)
		}
		r.wants(t, time.Minute, "3s create web Broken: ok")
		r.Bad(about("web"), broken, "another reason")
		r.wants(t, time.Minute)
		r.Good(about("web"), broken, "fits again")
		r.wants(t, time.Minute, "133s create web Mended: ok")
		r.Gone(about("web"))
		r.Good(about("web"), broken, "")
		r.wants(t, time.Hour)
		if r.open != 0 || len(r.matters) != 0 || r.written != 2 {
			t.Errorf("%d matters of %d objects are remembered, %d Events written", r.open, len(r.matters), r.written)
		}
	})
}

func TestShortTroubleIsNotTold(t *testing.T) {
	tell(t, func(t *testing.T, r *tale) {
		r.Bad(about("web"), broken, "no space")
		time.Sleep(hold / 2)
		r.Good(about("web"), broken, "")
		r.wants(t, time.Hour)
		r.Bad(about("web"), broken, "no space")
		r.wants(t, time.Minute, "3604s create web Broken: ok")
		r.Good(about("web"), broken, "")
		time.Sleep(hold / 2)
		r.Bad(about("web"), broken, "again")
		r.wants(t, time.Hour)
	})
}

// What is over while it is being told is told, too.
func TestChangeMeanwhile(t *testing.T) {
	tell(t, func(t *testing.T, r *tale) {
		r.fail = func(string) error {
			r.Good(about("web"), broken, "")
			return nil
		}
		r.Bad(about("web"), broken, "")
		r.wants(t, time.Minute, "3s create web Broken: ok", "6s create web Mended: ok")
	})
}

// What recurs adds up in one Event, and ever more slowly.
func TestRecurrence(t *testing.T) {
	tell(t, func(t *testing.T, r *tale) {
		for i := range 20 {
			r.Bad(about("web"), broken, fmt.Sprintf("trouble %d", i))
			time.Sleep(10 * time.Second)
			r.Good(about("web"), broken, "")
			time.Sleep(10 * time.Second)
		}
		r.wants(t, time.Hour,
			"3s create web Broken: ok", "13s create web Mended: ok", "23s patch : ok", "313s patch : ok")
		for _, e := range r.events {
			if e.Reason == "Broken" && (e.Count != 2 || e.Message != "trouble 1") || e.Reason == "Mended" && e.Count != 2 {
				t.Errorf("%s: count %d, message %q", e.Reason, e.Count, e.Message)
			}
		}
	})
}

// An Event that has expired is written anew.
func TestExpired(t *testing.T) {
	tell(t, func(t *testing.T, r *tale) {
		r.Bad(about("web"), broken, "")
		r.wants(t, time.Minute, "3s create web Broken: ok")
		r.Good(about("web"), broken, "")
		r.wants(t, time.Minute, "63s create web Mended: ok")
		clear(r.events)
		r.Bad(about("web"), broken, "")
		r.wants(t, time.Minute, "123s patch : NotFound", "123s create web Broken: ok")
		r.Good(about("web"), broken, "")
		time.Sleep(2 * time.Hour)
		r.said()
		r.Bad(about("web"), broken, "")
		r.wants(t, time.Minute, "7383s create web Broken: ok")
	})
}

func TestWhatIsWritten(t *testing.T) {
	tell(t, func(t *testing.T, r *tale) {
		r.Bad(Object{Kind: "Node", Name: "node-a", UID: "node-a"}, start, "v1")
		r.wants(t, 0, "0s create node-a Starting: ok")
		r.Bad(about("web"), broken, strings.Repeat("ä", 600))
		r.wants(t, time.Minute, "3s create web Broken: ok")
		for _, e := range r.events {
			at := metav1.NewTime(r.begin)
			want := &corev1.Event{
				ObjectMeta:     metav1.ObjectMeta{Namespace: "default"},
				InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "node-a", UID: "node-a"},
				Reason:         "Starting", Message: "v1", Type: "Normal", Count: 1,
				Source:         corev1.EventSource{Component: "kube-proxy", Host: "node-a"},
				FirstTimestamp: at, LastTimestamp: at, ReportingController: "kube-proxy", ReportingInstance: "node-a",
			}
			if e.Reason == "Broken" {
				want.Namespace, want.Reason, want.Type = "shop", "Broken", "Warning"
				want.InvolvedObject = corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: "shop", Name: "web", UID: "uid-of-x"}
				want.Message = strings.Repeat("ä", 498) + " ..."
				want.FirstTimestamp = metav1.NewTime(r.begin.Add(hold))
				want.LastTimestamp = want.FirstTimestamp
			}
			if !strings.HasPrefix(e.Name, e.InvolvedObject.Name+".") {
				t.Errorf("name = %s", e.Name)
			}
			e.Name = ""
			if diff := cmp.Diff(want, e); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		}
	})
}

// The next time, an hour later, it is told again.
func TestMistakeComesBack(t *testing.T) {
	tell(t, func(t *testing.T, r *tale) {
		for range 2 {
			r.Bad(about("web"), mistake, "a")
			time.Sleep(time.Minute)
			r.Good(about("web"), mistake, "")
			time.Sleep(time.Hour)
		}
		if n := len(r.events); n != 2 {
			t.Errorf("%d Events, want one for each hour", n)
		}
	})
}

// TestFlood bounds what a node can write and remember.
func TestFlood(t *testing.T) {
	tell(t, func(t *testing.T, r *tale) {
		for i := range 2 * maxMatters {
			r.Bad(about(fmt.Sprint("s", i)), broken, "")
		}
		r.after(hold)
		if n := len(r.said()); n != overallBurst {
			t.Errorf("%d Events at once, want %d", n, overallBurst)
		}
		if len(r.dropped) != maxMatters || r.dropped[0] != Full {
			t.Errorf("%d dropped, want %d", len(r.dropped), maxMatters)
		}
		r.after(10 * overallEvery)
		if n := len(r.said()); n != 10 {
			t.Errorf("%d more Events, want 10", n)
		}
		for i := range maxMatters {
			r.Good(about(fmt.Sprint("s", i)), broken, "")
		}
		r.Bad(about("new"), broken, "")
		if r.open != maxMatters || r.find(about("new"), broken) == nil {
			t.Errorf("%d matters; what is all right must make room", r.open)
		}
	})
}

func TestForbidden(t *testing.T) {
	tell(t, func(t *testing.T, r *tale) {
		r.fail = func(string) error { return apierrors.NewForbidden(kind, "", errors.New("no role")) }
		r.Bad(about("web"), broken, "")
		r.Bad(about("api"), broken, "")
		r.after(29 * time.Minute)
		if got := r.said(); len(got) != 1 || len(r.reports) != 1 || len(r.dropped) != 1 || r.dropped[0] != Forbidden {
			t.Errorf("calls %q, reports %q, dropped %q, want one of each", got, r.reports, r.dropped)
		}
		r.after(29 * time.Minute)
		if got := r.said(); len(got) != 1 || len(r.reports) != 1 {
			t.Errorf("calls %q, reports %q: want one call after the rest, and no report", got, r.reports)
		}
		r.fail = nil
		r.after(29 * time.Minute)
		if got := r.said(); len(got) != 2 || len(r.events) != 2 {
			t.Errorf("calls %q, want both Events when they are allowed", got)
		}
	})
}

// A namespace that ends takes no Events, which is no reason to stop.
func TestTerminatingNamespace(t *testing.T) {
	tell(t, func(t *testing.T, r *tale) {
		ends := apierrors.NewForbidden(kind, "", errors.New("being terminated"))
		ends.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
		r.fail = func(string) error { return ends }
		r.Bad(about("web"), broken, "")
		r.wants(t, time.Minute, "3s create web Broken: Forbidden")
		r.fail = nil
		r.Bad(about("api"), broken, "")
		r.wants(t, time.Hour, "63s create api Broken: ok")
	})
}

func TestUnreachable(t *testing.T) {
	tell(t, func(t *testing.T, r *tale) {
		r.fail = func(string) error { return errors.New("connection refused") }
		r.Bad(about("web"), broken, "")
		r.after(5 * time.Minute)
		if n := len(r.said()); n > 12 || len(r.reports) != 1 {
			t.Errorf("%d attempts in five minutes, reports %q", n, r.reports)
		}
		r.fail = nil
		r.after(6 * time.Minute)
		if len(r.events) != 1 || len(r.dropped) != 0 {
			t.Errorf("%d Events after the server came back, dropped %q", len(r.events), r.dropped)
		}
		r.fail = func(string) error { return errors.New("connection refused") }
		r.Good(about("web"), broken, "")
		r.after(time.Hour)
		if diff := cmp.Diff([]string{Unreachable}, r.dropped); diff != "" || len(r.reports) != 2 {
			t.Errorf("dropped after an hour (-want +got):\n%s\nreports %q", diff, r.reports)
		}
	})
}

func TestRefused(t *testing.T) {
	tell(t, func(t *testing.T, r *tale) {
		r.fail = func(string) error { return apierrors.NewBadRequest("no such field") }
		r.Bad(about("web"), broken, "")
		r.wants(t, time.Hour, "3s create web Broken: BadRequest")
		if len(r.dropped) != 1 || r.dropped[0] != Refused || len(r.reports) != 1 {
			t.Errorf("dropped %q, reports %q", r.dropped, r.reports)
		}
	})
}

// Nobody need ask whether there is a Recorder.
func TestNil(*testing.T) {
	var r *Recorder
	r.Bad(about("web"), broken, "")
	r.Good(about("web"), broken, "")
	r.Gone(about("web"))
}
