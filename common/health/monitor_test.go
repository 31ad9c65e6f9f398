// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
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
			got := r.alive()
			kit.Check(s.t, got == want && !r.Healthy, "after %s: alive %t, want %t; healthy %t, want false", time.Since(s.begin), got, want, r.Healthy)
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

var (
	loop4 = netip.MustParseAddr("127.0.0.1")
	loop6 = netip.MustParseAddr("::1")
)

// fakeNode replaces the system: it listens on free loopback ports instead of the
// requested addresses, and records which.
type fakeNode struct {
	mu     sync.Mutex
	bound  map[string]net.Addr // by the requested address
	opened int
	refuse map[string]error
}

func (n *fakeNode) listen(ctx context.Context, network, addr string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.refuse[addr]; err != nil {
		return nil, err
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, network, net.JoinHostPort(host, "0"))
	if err != nil {
		return nil, err
	}
	n.opened++
	n.bound[addr] = l.Addr()
	return l, nil
}

// ask returns the answer of the listener on addr, or "" if there is none.
func (n *fakeNode) ask(t *testing.T, addr string) string {
	t.Helper()
	n.mu.Lock()
	at := n.bound[addr]
	n.mu.Unlock()
	if at == nil {
		return ""
	}
	c := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := c.Get("http://" + at.String() + "/any/path")
	if err != nil {
		return ""
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	kit.Must(t, err)
	return fmt.Sprintf("%d %s %s", res.StatusCode, res.Header.Get("X-Load-Balancing-Endpoint-Weight"), strings.TrimSpace(string(body)))
}

// newServers returns servers that stop with the test.
func newServers(t *testing.T) (*CheckServers, *fakeNode) {
	n := &fakeNode{bound: map[string]net.Addr{}, refuse: map[string]error{}}
	s := &CheckServers{Listen: n.listen, Serving: func(...service.Family) bool { return true }}
	t.Cleanup(s.close)
	return s, n
}

func body(name string, local int, healthy bool) string {
	return fmt.Sprintf(`{"service":{"namespace":"shop","name":%q},"localEndpoints":%d,"serviceProxyHealthy":%v}`, name, local, healthy)
}

func TestAnswers(t *testing.T) {
	both := service.Families[:]
	for name, tt := range map[string]struct {
		check Check
		stuck []service.Family
		v4    string
	}{
		"local endpoints":                               {Check{LocalEndpoints: [2]int{2}}, nil, "200 2 " + body("web", 2, true)},
		"none":                                          {Check{}, nil, "503 0 " + body("web", 0, true)},
		"proxy not healthy":                             {Check{LocalEndpoints: [2]int{2}}, both, "503 2 " + body("web", 2, false)},
		"this Service not programmed":                   {Check{LocalEndpoints: [2]int{2}, Unprogrammed: true}, nil, "503 2 " + body("web", 2, false)},
		"the other family is stuck":                     {Check{LocalEndpoints: [2]int{1}, Families: both}, both[1:], "200 1 " + body("web", 1, true)},
		"the probe's family is stuck":                   {Check{LocalEndpoints: [2]int{1}, Families: both}, both[:1], "503 1 " + body("web", 1, false)},
		"local endpoints of the other family alone":     {Check{LocalEndpoints: [2]int{0, 1}, Families: both}, nil, "503 0 " + body("web", 0, true)},
		"a Service of the other family, which is stuck": {Check{LocalEndpoints: [2]int{0, 1}, Families: both[1:]}, both[1:], "503 1 " + body("web", 1, false)},
		"a Service of the other family, which works":    {Check{LocalEndpoints: [2]int{0, 1}, Families: both[1:]}, both[:1], "200 1 " + body("web", 1, true)},
	} {
		t.Run(name, func(t *testing.T) {
			s, n := newServers(t)
			s.Serving = func(families ...service.Family) bool {
				if len(families) == 0 {
					families = both
				}
				return slices.ContainsFunc(families, func(f service.Family) bool { return !slices.Contains(tt.stuck, f) })
			}
			tt.check.Namespace, tt.check.Name = "shop", "web"
			s.Sync(DesiredChecks{Within: service.AnyAddress(), Addrs: []netip.Addr{loop4}, Checks: map[uint16]Check{30001: tt.check}})
			kit.Same(t, "(-want +got)", tt.v4, n.ask(t, "127.0.0.1:30001"))
		})
	}
}

// A proxy without its own health check still answers.
func TestServingUnset(t *testing.T) {
	s, n := newServers(t)
	s.Serving = nil
	s.Sync(DesiredChecks{Within: service.AnyAddress(), Addrs: []netip.Addr{loop4}, Checks: map[uint16]Check{30001: {Namespace: "shop", Name: "web", LocalEndpoints: [2]int{1}}}})
	kit.Same(t, "(-want +got)", "200 1 "+body("web", 1, true), n.ask(t, "127.0.0.1:30001"))
}

func TestSyncByDifference(t *testing.T) {
	s, n := newServers(t)
	web, api := Check{Namespace: "shop", Name: "web", LocalEndpoints: [2]int{1}}, Check{Namespace: "shop", Name: "api"}
	addrs := []netip.Addr{loop4}
	for _, step := range []struct {
		situation string
		want      DesiredChecks
		opened    int // so far
		first     string
		second    string
	}{
		{"nothing yet", DesiredChecks{}, 0, "", ""},
		{"a Service comes", DesiredChecks{Within: service.AnyAddress(), Addrs: addrs, Checks: map[uint16]Check{1: web}}, 1, "200 1 " + body("web", 1, true), ""},
		{"another one", DesiredChecks{Within: service.AnyAddress(), Addrs: addrs, Checks: map[uint16]Check{1: web, 2: api}}, 2, "200 1 " + body("web", 1, true), "503 0 " + body("api", 0, true)},
		{"only numbers change", DesiredChecks{Within: service.AnyAddress(), Addrs: addrs, Checks: map[uint16]Check{1: api, 2: web}}, 2, "503 0 " + body("api", 0, true), "200 1 " + body("web", 1, true)},
		{"one goes", DesiredChecks{Within: service.AnyAddress(), Addrs: addrs, Checks: map[uint16]Check{2: web}}, 2, "", "200 1 " + body("web", 1, true)},
		{"it comes again", DesiredChecks{Within: service.AnyAddress(), Addrs: addrs, Checks: map[uint16]Check{1: web, 2: web}}, 3, "200 1 " + body("web", 1, true), "200 1 " + body("web", 1, true)},
		{"no address", DesiredChecks{Within: service.AnyAddress(), Addrs: nil, Checks: map[uint16]Check{1: web, 2: web}}, 3, "", ""},
		{"all go", DesiredChecks{Within: service.AnyAddress(), Addrs: addrs, Checks: nil}, 3, "", ""},
	} {
		problems := s.Sync(step.want)
		kit.Check(t, problems == nil, "%s: problems %v", step.situation, problems)
		kit.Check(t, n.opened == step.opened, "%s: %d listeners opened, want %d", step.situation, n.opened, step.opened)
		got := []string{n.ask(t, "127.0.0.1:1"), n.ask(t, "127.0.0.1:2")}
		kit.Same(t, fmt.Sprintf("%s: (-want +got)", step.situation), []string{step.first, step.second}, got)
		kit.Check(t, len(s.running) == len(step.want.Checks)*len(step.want.Addrs),
			"%s: %d servers run", step.situation, len(s.running))
	}
}

// closing is a listener that signals its Close.
type closing struct {
	net.Listener
	closed *bool
}

func (c closing) Close() error {
	*c.closed = true
	return c.Listener.Close()
}

// After Sync, an address is free for the next process at once.
func TestAddressIsFreeAfterSync(t *testing.T) {
	s, n := newServers(t)
	var closed bool
	s.Listen = func(ctx context.Context, network, addr string) (net.Listener, error) {
		l, err := n.listen(ctx, network, addr)
		return closing{l, &closed}, err
	}
	s.Sync(DesiredChecks{Within: service.AnyAddress(), Addrs: []netip.Addr{loop4}, Checks: map[uint16]Check{7: {}}})
	s.Sync(DesiredChecks{})
	kit.Check(t, closed, "still listening")
}

func TestAddressesOfBothFamilies(t *testing.T) {
	var networks []string
	s := &CheckServers{Listen: func(_ context.Context, network, addr string) (net.Listener, error) {
		networks = append(networks, network+" "+addr)
		return nil, errors.New("refused")
	}}
	s.Sync(DesiredChecks{Within: service.AnyAddress(), Addrs: []netip.Addr{loop4, loop6, netip.IPv6Unspecified()}, Checks: map[uint16]Check{7: {}}})
	kit.Same(t, "(-want +got)", []string{"tcp4 127.0.0.1:7", "tcp6 [::1]:7", "tcp6 [::]:7"}, networks)
}

// wsaeConnReset is the code of Windows. ECONNRESET is no code of Windows:
// https://pkg.go.dev/syscall?GOOS=windows#ECONNRESET
const wsaeConnReset = syscall.Errno(10054)

// isReset returns whether connections that send nothing are reset. A reset that comes before the dial has returned
// may be lost, as in Wine, where the dial takes the error of the socket. So one in some connections is enough.
func isReset(t *testing.T, addr string) bool {
	t.Helper()
	for range 20 {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			_ = c.SetReadDeadline(time.Now().Add(time.Minute))
			_, err = c.Read(make([]byte, 1))
			c.Close()
		}
		if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, wsaeConnReset) {
			return true
		}
	}
	return false
}

