// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

const period = 30 * time.Second

var errRefused = errors.New("refused")

// scenario is a Monitor in a synctest bubble.
type scenario struct {
	*Monitor
	t     *testing.T
	begin time.Time
}

// runScenario runs story for a proxy of both families.
func runScenario(t *testing.T, story func(*scenario)) {
	synctest.Test(t, func(t *testing.T) {
		m := New(Options{Families: service.Families[:], SyncPeriod: period})
		story(&scenario{m, t, time.Now()})
	})
}

// round records a round that ends now and took the given time.
func (s *scenario) round(f service.Family, took time.Duration, err error) {
	s.Result(f, reconcile.Result{Generation: 7, Start: time.Now().Add(-took), Took: took, Outcome: reconcile.Outcome{Err: err}})
}

// bothSucceed records a success for both families.
func (s *scenario) bothSucceed() {
	s.round(service.IPv4, 0, nil)
	s.round(service.IPv6, 0, nil)
}

// resync lets d pass with a successful round in every period.
func (s *scenario) resync(f service.Family, d time.Duration) {
	for ; d > 0; d -= period {
		time.Sleep(min(d, period))
		s.round(f, 0, nil)
	}
}

// healthy checks both families.
func (s *scenario) healthy(v4, v6 bool) {
	s.t.Helper()
	r := s.Report()
	got := []bool{r.Status["IPv4"].Healthy, r.Status["IPv6"].Healthy, s.Serving(service.IPv4), s.Serving(service.IPv6), r.Healthy, s.Serving()}
	want := []bool{v4, v6, v4, v6, v4 && v6, v4 || v6}
	if diff := cmp.Diff(want, got); diff != "" {
		s.t.Errorf("after %s: v4, v6, serving v4, v6, healthy, serving (-want +got):\n%s%q %q",
			time.Since(s.begin), diff, r.Status["IPv4"].Reason, r.Status["IPv6"].Reason)
	}
}

func TestRoundsDecide(t *testing.T) {
	port := &reconcile.PortError{Err: errRefused}
	for name, story := range map[string]func(*scenario){
		"never programmed": func(s *scenario) { s.healthy(false, false) },
		"tried in vain":    func(s *scenario) { s.round(service.IPv4, 0, errRefused); s.healthy(false, false) },
		"one of two":       func(s *scenario) { s.round(service.IPv4, 0, nil); s.healthy(true, false) },
		"both":             func(s *scenario) { s.bothSucceed(); s.healthy(true, true) },
		"nothing to do for a day": func(s *scenario) {
			s.bothSucceed()
			for range 24 * 60 {
				time.Sleep(time.Minute)
				s.bothSucceed()
			}
			s.healthy(true, true)
		},
		"another process programs the node": func(s *scenario) {
			s.SetStandby("process 7", "")
			time.Sleep(time.Hour)
			s.healthy(true, true)
		},
		"rounds stop":   func(s *scenario) { s.bothSucceed(); time.Sleep(2*period + 1); s.healthy(false, false) },
		"drift remains": func(s *scenario) { s.bothSucceed(); s.failFor(service.IPv4, 4*period); s.healthy(false, true) },
		"one port fails, the rest is in force": func(s *scenario) {
			s.bothSucceed()
			for range 10 {
				s.Queued(service.IPv6)
				time.Sleep(period)
				s.round(service.IPv4, 0, nil)
				s.round(service.IPv6, 0, errors.Join(port))
			}
			s.healthy(true, true)
		},
		"the first round fails for one port": func(s *scenario) {
			s.round(service.IPv4, 0, port)
			s.healthy(true, false)
		},
		"a family nobody programs": func(s *scenario) {
			s.Queued(service.Family(9))
			s.round(service.Family(9), 0, nil)
			if s.Serving(service.Family(9)) {
				s.t.Error("serving a family that is none")
			}
		},
	} {
		t.Run(name, func(t *testing.T) { runScenario(t, story) })
	}
}

func TestPendingChangesDecide(t *testing.T) {
	for name, story := range map[string]func(*scenario){
		"a change may wait for two periods": func(s *scenario) {
			s.bothSucceed()
			s.Queued(service.IPv4)
			time.Sleep(2 * period)
			s.healthy(true, true)
		},
		"but no longer": func(s *scenario) {
			s.bothSucceed()
			s.Queued(service.IPv4)
			s.resync(service.IPv6, 2*period)
			time.Sleep(time.Nanosecond)
			s.healthy(false, true)
		},
		"newer changes do not hide the oldest": func(s *scenario) {
			s.bothSucceed()
			for range 100 {
				s.Queued(service.IPv4)
				time.Sleep(period / 10)
				s.round(service.IPv4, 0, errRefused)
				s.round(service.IPv6, 0, nil)
			}
			s.healthy(false, true)
		},
		"a round settles what came before it": func(s *scenario) {
			s.bothSucceed()
			s.Queued(service.IPv4)
			time.Sleep(3 * period)
			s.bothSucceed()
			s.healthy(true, true)
		},
		"and not what came during it": func(s *scenario) {
			s.bothSucceed()
			time.Sleep(period)
			s.Queued(service.IPv4)
			time.Sleep(time.Nanosecond)
			s.round(service.IPv4, period, nil) // ends now and began before the change
			s.resync(service.IPv6, period)
			time.Sleep(period)
			s.round(service.IPv4, 2*period+2, nil)
			s.round(service.IPv6, 0, nil)
			s.healthy(false, true)
		},
	} {
		t.Run(name, func(t *testing.T) { runScenario(t, story) })
	}
}

