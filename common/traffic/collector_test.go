// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

// counters is a dataplane of one family.
type counters struct {
	samples []Sample
	err     error
	takes   time.Duration
	reads   int
}

func (c *counters) Kinds() Kinds { return Kinds{Bytes: true} }

func (c *counters) Read(context.Context, *service.Snapshot) ([]Sample, error) {
	time.Sleep(c.takes)
	c.reads++
	return c.samples, c.err
}

func name(s string) service.PortName {
	return service.PortName{Namespace: "shop", Name: s, Port: "http", Protocol: service.TCP}
}

func at(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// port returns a port with a ClusterIP 10.96.0.1:80, NodePort 30080 and these endpoints.
func port(s string, endpoints ...string) *service.Port {
	p := &service.Port{Name: name(s), Frontends: []service.Frontend{
		{Kind: service.ClusterIP, Addr: netip.MustParseAddr("10.96.0.1"), Port: 80}, {Kind: service.NodePort, Port: 30080},
	}}
	for _, e := range endpoints {
		p.Cluster = append(p.Cluster, service.Endpoint{Addr: at(e)})
	}
	return p
}

func snapshot(ports ...*service.Port) *service.Snapshot {
	return service.New(1, &service.Node{}, ports)
}

// dialled returns a sample of connections to a frontend that went to an endpoint.
func dialled(frontend, endpoint string, n uint64) Sample {
	return Sample{Counter{Protocol: service.TCP, Frontend: at(frontend), Endpoint: at(endpoint)}, Counts{Connections: n, BytesIn: 10 * n}}
}

// scene is a Collector with a dataplane for IPv4.
type scene struct {
	*Collector
	data *counters
	want *service.Snapshot
}

func newScene(ports ...*service.Port) *scene {
	s := &scene{data: &counters{}, want: snapshot(ports...)}
	s.Collector = &Collector{Latest: func() *service.Snapshot { return s.want }, Readers: map[service.Family]Reader{service.IPv4: s.data}}
	return s
}

// after reads with these samples, later than the least pause, and returns connections by
// endpoint of shop/web.
func (s *scene) after(t *testing.T, samples ...Sample) map[string]uint64 {
	t.Helper()
	time.Sleep(minPause)
	s.data.samples = samples
	all := map[string]uint64{}
	for _, x := range s.Read(t.Context(), Selection{Name: "web", Endpoints: true}).Services {
		for _, e := range x.Endpoints {
			all[e.Address] = e.Connections
		}
	}
	return all
}

// TestTotals checks that totals only grow, whatever the counters do.
func TestTotals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const vip, nodePort, one, two = "10.96.0.1:80", "192.0.2.1:30080", "10.244.0.1:8080", "10.244.0.2:8080"
		s := newScene(port("web", one, two))
		check := func(what string, want map[string]uint64, samples ...Sample) {
			t.Helper()
			kit.Same(t, fmt.Sprintf("%s (-want +got)", what), want, s.after(t, samples...))
		}
		check("of an earlier process", map[string]uint64{}, dialled(vip, one, 100))
		check("more", map[string]uint64{one: 5}, dialled(vip, one, 105))
		check("a new counter", map[string]uint64{one: 5, two: 7}, dialled(vip, one, 105), dialled(vip, two, 7))
		check("of a NodePort", map[string]uint64{one: 8, two: 7}, dialled(vip, one, 105), dialled(vip, two, 7), dialled(nodePort, one, 3))
		check("begun again", map[string]uint64{one: 10, two: 7}, dialled(vip, one, 2), dialled(vip, two, 7), dialled(nodePort, one, 3))
		check("gone", map[string]uint64{one: 10, two: 7})
		check("back", map[string]uint64{one: 11, two: 7}, dialled(vip, one, 1))
		check("no Service's", map[string]uint64{one: 11, two: 7}, dialled(vip, one, 1), dialled("10.96.0.9:80", one, 9))
		s.data.err = errors.New("refused")
		check("unreadable", map[string]uint64{one: 11, two: 7}, dialled(vip, one, 50))
		r := s.Read(t.Context(), Selection{})
		kit.Check(t, r.Error == "read what IPv4 carries: refused", "error %q", r.Error)
		s.data.err = nil
		s.want = snapshot(port("web", two))
		check("an endpoint is gone", map[string]uint64{"": 12, two: 7}, dialled(vip, one, 2))
		s.want = snapshot()
		check("the Service is gone", map[string]uint64{}, dialled(vip, one, 3))
	})
}

// TestPauses checks that counters that take long to read are read less often.
func TestPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(port("web", "10.244.0.1:8080"))
		s.data.takes = time.Second
		s.Read(t.Context(), Selection{})
		time.Sleep(costFactor*time.Second - time.Nanosecond)
		first := s.Read(t.Context(), Selection{})
		time.Sleep(time.Nanosecond)
		second := s.Read(t.Context(), Selection{})
		kit.Check(t, s.data.reads == 2 && second.Time.Sub(first.Time) == (costFactor+1)*time.Second,
			"%d readings, want 2; from %s to %s", s.data.reads, first.Time, second.Time)
	})
}

// TestRun checks that counters are read from time to time.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene()
		ctx, cancel := context.WithCancel(t.Context())
		go s.Run(ctx)
		time.Sleep(10*period + 1)
		cancel()
		synctest.Wait()
		kit.Check(t, s.data.reads == 11, "%d readings, want 11", s.data.reads)
	})
}

