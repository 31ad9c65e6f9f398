// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package trafficview

import (
	"bytes"
	"context"
	"fmt"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"kubeproxy/common/health"
	"kubeproxy/common/health/servicestate"
	"kubeproxy/common/service"
	"kubeproxy/common/statusview"
	"kubeproxy/common/traffic"
	"kubeproxy/test/kit"
)

// shop is a dataplane with two Services, which carry more at each reading.
type shop struct{ reads uint64 }

func (*shop) Kinds() traffic.Kinds { return traffic.Kinds{Bytes: true} }

func (s *shop) Read(context.Context, *service.Snapshot) ([]traffic.Sample, error) {
	s.reads++
	n := 1000 * (s.reads - 1)
	return []traffic.Sample{
		{Counter: counter("web", "10.244.0.1:8080"), Counts: traffic.Counts{Connections: n, BytesIn: 20 * n, BytesOut: 3000 * n}},
		{Counter: counter("web", "10.244.0.2:8080"), Counts: traffic.Counts{Connections: 2 * n}},
		{Counter: counter("db", "10.244.0.3:5432"), Counts: traffic.Counts{Connections: 1}},
	}, nil
}

func name(s string) service.PortName {
	return service.PortName{Namespace: "shop", Name: s, Port: "main", Protocol: service.TCP}
}

func counter(s, endpoint string) traffic.Counter {
	return traffic.Counter{Name: name(s), Endpoint: netip.MustParseAddrPort(endpoint)}
}

func port(s string, endpoints ...string) *service.Port {
	p := &service.Port{Name: name(s)}
	for _, e := range endpoints {
		p.Cluster = append(p.Cluster, service.Endpoint{Addr: netip.MustParseAddrPort(e)})
	}
	return p
}

// serve serves s as the metrics server does, and returns its address.
func serve(t *testing.T, s *Server) string {
	t.Helper()
	admin := health.Admin{Mode: s.Mode, Traffic: s.Handler()}
	if s.Collector != nil {
		store := servicestate.Store{Latest: s.Collector.Latest}
		admin.Services = store.Handler(func() servicestate.ProxyInfo {
			return servicestate.ProxyInfo{Health: health.Report{Status: map[string]health.FamilyReport{}}}
		})
	}
	h := httptest.NewServer(admin.Handler())
	t.Cleanup(h.Close)
	return strings.TrimPrefix(h.URL, "http://")
}

func shopServer() *Server {
	want := service.New(1, &service.Node{}, []*service.Port{port("web", "10.244.0.1:8080", "10.244.0.2:8080"), port("db", "10.244.0.3:5432"), port("idle")})
	silent := func() []servicestate.SilentEndpoint {
		return []servicestate.SilentEndpoint{{PortEndpoint: servicestate.PortEndpoint{Namespace: "shop", Name: "web"}}, {PortEndpoint: servicestate.PortEndpoint{Namespace: "shop", Name: "db"}}, {PortEndpoint: servicestate.PortEndpoint{Namespace: "other", Name: "db"}}}
	}
	ended := func() []servicestate.EndedConnections {
		return []servicestate.EndedConnections{{PortEndpoint: servicestate.PortEndpoint{Namespace: "shop", Name: "web"}}, {PortEndpoint: servicestate.PortEndpoint{Namespace: "shop", Name: "db"}}}
	}
	return &Server{Mode: "userspace", Node: "node-a", Silent: silent, Ended: ended, Collector: &traffic.Collector{
		Latest: func() *service.Snapshot { return want }, Readers: map[service.Family]traffic.Reader{service.IPv4: &shop{}},
	}}
}

// TestFollow asks a proxy until there are three readings, the first of which has nothing.
func TestFollow(t *testing.T) {
	q := &Query{Query: statusview.Query{Server: serve(t, shopServer())}, Timeout: time.Minute, Interval: time.Millisecond, Endpoints: true}
	var all []*Answer
	err := q.Follow(t.Context(), func(a *Answer) (bool, error) {
		all = append(all, a)
		return len(all) < 2, nil
	})
	kit.Need(t, err == nil && len(all) == 2, "%d answers, %v", len(all), err)
	a := all[1]
	kit.Check(t, a.Services[0].Name == "web" && a.Services[0].Connections == 6000 && a.Services[0].Endpoints[0].Connections == 4000 && a.Total.BytesOut == 6e6,
		"%+v, want shop/web first, and its busy endpoint", a)
	kit.Check(t, len(a.Silent) == 3 && len(a.Ended) == 2,
		"silent are %v, ended %v, want all of all Services", a.Silent, a.Ended)
	q.Namespace, q.Name = "shop", "db"
	if one, err := q.read(t.Context()); err != nil || len(one.Silent) != 1 || len(one.Ended) != 1 || one.Silent[0] != (servicestate.SilentEndpoint{PortEndpoint: servicestate.PortEndpoint{Namespace: "shop", Name: "db"}}) {
		t.Errorf("silent of shop/db are %v, %v", one.Silent, err)
	}
	per, seconds := a.Services[0].PerSecond.Connections, a.Seconds
	got := per * seconds
	kit.Check(t, got >= 2999 && got <= 3001 && seconds >= 1, "%v a second over %v seconds, want 3000 in all", per, seconds)
}

