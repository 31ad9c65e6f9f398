// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package servicestate

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"kubeproxy/common/health"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/test/kit"
)

func TestWhyFrontendsServeNobody(t *testing.T) {
	vip := service.Frontend{Kind: service.ClusterIP, Addr: netip.MustParseAddr("10.96.0.1"), Port: 80}
	nodePort := service.Frontend{Kind: service.NodePort, Port: 30001}
	lb := service.Frontend{Kind: service.LoadBalancerIP, Addr: netip.MustParseAddr("192.0.2.1"), Port: 80, Sources: []netip.Prefix{}}
	for name, tt := range map[string]struct {
		endpoints int
		set       func(*service.Port)
		want      []Frontend
	}{
		"at no address": {2, func(*service.Port) {}, []Frontend{
			{"ClusterIP", "10.96.0.1", 80, 2, "Cluster", "", ""},
			{"NodePort", "", 30001, 2, "Cluster", NoAddress, "nodePortAddresses 10.9.0.0/16 has none of 192.0.2.10"},
			{"LoadBalancerIP", "192.0.2.1", 80, 2, "Cluster", NoSources, ""},
		}},
		"served": {2, func(*service.Port) {}, []Frontend{
			{"ClusterIP", "10.96.0.1", 80, 2, "Cluster", "", ""},
			{"NodePort", "", 30001, 2, "Cluster", "", ""},
			{"LoadBalancerIP", "192.0.2.1", 80, 2, "Cluster", NoSources, ""},
		}},
		"no endpoints": {0, func(p *service.Port) { p.External = service.PolicyLocal }, []Frontend{
			{"ClusterIP", "10.96.0.1", 80, 0, "Cluster", NoEndpoints, ""},
			{"NodePort", "", 30001, 0, "Local", NoEndpoints, ""},
			{"LoadBalancerIP", "192.0.2.1", 80, 0, "Local", NoEndpoints, ""},
		}},
		"none on this node": {2, func(p *service.Port) { p.External = service.PolicyLocal }, []Frontend{
			{"ClusterIP", "10.96.0.1", 80, 2, "Cluster", "", ""},
			{"NodePort", "", 30001, 0, "Local", PolicyLeftNone, ""},
			{"LoadBalancerIP", "192.0.2.1", 80, 0, "Local", PolicyLeftNone, ""},
		}},
		"one on this node": {2, func(p *service.Port) { p.External, p.Local = service.PolicyLocal, p.Cluster[:1] }, []Frontend{
			{"ClusterIP", "10.96.0.1", 80, 2, "Cluster", "", ""},
			{"NodePort", "", 30001, 1, "Local", "", ""},
			{"LoadBalancerIP", "192.0.2.1", 80, 1, "Local", NoSources, ""},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p := port("web", service.IPv4, tt.endpoints)
			p.Frontends = []service.Frontend{vip, nodePort, lb}
			tt.set(p)
			b := newScenario()
			b.setWanted(p)
			if name == "at no address" {
				b.want.Node.NodePorts = []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")}
				b.Addresses = func() []netip.Addr { return []netip.Addr{netip.MustParseAddr("192.0.2.10")} }
			}
			b.round(service.IPv4, nil)
			n := b.Summary().Unserved[NoAddress]
			kit.Check(t, (n == 1) == (b.Addresses != nil), "%d Services at no address", n)
			got := b.All()[0].Ports[0]
			kit.Same(t, "(-want +got)", tt.want, got.Frontends)
			kit.Check(t, got.Endpoints == tt.endpoints && got.LocalEndpoints == min(tt.endpoints, 1),
				"%d endpoints, %d local", got.Endpoints, got.LocalEndpoints)
		})
	}
}