// failFor lets d pass with failed rounds for f and successful ones for the other family.
func (s *scenario) failFor(f service.Family, d time.Duration) {
	for ; d > 0; d -= period {
		time.Sleep(period)
		s.round(f, 0, errRefused)
		s.round(1-f, 0, nil)
	}
}

func TestReportMatchesState(t *testing.T) {
	runScenario(t, func(s *scenario) {
		s.Result(service.IPv4, reconcile.Result{Generation: 3, Start: time.Now(), Took: time.Second, Outcome: reconcile.Outcome{Drift: []string{"a", "b"}}})
		time.Sleep(10 * time.Second)
		s.round(service.IPv6, 0, nil)
		time.Sleep(20 * time.Second)
		s.Queued(service.IPv4)
		s.Result(service.IPv4, reconcile.Result{Generation: 4, Start: time.Now(), Outcome: reconcile.Outcome{Drift: []string{"c"}, Err: errRefused}})
		queued := s.begin.Add(30 * time.Second)
		got := s.Report()
		want := FamilyReport{
			LastUpdated: s.begin.Add(time.Second), Healthy: true, Generation: 3, OldestPending: &queued,
			Rounds: 2, DriftFound: 3, DriftRepaired: 2, LastError: "refused", Failing: true,
		}
		kit.Same(t, "(-want +got)", want, got.Status["IPv4"])
		if !got.LastUpdated.Equal(want.LastUpdated) {
			t.Errorf("lastUpdated = %s, want the older one", got.LastUpdated.Sub(s.begin))
		}
		since := got.CurrentTime.Sub(s.begin)
		kit.Check(t, since == 30*time.Second, "currentTime = %s after the start", since)
	})
}

func TestNeverUpdatedIsTheZeroTime(t *testing.T) {
	runScenario(t, func(s *scenario) {
		s.round(service.IPv4, 0, nil)
		if r := s.Report(); !r.LastUpdated.IsZero() || !r.Status["IPv6"].LastUpdated.IsZero() || r.Status["IPv4"].LastUpdated.IsZero() {
			t.Errorf("lastUpdated = %v with IPv6 never programmed", r.LastUpdated)
		}
	})
}

func TestSourcesAndConditionsAreShownOnly(t *testing.T) {
	runScenario(t, func(s *scenario) {
		s.options.Sources = func() []Source {
			return []Source{{Name: "apiserver", Synced: true, LastContact: s.begin, Stale: true, Err: "connection refused", Faults: 1}, {Name: "files"}}
		}
		s.SetCondition("configuration", "line 3: no such key")
		s.SetCondition("conntrack", "read-only")
		s.SetCondition("conntrack", "")
		s.SetBlockingCondition("forwarding", "off", "off", service.IPv6)
		if r := s.Report(); !slices.Equal(r.Blocked, []string{"forwarding"}) || !slices.Equal(r.BlockedFamilies, []string{"IPv6"}) || r.Conditions["forwarding"] != "off" {
			t.Errorf("blocked by %q with conditions %q, want forwarding in both", r.Blocked, r.Conditions)
		}
		s.bothSucceed()
		s.healthy(true, false)
		if r, fault := s.Report(), s.Fault(); r.Status["IPv6"].Reason != "no traffic flows because of forwarding" || fault != "" {
			t.Errorf("reason %q, fault of the rules %q", r.Status["IPv6"].Reason, fault)
		}
		s.SetBlockingCondition("forwarding", "", "")
		s.resync(service.IPv6, time.Minute)
		s.round(service.IPv4, 0, nil)
		r := s.Report()
		want := []SourceReport{
			{Name: "apiserver", Synced: true, LastContact: &s.begin, StalenessSeconds: 60, Stale: true, Error: "connection refused", Faults: 1},
			{Name: "files"},
		}
		kit.Same(t, "(-want +got)", want, r.Sources)
		if diff := cmp.Diff(map[string]string{
			"configuration": "line 3: no such key",
			"sources":       "apiserver: 1 fault, stale; what was read before stays in force, and the log says more",
		}, r.Conditions); diff != "" || r.Blocked != nil {
			t.Errorf("blocked by %q; (-want +got):\n%s", r.Blocked, diff)
		}
		s.healthy(true, true)
	})
}