// TestRefusals asks for what there is not.
func TestRefusals(t *testing.T) {
	for want, q := range map[string]*Query{
		"; did you mean shop/idle?": {Query: statusview.Query{Server: serve(t, shopServer()), Reference: service.Reference{Namespace: "shop", Name: "idler"}}},
		": want one of them":        {Query: statusview.Query{Server: serve(t, shopServer()), Reference: service.Reference{Name: "web", Port: "81"}}},
		"it does not count":         {Query: statusview.Query{Server: serve(t, &Server{Lack: "it does not count"})}},
	} {
		q.Timeout = time.Minute
		err := q.Follow(t.Context(), func(*Answer) (bool, error) { return false, nil })
		kit.Check(t, err != nil && strings.HasSuffix(err.Error(), want), "%v, want %s", err, want)
	}
	q := &Query{Query: statusview.Query{Server: serve(t, shopServer()), Reference: service.Reference{Namespace: "shop", Name: "idle"}}, Timeout: time.Minute}
	err := q.Follow(t.Context(), func(a *Answer) (bool, error) { return false, nil })
	kit.Check(t, err == nil, "a Service without traffic: %v", err)
}

// TestPrint compares what is printed.
func TestPrint(t *testing.T) {
	at := time.Date(2026, 7, 1, 12, 0, 10, 0, time.UTC)
	a := &Answer{
		Mode: "userspace", Node: "node-a", Time: at, Since: at.Add(-time.Hour), Seconds: 2, Counted: traffic.Kinds{Bytes: true},
		Services: []Service{
			{"shop", "web", Numbers{traffic.Counts{Connections: 123456, BytesIn: 999, BytesOut: 1234567}, &Rate{Connections: 9.75, BytesOut: 1e9}}, []Endpoint{
				{"http", "tcp", "10.244.0.1:8080", Numbers{traffic.Counts{Connections: 3}, &Rate{Connections: 1}}},
				{"", "udp", "", Numbers{traffic.Counts{Connections: 4}, &Rate{}}},
			}},
			{"shop", "db", Numbers{traffic.Counts{Connections: 1}, &Rate{}}, nil},
			{"shop", "idle", Numbers{traffic.Counts{}, &Rate{}}, nil},
		},
		Total: Numbers{traffic.Counts{Connections: 123457, BytesIn: 999, BytesOut: 1234567}, &Rate{Connections: 9.75, BytesOut: 1e9}},
		Error: "read what IPv6 carries: refused",
	}
	for i := range 5 {
		a.Silent = append(a.Silent, servicestate.SilentEndpoint{PortEndpoint: servicestate.PortEndpoint{Namespace: "shop", Name: "web", Address: fmt.Sprintf("10.244.0.%d:8080", i+2)}, LeftOut: true})
	}
	a.Ended = []servicestate.EndedConnections{{PortEndpoint: servicestate.PortEndpoint{Namespace: "shop", Name: "db", Address: "10.244.0.9:5432"}, Connections: 12}}
	const want = `Node node-a, mode userspace: new connections and bytes since 2026-07-01 11:00:10 UTC. Rates cover
2.0 seconds up to 12:00:10.
Not everything could be read: read what IPv6 carries: refused
No answer, see kube-proxy status: 10.244.0.2:8080 of shop/web, 10.244.0.3:8080 of shop/web,
10.244.0.4:8080 of shop/web, and 2 more
Ended connections, see kube-proxy status: 12 from shop/db to 10.244.0.9:5432

SERVICE           CONN/S  CONNECTIONS  IN/S   OUT/S     IN     OUT
shop/web             9.8       123456   0 B  1.0 GB  999 B  1.2 MB
shop/db              0.0            1   0 B     0 B    0 B     0 B
all, with 1 more     9.8       123457   0 B  1.0 GB  999 B  1.2 MB

Endpoints of shop/web

PORT      ENDPOINT             CONN/S  CONNECTIONS  IN/S  OUT/S   IN  OUT
http/tcp  10.244.0.1:8080         1.0            3   0 B    0 B  0 B  0 B
udp       those that are gone     0.0            4   0 B    0 B  0 B  0 B
`
	var b bytes.Buffer
	kit.Must(t, (View{Limit: 2}).Print(&b, a))
	kit.Same(t, "(-want +got)", want, b.String())
	b.Reset()
	none := &Answer{Mode: "nftables", Node: "node-a", Since: at}
	if err := (View{}).Print(&b, none); err != nil || b.String() != "Node node-a, mode nftables: new connections since 2026-07-01 12:00:10 UTC.\n\nNo Service has carried anything.\n" {
		t.Errorf("%v: %q", err, b.String())
	}
}