func TestSkippedServices(t *testing.T) {
	b := newScenario()
	b.setWanted(port("web", service.IPv4, 1))
	b.round(service.IPv4, nil)
	b.Problems = func() []track.Problem {
		return []track.Problem{
			{Kind: track.OfNode, Field: "metadata.labels", Message: "of the node"},
			{Service: types.NamespacedName{Namespace: "shop", Name: "bad"}, Field: "spec.clusterIPs[0]", Message: "is a loopback address"},
			{Service: types.NamespacedName{Namespace: "shop", Name: "web"}, Field: "spec.externalIPs[1]", Message: "belongs to shop/api"},
		}
	}
	b.ProblemFound(b.Problems()[2], at(9))
	kit.Check(t, !b.All()[0].Problems[0].Since.Before(begin), "a problem nobody noticed has no time")
	b.ProblemFound(b.Problems()[1], at(3))
	if diff := cmp.Diff(Summary{
		States:   map[State]int{Programmed: 1, Removing: 0, Limited: 0, Pending: 0, Failed: 0, Skipped: 1},
		Unserved: map[Reason]int{NoAddress: 0, NoEndpoints: 0, PolicyLeftNone: 0, NoSources: 0, NotReached: 0, UnsupportedByMode: 0}, Problems: 2,
	}, b.Summary()); diff != "" {
		t.Errorf("summary (-want +got):\n%s", diff)
	}
	var got []Service
	for _, s := range b.All() {
		s.Ports = nil
		got = append(got, s)
	}
	want := []Service{
		{Namespace: "shop", Name: "bad", State: Skipped, Problems: []FieldError{{Field: "spec.clusterIPs[0]", Message: "is a loopback address", Since: at(3)}}},
		{Namespace: "shop", Name: "web", State: Programmed, Problems: []FieldError{{Field: "spec.externalIPs[1]", Message: "belongs to shop/api", Since: at(9)}}},
	}
	kit.Same(t, "(-want +got)", want, got)
}

func TestHandler(t *testing.T) {
	b := newScenario()
	other := port("web", service.IPv4, 1)
	other.Name.Namespace = "test"
	web := port("web", service.IPv4, 1)
	web.Frontends = []service.Frontend{{Kind: service.ClusterIP, Addr: netip.MustParseAddr("10.96.0.1"), Port: 80}}
	b.setWanted(web, port("api", service.IPv4, 1), other)
	b.round(service.IPv4, nil)
	h := b.Handler(func() ProxyInfo {
		return ProxyInfo{Mode: "nftables", Node: "n1", Version: "v1", Started: begin, Health: health.Report{Healthy: true, CurrentTime: time.Unix(0, 0).UTC()}}
	})
	for path, want := range map[string]string{
		"/services":          "200 shop/api shop/web test/web",
		"/services/":         "200 shop/api shop/web test/web",
		"/services/shop":     "200 shop/api shop/web",
		"/services/none":     "200",
		"/services/test/web": "200 test/web",
		"/services/shop/x":   "404",
		"/services/a/b/c":    "404",
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		var a Response
		json.Unmarshal(w.Body.Bytes(), &a)
		got := strings.Fields(w.Result().Status)[0]
		for _, s := range a.Services {
			got += " " + s.Namespace + "/" + s.Name
		}
		kit.Check(t, got == want, "%s = %s, want %s", path, got, want)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/services/shop/web", nil))
	const want = `{"mode":"nftables","node":"n1","version":"v1","started":"2026-07-01T12:00:00Z","generation":1,` +
		`"health":{"lastUpdated":"0001-01-01T00:00:00Z","currentTime":"1970-01-01T00:00:00Z","healthy":true,"status":null},"endpoints":0,` +
		`"services":[{"namespace":"shop","name":"web","state":"programmed","ports":[` +
		`{"protocol":"tcp","family":"IPv4","state":"programmed","generation":1,"since":"2026-07-01T12:00:01Z",` +
		`"frontends":[{"kind":"ClusterIP","address":"10.96.0.1","port":80,"endpoints":1,"policy":"Cluster"}],"endpoints":1,"localEndpoints":1}]}]}` + "\n"
	kit.Same(t, "(-want +got)", want, w.Body.String())
	w = httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/services/shop/x", nil))
	kit.Check(t, strings.HasPrefix(w.Body.String(), `{"error":"service shop/x is not known here: `),
		"body = %s", w.Body)
}

// TestHandlerOfMany sorts many Services, names ports, and lists endpoints for one Service alone.
func TestHandlerOfMany(t *testing.T) {
	b := newScenario()
	var ports []*service.Port
	var want []string
	for i := range 50 {
		p := port(fmt.Sprintf("s%02d", i), service.IPv4, 1)
		p.Name.Port = "http"
		ports, want = append(ports, p), append(want, p.Name.Name)
	}
	b.setWanted(ports...)
	b.Endpoints = func(_ service.Family, n service.PortName) track.Choice {
		return track.Choice{
			Candidates: []track.Candidate{{Listed: track.Listed{Address: n.Name}}},
			Missed:     "slice a has 1", Left: []netip.AddrPort{netip.MustParseAddrPort("203.0.113.9:80")},
		}
	}
	h := b.Handler(func() ProxyInfo { return ProxyInfo{} })
	for path, listed := range map[string]bool{"/services": false, "/services/shop": false, "/services/shop/s07": true} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		var a Response
		kit.Must(t, json.Unmarshal(w.Body.Bytes(), &a))
		var got []string
		for _, s := range a.Services {
			got = append(got, s.Name)
			if p := s.Ports[0]; p.Port != "http" || (len(p.EndpointList) > 0) != listed {
				t.Errorf("%s: port %q with %d endpoints listed", path, p.Port, len(p.EndpointList))
			} else if left := slices.ContainsFunc(p.Frontends, func(f Frontend) bool { return f.Reason == LeftAlone }); left != listed || (p.Missed != "") != listed {
				t.Errorf("%s: frontends %+v, missed %q", path, p.Frontends, p.Missed)
			}
		}
		kit.Check(t, listed || slices.Equal(got, want), "%s: %q", path, got)
	}
}

