// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package servicestate

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"k8s.io/apimachinery/pkg/types"

	"kubeproxy/common/health"
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
			if n := b.Summary().Unserved[NoAddress]; (n == 1) != (b.Addresses != nil) {
				t.Errorf("%d Services at no address", n)
			}
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
		`"health":{"lastUpdated":"0001-01-01T00:00:00Z","currentTime":"1970-01-01T00:00:00Z","healthy":true,"status":null},` +
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
