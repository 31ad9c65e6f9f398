// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package servicestate

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

var (
	errRefused = errors.New("refused")
	begin      = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
)

func at(seconds int) time.Time { return begin.Add(time.Duration(seconds) * time.Second) }

func port(name string, f service.Family, endpoints int) *service.Port {
	p := &service.Port{Name: service.PortName{Namespace: "shop", Name: name, Protocol: service.TCP}, Family: f}
	for i := range endpoints {
		addr := netip.AddrFrom4([4]byte{10, 1, 0, byte(i + 1)})
		p.Cluster = append(p.Cluster, service.Endpoint{Addr: netip.AddrPortFrom(addr, 80), Local: i == 0})
	}
	return p
}

func failed(ports ...*service.Port) error {
	var errs []error
	for _, p := range ports {
		errs = append(errs, &reconcile.PortError{Family: p.Family, Name: p.Name, Err: errRefused})
	}
	return errors.Join(errs...)
}

// scenario drives a Store, one second per round.
type scenario struct {
	Store
	seconds int
	want    *service.Snapshot
}

func newScenario() *scenario {
	b := &scenario{}
	b.Latest = func() *service.Snapshot { return b.want }
	return b
}

// setWanted sets the next desired snapshot.
func (sc *scenario) setWanted(ports ...*service.Port) {
	generation := uint64(1)
	if sc.want != nil {
		generation = sc.want.Generation + 1
	}
	sc.want = service.New(generation, &service.Node{NodePorts: service.AnyAddress()}, ports)
}

// round records a round one second after the last one.
func (sc *scenario) round(f service.Family, err error) {
	sc.seconds++
	sc.Result(f, reconcile.Result{Snapshot: sc.want, Generation: sc.want.Generation, Start: at(sc.seconds).Add(-time.Second), Took: time.Second, Outcome: reconcile.Outcome{Err: err}})
}

// lines describes the state of every port, one per line.
func (sc *scenario) lines() string {
	var text strings.Builder
	for _, s := range sc.All() {
		fmt.Fprintf(&text, "%s/%s %s\n", s.Namespace, s.Name, s.State)
		for _, p := range s.Ports {
			fmt.Fprintf(&text, "  %s %s", p.Family, p.State)
			if p.Since != nil {
				fmt.Fprintf(&text, " generation %d at %d", p.Generation, int(p.Since.Sub(begin).Seconds()))
			}
			if p.FailingSince != nil {
				fmt.Fprintf(&text, ": %s since %d", p.Error, int(p.FailingSince.Sub(begin).Seconds()))
			}
			text.WriteByte('\n')
		}
	}
	return text.String()
}

// checkSummary compares the Summary with the described states.
func (sc *scenario) checkSummary(t *testing.T) {
	t.Helper()
	want := Summary{States: map[State]int{}, Unserved: map[Reason]int{}}
	for _, s := range states {
		want.States[s] = 0
	}
	for _, r := range reasons {
		want.Unserved[r] = 0
	}
	for _, s := range sc.All() {
		want.States[s.State]++
	}
	kit.Same(t, "summary (-described +counted)", want, sc.Summary())
}

// scenarioCase is a story and the expected state at its end.
type scenarioCase struct {
	story func(*scenario)
	want  string
}

func runScenarios(t *testing.T, all map[string]scenarioCase) {
	for name, tt := range all {
		t.Run(name, func(t *testing.T) {
			b := newScenario()
			tt.story(b)
			b.checkSummary(t)
			kit.Same(t, "(-want +got)", tt.want, b.lines())
		})
	}
}