// Before the first snapshot the answer is an empty list.
func TestHandlerKnowsNothing(t *testing.T) {
	w := httptest.NewRecorder()
	(&Store{}).Handler(func() ProxyInfo { return ProxyInfo{} }).ServeHTTP(w, httptest.NewRequest("GET", "/services", nil))
	kit.Check(t, strings.HasSuffix(w.Body.String(), `"services":[]}`+"\n"), "body = %s", w.Body)
	w = httptest.NewRecorder()
	(&Store{}).Handler(nil).ServeHTTP(w, httptest.NewRequest("GET", "/services/shop/web", nil))
	kit.Check(t, w.Code == 404 && strings.Contains(w.Body.String(), "no Service is known yet"),
		"one Service: %d, %s", w.Code, w.Body)
}

func TestSummaryCountsUnserved(t *testing.T) {
	b := newScenario()
	vip := service.Frontend{Kind: service.ClusterIP, Addr: netip.MustParseAddr("10.96.0.1"), Port: 80}
	dead, here, shut := port("dead", service.IPv4, 0), port("here", service.IPv4, 2), port("shut", service.IPv4, 1)
	here.Internal = service.PolicyLocal
	dead.Frontends, here.Frontends, shut.Frontends = []service.Frontend{vip, vip}, []service.Frontend{vip}, []service.Frontend{vip}
	shut.Frontends[0].Sources = []netip.Prefix{}
	b.setWanted(dead, here, shut)
	want := map[Reason]int{NoAddress: 0, NoEndpoints: 1, PolicyLeftNone: 1, NoSources: 1, NotReached: 0, UnsupportedByMode: 0}
	kit.Same(t, "(-want +got)", want, b.Summary().Unserved)
}

// BenchmarkSummary counts 10,000 Services, as each scrape does.
func BenchmarkSummary(b *testing.B) {
	store, _ := many()
	b.ReportAllocs()
	for b.Loop() {
		store.Summary()
	}
}