// TestNarrowedDown listens on an unspecified address and answers on some addresses, and
// on other ones after a change.
func TestNarrowedDown(t *testing.T) {
	s, n := newServers(t)
	checks := map[uint16]Check{7: {Namespace: "shop", Name: "web", LocalEndpoints: [2]int{1}}}
	for _, tt := range []struct {
		within []string
		hears  bool
	}{
		{[]string{"0.0.0.0/0"}, true},
		{[]string{"192.0.2.0/24"}, false},
		{[]string{"192.0.2.0/24", "127.0.0.0/8"}, true},
		{[]string{"192.0.2.0/24", "fd00::/8"}, false},
		{[]string{"fd00::/8"}, false},
		{nil, false},
	} {
		want := DesiredChecks{Addrs: []netip.Addr{netip.IPv4Unspecified()}, Checks: checks}
		for _, p := range tt.within {
			want.Within = append(want.Within, netip.MustParsePrefix(p))
		}
		s.Sync(want)
		n.bound["own"] = &net.TCPAddr{IP: loop4.AsSlice(), Port: n.bound["0.0.0.0:7"].(*net.TCPAddr).Port}
		kit.Check(t, tt.hears || isReset(t, n.bound["own"].String()),
			"within %s: %s is closed as after an empty answer, want a reset", tt.within, loop4)
		answer := n.ask(t, "own")
		kit.Check(t, (answer != "") == tt.hears, "within %s: %q is answered at %s", tt.within, answer, loop4)
	}
	kit.Check(t, n.opened == 1, "%d listeners opened, want one that stays", n.opened)
}