func TestStates(t *testing.T) {
	web, api := port("web", service.IPv4, 1), port("api", service.IPv4, 1)
	newer := port("web", service.IPv4, 2)
	v4 := service.IPv4
	runScenarios(t, map[string]scenarioCase{
		"nothing known":    {func(*scenario) {}, ""},
		"before any round": {func(b *scenario) { b.setWanted(web) }, "shop/web pending\n  IPv4 pending\n"},
		"programmed":       {func(b *scenario) { b.setWanted(web); b.round(v4, nil) }, "shop/web programmed\n  IPv4 programmed generation 1 at 1\n"},
		"what does not change keeps its time": {
			func(b *scenario) {
				b.setWanted(web)
				b.round(v4, nil)
				b.setWanted(web, api)
				b.round(v4, nil)
				b.round(v4, nil)
			},
			"shop/api programmed\n  IPv4 programmed generation 2 at 2\nshop/web programmed\n  IPv4 programmed generation 1 at 1\n",
		},
		"what changes has a new one": {
			func(b *scenario) { b.setWanted(web); b.round(v4, nil); b.setWanted(newer); b.round(v4, nil) },
			"shop/web programmed\n  IPv4 programmed generation 2 at 2\n",
		},
		"a newer one waits": {
			func(b *scenario) { b.setWanted(web); b.round(v4, nil); b.setWanted(newer) },
			"shop/web pending\n  IPv4 pending generation 1 at 1\n",
		},
		"and could not be programmed": {
			func(b *scenario) {
				b.setWanted(web, api)
				b.round(v4, nil)
				b.setWanted(newer, api)
				b.round(v4, errRefused)
				b.round(v4, errRefused)
			},
			"shop/api programmed\n  IPv4 programmed generation 1 at 1\nshop/web failed\n  IPv4 failed generation 1 at 1: refused since 1\n",
		},
		"a failure is forgotten after a success": {
			func(b *scenario) { b.setWanted(web); b.round(v4, errRefused); b.round(v4, nil); b.setWanted(newer) },
			"shop/web pending\n  IPv4 pending generation 1 at 2\n",
		},
		"until it could": {
			func(b *scenario) { b.setWanted(web); b.round(v4, errRefused); b.round(v4, nil) },
			"shop/web programmed\n  IPv4 programmed generation 1 at 2\n",
		},
	})
}

func TestStatesOfSome(t *testing.T) {
	web, web6, api := port("web", service.IPv4, 1), port("web", service.IPv6, 1), port("api", service.IPv4, 1)
	v4 := service.IPv4
	runScenarios(t, map[string]scenarioCase{
		"one port fails": {
			func(b *scenario) { b.setWanted(web, api); b.round(v4, failed(web)); b.round(v4, failed(web)) },
			"shop/api programmed\n  IPv4 programmed generation 1 at 1\nshop/web failed\n  IPv4 failed: refused since 0\n",
		},
		"and comes right in the same snapshot": {
			func(b *scenario) { b.setWanted(web, api); b.round(v4, failed(web)); b.round(v4, nil); b.round(v4, nil) },
			"shop/api programmed\n  IPv4 programmed generation 1 at 1\nshop/web programmed\n  IPv4 programmed generation 1 at 2\n",
		},
		"and goes": {
			func(b *scenario) { b.setWanted(web, api); b.round(v4, failed(web)); b.setWanted(api); b.round(v4, nil) },
			"shop/api programmed\n  IPv4 programmed generation 1 at 1\n",
		},
		"one family only": {
			func(b *scenario) { b.setWanted(web, web6); b.round(v4, nil) },
			"shop/web pending\n  IPv4 programmed generation 1 at 1\n  IPv6 pending\n",
		},
		"the other family fails": {
			func(b *scenario) { b.setWanted(web, web6); b.round(v4, nil); b.round(service.IPv6, errRefused) },
			"shop/web failed\n  IPv4 programmed generation 1 at 1\n  IPv6 failed: refused since 1\n",
		},
		"one family waits, the other does not": {
			func(b *scenario) { b.setWanted(web, web6); b.round(service.IPv6, nil) },
			"shop/web pending\n  IPv4 pending\n  IPv6 programmed generation 1 at 1\n",
		},
		"not wanted, but in force": {
			func(b *scenario) { b.setWanted(web, api); b.round(v4, nil); b.setWanted(api) },
			"shop/api programmed\n  IPv4 programmed generation 1 at 1\nshop/web removing\n  IPv4 removing generation 1 at 1\n",
		},
	})
}

// Without Latest, only the snapshots of rounds are known.
func TestWithoutLatest(t *testing.T) {
	b := newScenario()
	b.setWanted(port("web", service.IPv4, 1))
	b.round(service.IPv4, nil)
	for _, latest := range []func() *service.Snapshot{nil, func() *service.Snapshot { return nil }} {
		b.Latest = latest
		if want := "shop/web programmed\n  IPv4 programmed generation 1 at 1\n"; b.lines() != want {
			t.Errorf("lines = %s, want %s", b.lines(), want)
		}
	}
}