// reading is what a proxy answers that began to count at since.
func reading(since, at time.Time, services ...traffic.Service) *Response {
	return &Response{Mode: "ipvs", Node: "node-a", Reading: traffic.Reading{Time: at, Since: since, Services: services}}
}

// carries is a Service with this many connections and bytes.
func carries(name string, connections, in, out uint64) traffic.Service {
	return traffic.Service{Namespace: "shop", Name: name, Counts: traffic.Counts{Connections: connections, BytesIn: in, BytesOut: out}}
}

// TestAnswer computes rates of two readings, in each order.
func TestAnswer(t *testing.T) {
	start := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	first := reading(start, start.Add(time.Minute), carries("a", 100, 0, 0), carries("b", 10, 0, 0), carries("c", 1, 0, 0))
	second := reading(start, start.Add(time.Minute+2*time.Second), carries("a", 102, 10, 500), carries("b", 20, 400, 0), carries("c", 3, 0, 0))
	for order, want := range map[Order]string{ByRate: "b a c", ByConnections: "a b c", ByBytes: "a b c", ByName: "a b c"} {
		a := (&Query{Sort: order}).answer(first, second)
		var names []string
		for _, s := range a.Services {
			names = append(names, s.Name)
		}
		if got := strings.Join(names, " "); got != want || a.Seconds != 2 || a.Total.Connections != 125 || a.Total.PerSecond.Connections != 7 {
			t.Errorf("by %s: %s over %v seconds, %+v; want %s", order, got, a.Seconds, a.Total, want)
		}
	}
	bytesLast := reading(start, second.Time, carries("a", 9, 1, 0), carries("b", 1, 0, 2), carries("c", 5, 0, 0))
	a := (&Query{Sort: ByName}).answer(first, bytesLast)
	kit.Check(t, a.Services[0].Name == "a" && a.Services[1].Name == "b", "by name: %+v", a.Services)
	if a := (&Query{Sort: ByBytes}).answer(nil, bytesLast); a.Services[0].Name != "b" || a.Seconds != 0 || a.Services[0].PerSecond != nil {
		t.Errorf("by bytes, of one reading: %+v", a)
	}
	again := reading(start.Add(time.Minute), start.Add(2*time.Minute), carries("a", 7, 0, 0))
	if a := (&Query{}).answer(first, again); a.Seconds != 0 || a.Services[0].PerSecond != nil || a.Total.Connections != 7 {
		t.Errorf("the proxy was restarted, so there is no rate: %+v", a)
	}
}

// TestAll has the sum of all Services below those that are shown.
func TestAll(t *testing.T) {
	a := (&Query{}).answer(nil, reading(time.Time{}, time.Time{}, carries("a", 12, 12_345, 0), carries("b", 3, 99_999, 123_456)))
	a.Counted.Bytes = true
	for limit, want := range map[int]string{
		0: "all 15 112 kB 123 kB", 1: "all, with 1 more 15 112 kB 123 kB", 2: "shop/a 12 12.3 kB 0 B",
	} {
		var b bytes.Buffer
		if err := (View{Limit: limit}).Print(&b, a); err != nil || !strings.Contains(strings.Join(strings.Fields(b.String()), " "), want) {
			t.Errorf("limit %d: %v, want %q in\n%s", limit, err, want, b.String())
		}
	}
}

// TestWidth prints the longest names that Kubernetes allows, and all columns.
func TestWidth(t *testing.T) {
	name := strings.Repeat("service-", 7) + "is-long"
	const address = "[2001:db8:1111:2222:3333:4444:5555:7777]:65535"
	n := Numbers{Counts: traffic.Counts{Connections: 1 << 40, BytesIn: 1 << 50, BytesOut: 1 << 50}, PerSecond: &Rate{Connections: 123456789, BytesIn: 1 << 40, BytesOut: 1 << 40}}
	a := &Answer{
		Node: strings.Repeat("node-of-a-", 6) + "long", Mode: "userspace", Time: time.Unix(1e9, 0), Since: time.Unix(1e8, 0), Seconds: 10,
		Counted: traffic.Kinds{Bytes: true}, Error: strings.Repeat("no answer ", 20), Total: n,
		Services: []Service{{Namespace: strings.Repeat("n", 63), Name: name, Numbers: n, Endpoints: []Endpoint{{Port: "port-fifteen-ch", Protocol: "sctp", Address: address, Numbers: n}}}},
	}
	a.Services = append(a.Services, a.Services[0])
	var out bytes.Buffer
	kit.Must(t, (View{}).Print(&out, a))
	kit.CheckWidth(t, out.String(), name, address)
	t.Logf("\n%s", out.String())
}