// TestRelayed lets connections fail and succeed, and endpoints go.
func TestRelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var detail string
		logged := 0
		b := newScenario()
		b.Relayed = &Relayed{Condition: func(_, text string) { detail = text }, Log: func(service.Family, service.PortName, string) { logged++ }}
		web := port("web", service.IPv4, 2)
		web.Frontends = []service.Frontend{{Kind: service.ClusterIP, Addr: netip.MustParseAddr("10.96.0.1"), Port: 80}}
		first, second := web.Cluster[0].Addr, web.Cluster[1].Addr
		refused := errors.Join(errors.New("dial"), syscall.ECONNREFUSED)
		fails := func(endpoints ...netip.AddrPort) {
			for _, e := range append(endpoints, netip.AddrPort{}) {
				b.Relayed.Attempted(service.IPv4, web.Name, e, refused)
			}
		}
		expect := func(situation, reason string, failed, unserved, logs int) {
			t.Helper()
			b.round(service.IPv4, nil)
			f := b.All()[0].Ports[0].Frontends[0]
			_, all := b.Relayed.Of(service.IPv4, web.Name)
			if f.Why != reason || (f.Reason == NotReached) != (reason != "") || len(all) != failed || logged != logs || (detail == "") != (reason == "") {
				t.Errorf("%s: frontend %+v, %d failed endpoints, %d logs, condition %q; want %q, %d, %d", situation, f, len(all), logged, detail, reason, failed, logs)
			}
			n := b.Summary().Unserved[NotReached]
			kit.Check(t, n == unserved, "%s: %d Services reach nothing, want %d", situation, n, unserved)
		}
		b.setWanted(web)
		b.Relayed.Attempted(service.IPv4, web.Name, first, nil)
		expect("all is well", "", 0, 0, 0)
		b.Relayed.Attempted(service.IPv4, web.Name, first, refused)
		b.Relayed.Attempted(service.IPv4, web.Name, second, nil)
		expect("one endpoint is passed over", "", 1, 0, 0)
		fails(first, second)
		expect("both fail", "the last connection reached no endpoint: connection refused", 2, 1, 1)
		fails(first, second)
		expect("again", "the last 2 connections reached no endpoint: connection refused", 2, 1, 1)
		kit.Same(t, "condition (-want +got)", "connections to Services reach no endpoint: "+web.Name.String()+" (tcp, IPv4): connection refused", detail)
		time.Sleep(2 * quiet)
		fails(first, second)
		expect("for long", "the last 3 connections reached no endpoint: connection refused", 2, 1, 1)
		b.Relayed.Attempted(service.IPv4, web.Name, second, nil)
		expect("one is back", "", 1, 0, 1)
		for _, e := range []netip.AddrPort{second, {}} {
			b.Relayed.Attempted(service.IPv4, web.Name, e, tooLate{refused})
		}
		expect("one that began before it fails late", "", 1, 0, 1)
		left := *web
		left.Cluster, left.Draining = web.Cluster[1:], web.Cluster[:1]
		b.setWanted(&left)
		expect("the other gets no connections", "", 0, 0, 1)
		b.setWanted(web)
		fails(first, second)
		expect("a second fault", "the last connection reached no endpoint: connection refused", 2, 1, 2)
		replaced := port("web", service.IPv4, 2)
		replaced.Frontends, replaced.Cluster = web.Frontends, []service.Endpoint{{Addr: netip.MustParseAddrPort("10.244.9.9:80")}}
		b.setWanted(replaced)
		expect("the endpoints are gone", "", 0, 0, 2)
		kit.Same(t, "total (-want +got)", map[service.Family]uint64{service.IPv4: 5, service.IPv6: 0}, b.Relayed.Totals())
	})
}

type tooLate struct{ error }

func (tooLate) Late() {}

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
		all := b.All()
		kit.Check(t, len(all) == 2, "%s is ahead: %d Services, want both", ahead, len(all))
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
	n := len(b.families[service.IPv4].activations)
	kit.Check(t, n == 1, "%d marks for one port that changed", n)
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
	got := round(nil, errRefused)
	kit.Check(t, len(got) == 2, "notes %q after a round that did nothing", got)
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
	n := b.Summary().States
	kit.Check(t, n[Programmed] == 1 && n[Skipped] == 1, "counted %v, want one programmed and one skipped", n)
}