// TestNewestOfFamilies has the family describe that is furthest, whichever that is.
func TestNewestOfFamilies(t *testing.T) {
	for _, ahead := range service.Families {
		b := newScenario()
		b.setWanted(port("web", service.IPv4, 1))
		b.round(service.IPv4, nil)
		b.round(service.IPv6, nil)
		b.setWanted(port("web", service.IPv4, 1), port("api", service.IPv4, 1))
		b.round(ahead, nil)
		b.Latest = nil
		if all := b.All(); len(all) != 2 {
			t.Errorf("%s is ahead: %d Services, want both", ahead, len(all))
		}
	}
}

func TestFailing(t *testing.T) {
	b := newScenario()
	web := port("web", service.IPv4, 1)
	b.setWanted(web, port("api", service.IPv4, 1))
	b.round(service.IPv4, failed(web))
	if !b.Failing("shop", "web") || b.Failing("shop", "api") || b.Failing("x", "web") {
		t.Errorf("failing: web %v, api %v", b.Failing("shop", "web"), b.Failing("shop", "api"))
	}
	if b.round(service.IPv4, nil); b.Failing("shop", "web") {
		t.Error("web still fails after a good round")
	}
}

// Ports that are added and removed leave no activations behind.
func TestActivationsFollowPorts(t *testing.T) {
	b := newScenario()
	fixed := port("fixed", service.IPv4, 1)
	for i := range 100 {
		b.setWanted(fixed, port("web", service.IPv4, i%3))
		b.round(service.IPv4, nil)
	}
	if n := len(b.families[service.IPv4].activations); n != 1 {
		t.Errorf("%d marks for one port that changed", n)
	}
	b.setWanted(fixed)
	if b.round(service.IPv4, nil); len(b.families[service.IPv4].activations) != 0 {
		t.Errorf("marks %v for ports that never changed", b.families[service.IPv4].activations)
	}
}

// many returns a Store with 10,000 ports of 10 endpoints in force.
func many() (*Store, *service.Snapshot) {
	var ports []*service.Port
	for i := range 10000 {
		ports = append(ports, port(fmt.Sprintf("s%05d", i), service.IPv4, 10))
	}
	b, s := &Store{}, service.New(1, &service.Node{NodePorts: service.AnyAddress()}, ports)
	b.Result(service.IPv4, reconcile.Result{Snapshot: s, Generation: 1})
	return b, s
}

// BenchmarkOneChange records a round for one port of 10,000.
func BenchmarkOneChange(b *testing.B) {
	store, s := many()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		name := service.PortName{Namespace: "shop", Name: fmt.Sprintf("s%05d", i*7919%10000), Protocol: service.TCP}
		next := port(name.Name, service.IPv4, 9)
		s = s.With(s.Generation+1, s.Node, []service.Change{{Old: s.Port(service.IPv4, name), New: next}})
		store.Result(service.IPv4, reconcile.Result{Snapshot: s, Generation: s.Generation})
	}
}

// BenchmarkAll answers /services with 10,000 Services.
func BenchmarkAll(b *testing.B) {
	store, _ := many()
	h := store.Handler(func() ProxyInfo { return ProxyInfo{} })
	b.ReportAllocs()
	for b.Loop() {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/services", nil))
		b.SetBytes(int64(w.Body.Len()))
	}
}

// BenchmarkOne answers for one Service of 10,000.
func BenchmarkOne(b *testing.B) {
	store, _ := many()
	h := store.Handler(func() ProxyInfo { return ProxyInfo{} })
	b.ReportAllocs()
	for b.Loop() {
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/services/shop/s05000", nil))
	}
}