// TestNamed checks that the Services with series of their own are few, and that all
// counts together are what was carried.
func TestNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 3 * MostNamed
		var ports []*service.Port
		var samples []Sample
		for i := range n {
			p := port(fmt.Sprintf("s%03d", i), fmt.Sprintf("10.244.0.%d:8080", i))
			p.Frontends = nil
			ports = append(ports, p)
			samples = append(samples, Sample{Counter{Name: p.Name, Endpoint: p.Cluster[0].Addr}, Counts{}})
		}
		s := newScene(ports...)
		s.after(t, samples...)
		sum := func() (all uint64, named map[string]uint64) {
			time.Sleep(minPause)
			x := s.Named(t.Context())
			all, named = x.Rest.Connections, map[string]uint64{}
			for _, s := range x.Services {
				all += s.Connections
				named[s.Name] = s.Connections
			}
			return all, named
		}
		for i := range samples {
			samples[i].Connections = uint64(1000 + i)
		}
		all, named := sum()
		kit.Check(t, len(named) == MostNamed && named["s149"] == 1149 && all == n*1000+n*(n-1)/2,
			"%d named with %v, %d in all", len(named), named, all)
		samples[0].Connections += 300 // more than those that are named, but not by far
		_, named = sum()
		kit.Check(t, len(named) == MostNamed && named["s000"] == 0, "named %v, want those of before", named)
		samples[0].Connections += 3000
		_, named = sum()
		kit.Check(t, len(named) == MostNamed && named["s000"] == 3000, "named %v, want s000 with what is new", named)
	})
}

// TestDualStack checks that the families of a Service are one: each has a Reader that
// counts what the other one does not, and endpoints of both stay.
func TestDualStack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const four, six = "10.244.0.1:8080", "[fd00::1]:8080"
		p := port("web", four)
		q := &service.Port{Name: p.Name, Family: service.IPv6, Cluster: []service.Endpoint{{Addr: at(six)}}}
		s := newScene(p, q)
		other := &kindsOf{counters: counters{}, kinds: Kinds{Packets: true}}
		s.Readers[service.IPv6] = other
		s.after(t)
		all := Counts{Connections: 2, PacketsIn: 3, PacketsOut: 5, BytesIn: 7, BytesOut: 11}
		for _, f := range []struct {
			data     *counters
			endpoint string
		}{{s.data, four}, {&other.counters, six}} {
			f.data.samples = []Sample{{Counter{Name: p.Name, Endpoint: at(f.endpoint)}, all}}
		}
		want := []Service{{"shop", "web", all.Plus(all), []Endpoint{{"http", "tcp", four, all}, {"http", "tcp", six, all}}}}
		for range 2 {
			time.Sleep(minPause)
			r := s.Read(t.Context(), Selection{Endpoints: true})
			diff := cmp.Diff(want, r.Services)
			kit.Check(t, diff == "" && r.Counted == (Kinds{Packets: true, Bytes: true}), "counted %+v, services (-want +got):\n%s", r.Counted, diff)
		}
		for range 20 { // the order of Readers differs
			n := s.Named(t.Context())
			kit.Need(t, n.Counted == (Kinds{Packets: true, Bytes: true}), "counted %+v, want packets and bytes", n.Counted)
		}
	})
}

// kindsOf are counters of other kinds.
type kindsOf struct {
	counters
	kinds Kinds
}

func (k *kindsOf) Kinds() Kinds { return k.kinds }

// TestRest checks what the counts without a name of their own are: neither those of
// frontends that nobody knows, nor a Service's that was selected and deleted.
func TestRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(port("web", "10.244.0.1:8080"))
		s.after(t)
		read := func(samples ...Sample) *Named {
			time.Sleep(minPause)
			s.data.samples = samples
			return s.Named(t.Context())
		}
		n := read(dialled("10.96.0.1:80", "10.244.0.1:8080", 3), dialled("192.0.2.77:80", "10.244.0.1:8080", 9))
		kit.Check(t, len(n.Services) == 1 && n.Services[0].Connections == 3 && n.Rest == (Counts{}),
			"%+v, want web alone", n)
		s.want = snapshot()
		read()
		if n = read(); len(n.Services) != 0 || len(s.named.own) != 0 || len(s.named.named) != 0 {
			t.Errorf("%+v after the Service was deleted, remembered %v", n, s.named.own)
		}
	})
}

// TestBusiestAreNamed checks that of many Services those with most connections get the
// series, in whatever order a map has them, and that a busier one replaces the quietest.
func TestBusiestAreNamed(t *testing.T) {
	totals := map[serviceName]Counts{}
	for i := range 4 * MostNamed {
		totals[serviceName{"shop", fmt.Sprintf("s%03d", i)}] = Counts{Connections: uint64(100 + i)}
	}
	var r ranking
	r.add(totals, nil)
	for s := range r.named {
		kit.Check(t, totals[s].Connections >= 100+3*MostNamed, "%s is named with %d connections, and busier ones are not", s.Name, totals[s].Connections)
	}
	newcomer, quietest := serviceName{"shop", "new"}, serviceName{"shop", fmt.Sprintf("s%03d", 3*MostNamed)}
	totals[newcomer] = Counts{Connections: 2*totals[quietest].Connections + 1}
	r.add(totals, nil)
	kit.Check(t, r.named[newcomer] && !r.named[quietest],
		"named %v, want %v in place of %v", r.named, newcomer, quietest)
}