// With real sockets, an occupied address is a problem of its Service alone, until it is
// free.
func TestPortTaken(t *testing.T) {
	other, err := net.Listen("tcp4", "127.0.0.1:0")
	kit.Must(t, err)
	defer other.Close()
	at := netip.MustParseAddrPort(other.Addr().String())
	s := &CheckServers{}
	t.Cleanup(s.close)
	want := DesiredChecks{Within: service.AnyAddress(), Addrs: []netip.Addr{loop4}, Checks: map[uint16]Check{at.Port(): {Namespace: "shop", Name: "web"}}}
	problems := s.Sync(want)
	kit.Need(t, len(problems) == 1 && problems[0].Addr == at && problems[0].Name == "web" && problems[0].Err != nil,
		"problems = %v, want one of shop/web on %s", problems, at)
	prefix := "health check of service shop/web on " + at.String() + ": listen tcp4 "
	if err := problems[0]; !strings.HasPrefix(err.Error(), prefix) || !errors.Is(err, err.Err) {
		t.Errorf("error = %v, want %s...", err, prefix)
	}
	other.Close()
	if problems := s.Sync(want); problems != nil {
		t.Errorf("problems = %v after the address was free", problems)
	}
}

func TestRetriesAndReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var reports []string
		begin, attempts := time.Now(), 0
		s := &CheckServers{}
		s.Report = func(p CheckProblem) {
			mu.Lock()
			defer mu.Unlock()
			reports = append(reports, fmt.Sprintf("%s %s", time.Since(begin), p.Error()))
		}
		s.Listen = func(context.Context, string, string) (net.Listener, error) {
			attempts++
			if attempts <= 4 {
				return nil, fmt.Errorf("refused for the %d. time", (attempts+1)/2)
			}
			return nil, errors.New("refused for ever")
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { s.Run(ctx); close(done) }()
		checks := map[uint16]Check{30001: {Namespace: "shop", Name: "web"}}
		s.Sync(DesiredChecks{Within: service.AnyAddress(), Addrs: []netip.Addr{loop4}, Checks: checks})
		time.Sleep(time.Minute + time.Second)
		synctest.Wait()
		kit.Check(t, attempts == 13, "%d attempts in a minute, want 13", attempts)
		const where = " health check of service shop/web on 127.0.0.1:30001: refused for "
		want := []string{"0s" + where + "the 1. time", "10s" + where + "the 2. time", "20s" + where + "ever"}
		kit.Same(t, "(-want +got)", want, reports)
		cancel()
		<-done
		if s.Sync(DesiredChecks{Within: service.AnyAddress(), Addrs: []netip.Addr{loop4}, Checks: checks}); attempts != 13 || len(s.Problems()) > 0 {
			t.Errorf("%d attempts, problems %v after the end", attempts, s.Problems())
		}
	})
}