// With any number of changes, the oldest remains and none is completed early.
func TestPendingKeepsWhatIsNotDone(t *testing.T) {
	at := func(n int) time.Time { return time.Unix(int64(n), 0) }
	for done := range 1000 {
		var p pending
		for n := range 1000 {
			p.add(at(n))
		}
		if len(p.times) > maxTimes || !p.oldest().Equal(at(0)) {
			t.Fatalf("%d times, the oldest of second %d", len(p.times), p.oldest().Unix())
		}
		p.clearUntil(at(done))
		if empty := p.oldest().IsZero(); empty != (done == 999) || !empty && !p.oldest().After(at(done)) {
			t.Fatalf("settled up to %d: oldest is %v", done, p.oldest())
		}
	}
}

func TestLongErrorsAreCut(t *testing.T) {
	runScenario(t, func(s *scenario) {
		s.round(service.IPv4, 0, errors.New(string(make([]byte, 2*maxError))))
		n := len(s.Report().Status["IPv4"].LastError)
		kit.Check(t, n <= maxError+10, "an error of %d bytes", n)
	})
}

// A new period counts from the time it was set.
func TestSetSyncPeriod(t *testing.T) {
	runScenario(t, func(s *scenario) {
		s.bothSucceed()
		time.Sleep(period)
		s.SetSyncPeriod(period / 10)
		s.healthy(true, true)
		time.Sleep(period / 10)
		s.healthy(true, true)
		time.Sleep(period / 5)
		s.healthy(false, false)
		s.SetSyncPeriod(2 * period)
		time.Sleep(3 * period)
		s.healthy(true, true)
	})
}

// A long round counts as alive while it progresses, such as the first one on a slow node,
// because a new process would only start again. A round without progress, or one that has
// failed, does not.
func TestLongRoundIsAlive(t *testing.T) {
	runScenario(t, func(s *scenario) {
		alive := func(want bool) {
			s.t.Helper()
			r := s.Report()
			if got := r.alive(); got != want || r.Healthy {
				s.t.Errorf("after %s: alive %t, want %t; healthy %t, want false", time.Since(s.begin), got, want, r.Healthy)
			}
		}
		alive(false)
		for range 20 {
			time.Sleep(time.Minute)
			s.Progress()
			alive(true)
		}
		time.Sleep(2*period + time.Second)
		alive(false)
		s.Progress()
		time.Sleep(time.Second)
		s.round(service.IPv4, time.Minute, errRefused)
		alive(false)
	})
}

// A standby is unhealthy while the rules of the holder are not in force for long, and so
// that a new process takes over, not alive either.
func TestStandbyHealth(t *testing.T) {
	runScenario(t, func(s *scenario) {
		if got := s.Fault(); got != "IPv4: nothing was ever programmed; IPv6: nothing was ever programmed" {
			t.Errorf("fault %q before the first round", got)
		}
		time.Sleep(time.Nanosecond)
		s.Progress()
		got := s.Fault()
		kit.Check(t, got == "", "fault %q in a round", got)
		s.bothSucceed()
		s.SetStandby("process 7", "IPv4: a change waits")
		time.Sleep(period)
		s.SetStandby("process 7", "IPv4: a change waits")
		time.Sleep(period)
		s.healthy(true, true)
		time.Sleep(time.Nanosecond)
		s.healthy(false, false)
		if r := s.Report(); r.alive() || !strings.Contains(r.Status["IPv4"].Reason, "the rules of the service proxy that programs this node are not in force for 1m0s") {
			t.Errorf("report %+v", r)
		}
		s.SetStandby("process 7", "")
		s.healthy(true, true)
		s.SetStandby("process 8", "IPv4: a change waits")
		time.Sleep(period)
		s.healthy(true, true)
		s.SetStandby("", "")
		s.bothSucceed()
		s.healthy(true, true)
		if got := s.Fault(); got != "" {
			t.Errorf("fault %q", got)
		}
	})
}

// TestSourceFaults checks what is said of faults and of silence, each alone and together.
func TestSourceFaults(t *testing.T) {
	const end = "; what was read before stays in force, and the log says more"
	for want, sources := range map[string][]SourceReport{
		"":                  {{Name: "a"}, {Name: "b"}},
		"a: 1 fault" + end:  {{Name: "a", Synced: true, Faults: 1}},
		"a: 2 faults" + end: {{Name: "a", Synced: true, Faults: 2}, {Name: "b"}},
		"a: 1 fault, not yet read in full; what was never read is not served, or as an earlier process left it, and the log says more": {{Name: "a", Faults: 1}},
		"a, b: 1 fault" + end:                  {{Name: "a", Synced: true, Faults: 1}, {Name: "b", Synced: true, Faults: 1}},
		"b: stale" + end:                       {{Name: "a"}, {Name: "b", Stale: true}},
		"a: 1 fault, stale; b: 3 faults" + end: {{Name: "a", Synced: true, Faults: 1, Stale: true}, {Name: "b", Synced: true, Faults: 3}},
	} {
		kit.Equal(t, sourceFaults(sources), want, "%+v", sources)
	}
}

// TestDeletedNodeIsNamed checks that the reason says that the Node has gone.
func TestDeletedNodeIsNamed(t *testing.T) {
	m := New(Options{})
	m.DeleteNode()
	got := m.Report().NodeReason
	kit.Check(t, got == "the Node object was deleted", "reason %q", got)
}
