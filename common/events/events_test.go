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

	"kubeproxy/test/kit"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	kind    = schema.GroupResource{Resource: "events"}
	broken  = Topic{Reason: "Broken", RecoveredReason: "Mended"}
	mistake = Topic{Reason: "Mistake", Scope: Cluster}
	start   = Topic{Reason: "Starting", Informational: true}
)

func serviceObject(name string) Object {
	return Object{Kind: "Service", Namespace: "shop", Name: name, UID: "uid-of-" + "x"}
}

// store is the writer of tests: an API server that validates names like the real one, and
// can be made to fail.
type store struct {
	mu     sync.Mutex
	begin  time.Time
	events map[string]*corev1.Event
	calls  []string // time, verb, reason and outcome
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

func (s *store) takeCalls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.calls
	s.calls = nil
	return all
}

// scenario runs a Recorder in a synctest bubble.
type scenario struct {
	*Recorder
	*store
	dropped, reports []string
	written          int
}

func runScenario(t *testing.T, story func(t *testing.T, r *scenario)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &scenario{store: newStore()}
		r.Recorder = newRecorder(Options{
			Node:    "node-a",
			Report:  func(err error) { r.locked(func() { r.reports = append(r.reports, err.Error()) }) },
			Written: func() { r.locked(func() { r.written++ }) },
			Dropped: func(why string) { r.locked(func() { r.dropped = append(r.dropped, why) }) },
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

// locked runs do between two steps of the test.
func (s *scenario) locked(do func()) {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	do()
}

// after sleeps for d and waits until all due work is done. Accesses of the test before it
// happen before that work, and accesses after it happen after that work.
func (s *scenario) after(d time.Duration) {
	s.locked(func() {})
	time.Sleep(d)
	synctest.Wait()
	s.locked(func() {})
}

func (s *scenario) expect(t *testing.T, after time.Duration, want ...string) {
	t.Helper()
	s.after(after)
	kit.Same(t, "(-want +got)", want, s.takeCalls())
}

func TestOncePerChange(t *testing.T) {
	runScenario(t, func(t *testing.T, r *scenario) {
		r.Recovered(serviceObject("web"), broken, "was never bad")
		for range 10 {
			r.Failed(serviceObject("web"), broken, "no space")
			time.Sleep(time.Second)
		}
		r.expect(t, time.Minute, "3s create web Broken: ok")
		r.Failed(serviceObject("web"), broken, "another reason")
		r.expect(t, time.Minute)
		r.Recovered(serviceObject("web"), broken, "fits again")
		r.expect(t, time.Minute, "133s create web Mended: ok")
		r.Forget(serviceObject("web"))
		r.Recovered(serviceObject("web"), broken, "")
		r.expect(t, time.Hour)
		kit.Check(t, r.count == 0 && len(r.conditions) == 0 && r.written == 2,
			"%d matters of %d objects are remembered, %d Events written", r.count, len(r.conditions), r.written)
	})
}

func TestShortFailureIsNotReported(t *testing.T) {
	runScenario(t, func(t *testing.T, r *scenario) {
		r.Failed(serviceObject("web"), broken, "no space")
		time.Sleep(stableTime / 2)
		r.Recovered(serviceObject("web"), broken, "")
		r.expect(t, time.Hour)
		r.Failed(serviceObject("web"), broken, "no space")
		r.expect(t, time.Minute, "3604s create web Broken: ok")
		r.Recovered(serviceObject("web"), broken, "")
		time.Sleep(stableTime / 2)
		r.Failed(serviceObject("web"), broken, "again")
		r.expect(t, time.Hour)
	})
}

// A condition that ends while its Event is being written gets a second Event.
func TestChangeMeanwhile(t *testing.T) {
	runScenario(t, func(t *testing.T, r *scenario) {
		r.fail = func(string) error {
			r.Recovered(serviceObject("web"), broken, "")
			return nil
		}
		r.Failed(serviceObject("web"), broken, "")
		r.expect(t, time.Minute, "3s create web Broken: ok", "6s create web Mended: ok")
	})
}

// A recurring failure is counted in one Event, with growing intervals.
func TestRecurrence(t *testing.T) {
	runScenario(t, func(t *testing.T, r *scenario) {
		for i := range 20 {
			r.Failed(serviceObject("web"), broken, fmt.Sprintf("fault %d", i))
			time.Sleep(10 * time.Second)
			r.Recovered(serviceObject("web"), broken, "")
			time.Sleep(10 * time.Second)
		}
		r.expect(t, time.Hour,
			"3s create web Broken: ok", "13s create web Mended: ok", "23s patch : ok", "313s patch : ok")
		for _, e := range r.events {
			kit.Check(t, (e.Reason != "Broken" || e.Count == 2 && e.Message == "fault 1") && (e.Reason != "Mended" || e.Count == 2),
				"%s: count %d, message %q", e.Reason, e.Count, e.Message)
		}
	})
}

// An Event that has expired is created again.
func TestExpired(t *testing.T) {
	runScenario(t, func(t *testing.T, r *scenario) {
		r.Failed(serviceObject("web"), broken, "")
		r.expect(t, time.Minute, "3s create web Broken: ok")
		r.Recovered(serviceObject("web"), broken, "")
		r.expect(t, time.Minute, "63s create web Mended: ok")
		clear(r.events)
		r.Failed(serviceObject("web"), broken, "")
		r.expect(t, time.Minute, "123s patch : NotFound", "123s create web Broken: ok")
		r.Recovered(serviceObject("web"), broken, "")
		time.Sleep(2 * time.Hour)
		r.takeCalls()
		r.Failed(serviceObject("web"), broken, "")
		r.expect(t, time.Minute, "7383s create web Broken: ok")
	})
}

func TestWhatIsWritten(t *testing.T) {
	runScenario(t, func(t *testing.T, r *scenario) {
		r.Failed(Object{Kind: "Node", Name: "node-a", UID: "node-a"}, start, "v1")
		r.expect(t, 0, "0s create node-a Starting: ok")
		r.Failed(serviceObject("web"), broken, strings.Repeat("ä", 600))
		r.expect(t, time.Minute, "3s create web Broken: ok")
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
				want.FirstTimestamp = metav1.NewTime(r.begin.Add(stableTime))
				want.LastTimestamp = want.FirstTimestamp
			}
			kit.Check(t, strings.HasPrefix(e.Name, e.InvolvedObject.Name+"."), "name = %s", e.Name)
			e.Name = ""
			kit.Same(t, "(-want +got)", want, e)
		}
	})
}

// An hour later, the same mistake gets another Event.
func TestMistakeComesBack(t *testing.T) {
	runScenario(t, func(t *testing.T, r *scenario) {
		for range 2 {
			r.Failed(serviceObject("web"), mistake, "a")
			time.Sleep(time.Minute)
			r.Recovered(serviceObject("web"), mistake, "")
			time.Sleep(time.Hour)
		}
		kit.Check(t, len(r.events) == 2, "%d Events, want one for each hour", len(r.events))
	})
}

// TestFlood checks the limits of what a node writes and stores.
func TestFlood(t *testing.T) {
	runScenario(t, func(t *testing.T, r *scenario) {
		for i := range 2 * maxConditions {
			r.Failed(serviceObject(fmt.Sprint("s", i)), broken, "")
		}
		r.after(stableTime)
		n := len(r.takeCalls())
		kit.Check(t, n == overallBurst, "%d Events at once, want %d", n, overallBurst)
		kit.Check(t, len(r.dropped) == maxConditions && r.dropped[0] == Full,
			"%d dropped, want %d", len(r.dropped), maxConditions)
		r.after(10 * overallEvery)
		if n := len(r.takeCalls()); n != 10 {
			t.Errorf("%d more Events, want 10", n)
		}
		for i := range maxConditions {
			r.Recovered(serviceObject(fmt.Sprint("s", i)), broken, "")
		}
		r.Failed(serviceObject("new"), broken, "")
		kit.Check(t, r.count == maxConditions && r.find(serviceObject("new"), broken) != nil,
			"%d matters; what is all right must make room", r.count)
	})
}

func TestForbidden(t *testing.T) {
	runScenario(t, func(t *testing.T, r *scenario) {
		r.fail = func(string) error { return apierrors.NewForbidden(kind, "", errors.New("no role")) }
		r.Failed(serviceObject("web"), broken, "")
		r.Failed(serviceObject("api"), broken, "")
		r.after(29 * time.Minute)
		if got := r.takeCalls(); len(got) != 1 || len(r.reports) != 1 || len(r.dropped) != 1 || r.dropped[0] != Forbidden {
			t.Errorf("calls %q, reports %q, dropped %q, want one of each", got, r.reports, r.dropped)
		}
		r.after(29 * time.Minute)
		if got := r.takeCalls(); len(got) != 1 || len(r.reports) != 1 {
			t.Errorf("calls %q, reports %q: want one call after the rest, and no report", got, r.reports)
		}
		r.fail = nil
		r.after(29 * time.Minute)
		got := r.takeCalls()
		kit.Check(t, len(got) == 2 && len(r.events) == 2, "calls %q, want both Events when they are allowed", got)
	})
}

// A terminating namespace accepts no Events. Events for others are still written.
func TestTerminatingNamespace(t *testing.T) {
	runScenario(t, func(t *testing.T, r *scenario) {
		ends := apierrors.NewForbidden(kind, "", errors.New("being terminated"))
		ends.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
		r.fail = func(string) error { return ends }
		r.Failed(serviceObject("web"), broken, "")
		r.expect(t, time.Minute, "3s create web Broken: Forbidden")
		r.fail = nil
		r.Failed(serviceObject("api"), broken, "")
		r.expect(t, time.Hour, "63s create api Broken: ok")
	})
}

func TestUnreachable(t *testing.T) {
	runScenario(t, func(t *testing.T, r *scenario) {
		r.fail = func(string) error { return errors.New("connection refused") }
		r.Failed(serviceObject("web"), broken, "")
		r.after(5 * time.Minute)
		n := len(r.takeCalls())
		kit.Check(t, n <= 12 && len(r.reports) == 1, "%d attempts in five minutes, reports %q", n, r.reports)
		r.fail = nil
		r.after(6 * time.Minute)
		kit.Check(t, len(r.events) == 1 && len(r.dropped) == 0,
			"%d Events after the server came back, dropped %q", len(r.events), r.dropped)
		r.fail = func(string) error { return errors.New("connection refused") }
		r.Recovered(serviceObject("web"), broken, "")
		r.after(time.Hour)
		diff := cmp.Diff([]string{Unreachable}, r.dropped)
		kit.Check(t, diff == "" && len(r.reports) == 2, "dropped after an hour (-want +got):\n%s\nreports %q", diff, r.reports)
	})
}

// A busy API server says when it wants the next Event.
func TestRetryAfter(t *testing.T) {
	runScenario(t, func(t *testing.T, r *scenario) {
		r.fail = func(string) error { return apierrors.NewTooManyRequests("busy", 40) }
		r.Failed(serviceObject("web"), broken, "")
		r.after(42 * time.Second)
		n := len(r.takeCalls())
		kit.Check(t, n == 1, "%d attempts within the 40 seconds, want one", n)
		r.fail = nil
		r.after(25 * time.Second)
		if n := len(r.takeCalls()); n != 1 || len(r.events) != 1 {
			t.Errorf("%d attempts after that and %d Events, want one", n, len(r.events))
		}
	})
}

func TestRefused(t *testing.T) {
	runScenario(t, func(t *testing.T, r *scenario) {
		r.fail = func(string) error { return apierrors.NewBadRequest("no such field") }
		r.Failed(serviceObject("web"), broken, "")
		r.expect(t, time.Hour, "3s create web Broken: BadRequest")
		kit.Check(t, len(r.dropped) == 1 && r.dropped[0] == Refused && len(r.reports) == 1,
			"dropped %q, reports %q", r.dropped, r.reports)
	})
}

// A nil Recorder is usable.
func TestNil(*testing.T) {
	var r *Recorder
	r.Failed(serviceObject("web"), broken, "")
	r.Recovered(serviceObject("web"), broken, "")
	r.Forget(serviceObject("web"))
}

// TestManyNodes has a hundred nodes that see the same mistake.
func TestManyNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		written := 0
		for i := range 100 {
			r := newRecorder(Options{Node: fmt.Sprint("node-", i), Written: func() { written++ }}, s)
			all.Go(func() { r.Run(ctx) })
			r.Failed(serviceObject("web"), mistake, "spec.clusterIPs[0]: is a loopback address")
			r.Recovered(serviceObject("api"), mistake, "")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		n := len(s.events)
		kit.Check(t, n == 1 && written == 1, "%d Events, %d of them written, want one", n, written)
		seconds := map[string]int{}
		for _, c := range s.takeCalls() {
			at, _, _ := strings.Cut(c, " ")
			seconds[at]++
		}
		kit.Check(t, len(seconds) >= 15, "a hundred nodes wrote within %d seconds, want them spread", len(seconds))
		stop()
		all.Wait()
	})
}