// An address that could not be bound is served later, and that is reported.
func TestHealsItself(t *testing.T) {
	s, n := newServers(t)
	healed := make(chan CheckProblem, 8)
	s.Report = func(p CheckProblem) { healed <- p }
	n.refuse["127.0.0.1:7"] = errors.New("taken")
	s.Sync(DesiredChecks{Within: service.AnyAddress(), Addrs: []netip.Addr{loop4}, Checks: map[uint16]Check{7: {Namespace: "shop", Name: "web"}}})
	if p := <-healed; p.Err == nil || len(s.Problems()) != 1 {
		t.Errorf("reported %v, problems %v", p, s.Problems())
	}
	n.mu.Lock()
	delete(n.refuse, "127.0.0.1:7")
	n.mu.Unlock()
	s.retryMissing()
	if p := <-healed; p.Err != nil || len(s.Problems()) != 0 || n.ask(t, "127.0.0.1:7") == "" {
		t.Errorf("reported %v, problems %v after it was free", p, s.Problems())
	}
}

// A listener that fails is opened again.
func TestBrokenListener(t *testing.T) {
	s, n := newServers(t)
	var first net.Listener
	s.Listen = func(ctx context.Context, network, addr string) (net.Listener, error) {
		l, err := n.listen(ctx, network, addr)
		if first == nil {
			first = l
		}
		return l, err
	}
	s.Sync(DesiredChecks{Within: service.AnyAddress(), Addrs: []netip.Addr{loop4}, Checks: map[uint16]Check{7: {Namespace: "shop", Name: "web"}}})
	ended := s.running[netip.AddrPortFrom(loop4, 7)].ended
	first.Close()
	<-ended
	s.retryMissing()
	got := n.ask(t, "127.0.0.1:7")
	kit.Check(t, n.opened == 2 && got != "", "%d listeners, answer %q; want a second one that answers", n.opened, got)
}

func TestRunStopsEverything(t *testing.T) {
	s, n := newServers(t)
	s.Sync(DesiredChecks{Within: service.AnyAddress(), Addrs: []netip.Addr{loop4}, Checks: map[uint16]Check{7: {LocalEndpoints: [2]int{1}}}})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.Run(ctx)
	kit.Equal(t, n.ask(t, "127.0.0.1:7"), "", "answer after the end")
}

// TestTakenPortChangesHands reports a port that stays taken for each Service that wants it, once.
func TestTakenPortChangesHands(t *testing.T) {
	s, n := newServers(t)
	n.refuse["127.0.0.1:7"] = errors.New("taken")
	var reports []string
	s.Report = func(p CheckProblem) { reports = append(reports, p.Namespace+"/"+p.Name) }
	for _, c := range []Check{{Namespace: "shop", Name: "web"}, {Namespace: "shop", Name: "web"}, {Namespace: "shop", Name: "api"}, {Namespace: "test", Name: "api"}} {
		s.Sync(DesiredChecks{Within: service.AnyAddress(), Addrs: []netip.Addr{loop4}, Checks: map[uint16]Check{7: c}})
	}
	want := []string{"shop/web", "shop/api", "test/api"}
	kit.Check(t, slices.Equal(reports, want), "reported %q, want %q", reports, want)
}