// A limit of a mode is reported for the affected address only. The rest of the Service is
// in force and does not count as failed.
func TestLimits(t *testing.T) {
	web := port("web", service.IPv4, 1)
	vip := service.Frontend{Kind: service.ClusterIP, Addr: netip.MustParseAddr("10.96.0.1"), Port: 80}
	lb := service.Frontend{Kind: service.LoadBalancerIP, Addr: netip.MustParseAddr("203.0.113.5"), Port: 80}
	web.Frontends = []service.Frontend{vip, lb}
	about := func(err error) error {
		return errors.Join(&reconcile.PortError{Family: web.Family, Name: web.Name, Err: err})
	}
	no := func(lost ...service.Frontend) error {
		return errors.Join(&reconcile.UnsupportedError{Text: "cannot", Affected: lost})
	}
	for name, tt := range map[string]struct {
		err     error
		want    string
		reasons []Reason
		failing bool
	}{
		"an address": {about(no(lb)), "limited", []Reason{"", UnsupportedByMode}, true},
		"a detail":   {about(no()), "limited", []Reason{"", ""}, false},
		"another":    {about(no(vip)), "limited", []Reason{UnsupportedByMode, ""}, false},
		"for now":    {about(errors.Join(&reconcile.DegradedError{Err: errRefused}, no())), "limited", []Reason{"", ""}, false},
		"and worse":  {about(errors.Join(no(vip), errRefused)), "failed", []Reason{UnsupportedByMode, ""}, true},
		"none":       {nil, "programmed", []Reason{"", ""}, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newScenario()
			b.setWanted(web)
			b.round(service.IPv4, tt.err)
			b.round(service.IPv4, tt.err)
			s := b.All()[0]
			if string(s.State) != tt.want || b.Summary().States[s.State] != 1 || b.Failing("shop", "web") != tt.failing {
				t.Errorf("%s, failing %v; want %s, %v", s.State, b.Failing("shop", "web"), tt.want, tt.failing)
			}
			for i, f := range s.Ports[0].Frontends {
				if f.Reason != tt.reasons[i] {
					t.Errorf("%s: %q, want %q", f.Address, f.Reason, tt.reasons[i])
				}
			}
			if p := s.Ports[0]; (p.Since == nil) != (tt.want == "failed") || p.Since != nil && !p.Since.Equal(at(1)) {
				t.Errorf("in force since %v, want the end of the first round", p.Since)
			}
		})
	}
}

// Notes appear when they are in force, and disappear with them.
func TestNotes(t *testing.T) {
	b := newScenario()
	web := port("web", service.IPv4, 1)
	b.setWanted(web)
	round := func(n reconcile.Notes, err error) []string {
		b.Result(service.IPv4, reconcile.Result{Snapshot: b.want, Generation: 1, Start: begin, Took: time.Second, Outcome: reconcile.Outcome{Notes: n, Err: err}})
		return b.All()[0].Ports[0].Notes
	}
	some := reconcile.Notes{web.Name: {{Text: "no timeout"}, {Text: "no reject", Transient: true}}}
	kit.Same(t, "(-want +got)", []string{"no timeout", "no reject"}, round(some, nil))
	if got := round(nil, errRefused); len(got) != 2 {
		t.Errorf("notes %q after a round that did nothing", got)
	}
	if got := round(nil, nil); got != nil {
		t.Errorf("notes %q, want none any more", got)
	}
}

// TestUnavailableFamily checks that a Service shows why one family is unavailable, and
// that the other family determines its state.
func TestUnavailableFamily(t *testing.T) {
	for name, known := range map[string]func(*Store, *service.Snapshot){
		"from the start": func(b *Store, _ *service.Snapshot) {
			b.Unavailable = map[service.Family]string{service.IPv6: "the kernel has no IPv6"}
		},
		"by a round": func(b *Store, s *service.Snapshot) {
			b.Result(service.IPv6, reconcile.Result{Snapshot: s, Generation: 1, Start: at(0), Outcome: reconcile.Outcome{Unavailable: "the kernel has no IPv6"}})
		},
	} {
		t.Run(name, func(t *testing.T) { checkUnavailable(t, known) })
	}
}

func checkUnavailable(t *testing.T, known func(*Store, *service.Snapshot)) {
	t.Helper()
	s := service.New(1, &service.Node{NodePorts: service.AnyAddress()}, []*service.Port{port("both", service.IPv4, 1), port("both", service.IPv6, 1), port("six", service.IPv6, 1)})
	b := &Store{Latest: func() *service.Snapshot { return s }}
	known(b, s)
	b.Result(service.IPv4, reconcile.Result{Snapshot: s, Generation: 1, Start: at(0), Took: time.Second})
	want := map[string]State{"both": Programmed, "six": Skipped}
	for _, x := range b.All() {
		if x.State != want[x.Name] {
			t.Errorf("%s is %s, want %s", x.Name, x.State, want[x.Name])
		}
		last := x.Ports[len(x.Ports)-1]
		if last.Family != "IPv6" || last.State != Skipped || last.Error != "the kernel has no IPv6" || last.Since != nil {
			t.Errorf("%s: %+v, want IPv6 skipped with the reason", x.Name, last)
		}
	}
	if n := b.Summary().States; n[Programmed] != 1 || n[Skipped] != 1 {
		t.Errorf("counted %v, want one programmed and one skipped", n)
	}
}
