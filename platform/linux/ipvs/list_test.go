// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/test/generate"
	"kubeproxy/test/kit"
)

const listing = `IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  0A60000A:0050 rr persistent 10800 FFFFFFFF
  -> 0AF4010C:1F90      Masq    1      2          3
  -> 0AF4010B:1F90      Route   0      0          0
FWM  00000007 rr
  -> 0AF4010D:1F90      Masq    1      0          0
UDP  0A60000A:0050 rr ops
SCTP [fd00:0010:0096:0000:0000:0000:0000:0010]:0050 mh
  -> [fd00:0010:0244:0001:0000:0000:0000:0011]:1F90      Masq    1      0          1
`

func TestListing(t *testing.T) {
	four, six := netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:10:96::10")
	tcp, udp, sctp, omitted := &observedServer{}, &observedServer{}, &observedServer{}, &observedServer{}
	servers := map[service.Address]*observedServer{
		addressAt(four, 80, service.TCP): tcp, addressAt(four, 80, service.UDP): udp, addressAt(six, 80, service.SCTP): sctp, addressAt(four, 81, service.TCP): omitted,
	}
	kit.Must(t, fillDests(servers, strings.NewReader(listing)))
	want := dest{addr: netip.MustParseAddrPort("10.244.1.12:8080"), weight: 1, conns: 5}
	kit.Check(t, len(tcp.dests) == 2 && tcp.dests[1] == want && tcp.dests[0].weight == 0 && tcp.dests[0].wrongMode,
		"TCP: %+v", tcp.dests)
	kit.Check(t, udp.destsKnown && len(udp.dests) == 0 && !omitted.destsKnown,
		"UDP: %+v, one that is left out: %+v", udp, omitted)
	kit.Check(t, len(sctp.dests) == 1 && sctp.dests[0].addr == netip.MustParseAddrPort("[fd00:10:244:1::11]:8080"),
		"SCTP: %+v", sctp.dests)
	err := fillDests(servers, strings.NewReader("TCP 0A60000A:0050 rr\n -> nonsense Masq 1 0 0\n"))
	kit.Check(t, err != nil, "nonsense is taken for a destination")
}

// TestExternalAddressOfTheNodeGoesBeforeNodePorts checks that a node address that is an
// external address of a Service takes precedence over NodePorts with the same port
// number, of the same Service or another one, in any order, and that the NodePort
// answers again when that Service is deleted.
func TestExternalAddressOfTheNodeGoesBeforeNodePorts(t *testing.T) {
	bare, outer := web(0, 1, service.TCP), web(1, 3, service.TCP)
	bare.Frontends = append(bare.Frontends, service.Frontend{Kind: service.NodePort, Port: 30080})
	inner := *bare
	inner.Frontends = append(inner.Frontends, service.Frontend{Kind: service.ExternalIP, Addr: generate.NodeAddr[0], Port: 30080})
	outer.Frontends = append(outer.Frontends, service.Frontend{Kind: service.ExternalIP, Addr: generate.NodeAddr[0], Port: 30080})
	own := addressAt(generate.NodeAddr[0], 30080, service.TCP)
	for name, c := range map[string]struct {
		change service.Change
		dests  int
	}{
		"its own":           {service.Change{Old: bare, New: &inner}, 1},
		"another Service's": {service.Change{New: outer}, 3},
	} {
		k := newFake(service.IPv4)
		b := newBackend(service.IPv4, k, Options{})
		back := service.Change{Old: c.change.New, New: c.change.Old}
		s := snapshot(bare)
		apply(t, b, s)
		for _, x := range []struct {
			change service.Change
			dests  int
		}{{c.change, c.dests}, {back, 1}} {
			s, _ = applyChanges(t, b, s, x.change)
			applyUntilDrained(t, b, k, s)
			n := len(k.servers[own].dests)
			kit.Check(t, n == x.dests, "%s: %d destinations at %s, want %d", name, n, own, x.dests)
			k.clock = k.clock.Add(time.Minute)
			wantLines(t, planOf(t, b, s))
			if n := len(k.servers); n != len(portsOf(s, service.IPv4))+2 { // two addresses answer NodePorts
				t.Errorf("%s: %d virtual servers", name, n)
			}
		}
	}
}

// TestUpstreamSet recognizes kube-proxy's ipsets by name and type.
func TestUpstreamSet(t *testing.T) {
	for _, tt := range []struct {
		family     service.Family
		name, kind string
		proto      service.Protocol
		is         bool
	}{
		{service.IPv4, "KUBE-CLUSTER-IP", "hash:ip,port", 0, true},
		{service.IPv4, "KUBE-CLUSTER-IP", "hash:ip", 0, false},
		{service.IPv4, "KUBE-6-CLUSTER-IP", "hash:ip,port", 0, false},
		{service.IPv6, "KUBE-CLUSTER-IP", "hash:ip,port", 0, false},
		{service.IPv6, "KUBE-6-CLUSTER-IP", "hash:ip,port", 0, true},
		{service.IPv6, "KUBE-6-LOAD-BALANCER-SOURCE-CID", "hash:ip,port,net", 0, true},
		{service.IPv6, "KUBE-6-LOAD-BALANCER-SOURCE-CIDR", "hash:ip,port,net", 0, false},
		{service.IPv6, "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS", "hash:ip,port", service.SCTP, true},
		{service.IPv4, "KUBE-NODE-PORT-TCP", "bitmap:port", service.TCP, true},
		{service.IPv4, "KUBE-NODE-PORT-LOCAL-UDP", "bitmap:port", service.UDP, true},
		{service.IPv4, "KUBE-NODE-PORT-SCTP", "bitmap:port", service.SCTP, true},
		{service.IPv4, "KUBE-HEALTH-CHECK-NODE-PORT", "bitmap:port", 0, true},
		{service.IPv4, "KUBE-MINE", "hash:ip,port", 0, false},
		{service.IPv4, "", "", 0, false},
	} {
		if proto, is := upstreamSet(tt.family, tt.name, tt.kind); proto != tt.proto || is != tt.is {
			t.Errorf("%s %s %s: %v, %t; want %v, %t", tt.family, tt.name, tt.kind, proto, is, tt.proto, tt.is)
		}
	}
}

// TestUpstreamOwnedServers distinguishes kube-proxy's virtual servers from ours and from
// foreign ones.
func TestUpstreamOwnedServers(t *testing.T) {
	addr := netip.MustParseAddr
	u := &upstreamState{
		addrs: map[netip.Addr]bool{addr("10.96.0.1"): true, addr("10.97.0.1"): true},
		node:  map[netip.Addr]bool{addr("192.0.2.1"): true},
		ports: map[service.Address]bool{{Port: 30080, Protocol: service.TCP}: true},
	}
	s := &state{servers: map[service.Address]*observedServer{}}
	for k, flags := range map[service.Address]uint32{
		addressAt(addr("10.96.0.1"), 80, service.TCP):    0,
		addressAt(addr("10.96.0.1"), 81, service.TCP):    flagOwned,
		addressAt(addr("10.97.0.1"), 80, service.TCP):    0, // excluded
		addressAt(addr("192.0.2.1"), 30080, service.TCP): flagPersistent,
		addressAt(addr("192.0.2.1"), 30080, service.UDP): 0, // another protocol
		addressAt(addr("192.0.2.1"), 443, service.TCP):   0, // not a NodePort
		addressAt(addr("192.0.2.7"), 30080, service.TCP): 0, // not the node
	} {
		s.servers[k] = &observedServer{server: server{flags: flags}}
	}
	e := u.ownedServers(s, Options{Exclude: []netip.Prefix{netip.MustParsePrefix("10.97.0.0/16")}})
	got := []string{}
	for _, k := range e.servers {
		got = append(got, nameOf(k))
	}
	for _, a := range sortedAddrs(e.addrOps) {
		got = append(got, e.addrOps[a].text())
	}
	want := []string{"10.96.0.1:80 tcp", "192.0.2.1:30080 tcp", "- address 10.96.0.1 of interface kube-ipvs0"}
	kit.Same(t, "(-want +got)", want, got)
}

// TestUpstreamAdopted adopts kube-proxy's virtual servers and their endpoints, and no
// foreign ones.
func TestUpstreamAdopted(t *testing.T) {
	for _, made := range []bool{true, false} {
		t.Run(fmt.Sprint(made), func(t *testing.T) {
			k := newFake(service.IPv4)
			p := web(0, 1, service.TCP)
			at := addressAt(p.Frontends[0].Addr, 80, service.TCP)
			held := dest{addr: p.Cluster[0].Addr, weight: 1, conns: 3}
			k.servers[at] = &fakeServer{server{scheduler: "rr"}, map[netip.AddrPort]dest{held.addr: held}}
			if made {
				k.upstream = []service.Address{at}
			}
			b := newBackend(service.IPv4, k, Options{})
			plan := planOf(t, b, snapshot(p))
			took := slices.Contains(lines(plan), "~ virtual server 10.96.0.0:80 tcp, scheduler rr # shop/web-0")
			if err := plan.Apply(t.Context()).Err; took != made || (err == nil) != made {
				t.Errorf("taken over %t, %v\n%s", took, err, plan.Changes())
			}
			got := k.servers[at]
			kit.Check(t, got.owned() == made && got.dests[held.addr] == held, "there is %v", got)
		})
	}
}

func TestSharedMark(t *testing.T) {
	const all = math.MaxUint32
	wireguard := markRule{32764, true, 0xca6c, all, 51820}
	for name, tt := range map[string]struct {
		family service.Family
		bit    int
		rules  []markRule
		want   string // in the text, empty for none
	}{
		"no rules":           {service.IPv4, 14, nil, ""},
		"wg-quick":           {service.IPv4, 14, []markRule{{100, false, 1, all, 100}, wireguard}, `bit 0x4000 (ip rule has "32764: not fwmark 0xca6c lookup 51820")`},
		"wg-quick, IPv6":     {service.IPv6, 14, []markRule{wireguard}, `(ip -6 rule has "32764: not fwmark 0xca6c lookup 51820")`},
		"another bit":        {service.IPv4, 16, []markRule{wireguard}, ""},
		"the highest bit":    {service.IPv4, 31, []markRule{{7, false, 1 << 31, all, 9}}, `0x80000000 (ip rule has "7: fwmark 0x80000000 lookup 9")`},
		"a transparent one":  {service.IPv4, 14, []markRule{{100, false, 1, all, 100}}, ""},
		"beside the mask":    {service.IPv4, 14, []markRule{{9, false, 0x200, 0xf00, 2004}}, ""},
		"a field of marks":   {service.IPv4, 14, []markRule{{9, false, 0x2000, 0x6000, 5}}, `"9: fwmark 0x2000/0x6000 lookup 5"`},
		"a mark out of mask": {service.IPv4, 14, []markRule{{9, false, 0x4200, 0xf00, 5}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := Options{MasqueradeBit: tt.bit}.sharedMark(tt.family, tt.rules)
			kit.Check(t, (got == "") == (tt.want == "") && strings.Contains(got, tt.want), "%q, want %q", got, tt.want)
		})
	}
}

// TestSharedMarkIsShown has a program come that uses the masquerade bit, and go. A failure
// to read the rules changes nothing.
func TestSharedMarkIsShown(t *testing.T) {
	k := newFake(service.IPv4)
	b := newBackendWithRules(service.IPv4, k, Options{MasqueradeBit: 14})
	shown := "nothing"
	b.showSharedMark = func(text string) { shown = text }
	s := snapshot(web(0, 1, service.TCP))
	step := func(want bool, rules []markRule, err error) {
		t.Helper()
		k.marks, k.marksErr = rules, err
		k.clock = k.clock.Add(b.options.SyncPeriod)
		apply(t, b, s)
		kit.Check(t, strings.Contains(shown, "0xca6c") == want && (want || shown == ""), "shown is %q", shown)
		if err != nil {
			return
		}
		w, err := b.Trace(t.Context(), s, route.Conn{To: netip.MustParseAddrPort("192.0.2.99:51820"), Protocol: service.UDP, From: generate.NodeAddr[0]}, generate.IsNodeLocal)
		kit.Check(t, err == nil && (len(w.Notes) == 1) == want, "explain notes %v, %v", w, err)
	}
	rules := []markRule{{32764, true, 0xca6c, math.MaxUint32, 51820}}
	step(false, nil, nil)
	step(true, rules, nil)
	step(true, nil, errors.New("interrupted"))
	step(false, nil, nil)
	k.marks = rules
	w, err := b.Trace(t.Context(), s, route.Conn{To: netip.AddrPortFrom(first.Addr, first.Port), Protocol: service.TCP, From: generate.NodeAddr[0]}, generate.IsNodeLocal)
	kit.Check(t, err == nil && len(w.Notes) == 0, "explain of a Service notes %v, %v", w, err)
}

// TestReadOnce has many questions about one snapshot. The node is read once, and each answer has what
// is wrong for its packet, such as the set that is missing.
func TestReadOnce(t *testing.T) {
	first, second := web(0, 1, service.TCP), web(1, 2, service.TCP)
	k := newFake(service.IPv4)
	s := snapshot(first, second)
	apply(t, newBackendWithRules(service.IPv4, k, Options{MasqueradeBit: 14}), s)
	delete(k.sets.ByName, "KUBE-VS-RESTRICTED")
	at := second.Frontends[0]
	delete(k.servers[addressAt(at.Addr, at.Port, service.TCP)].dests, second.Cluster[0].Addr)
	once, anew := newBackendWithRules(service.IPv4, k, Options{MasqueradeBit: 14}), newBackendWithRules(service.IPv4, k, Options{MasqueradeBit: 14})
	once.ReadOnce()
	ask := func(b *Backend, p *service.Port) []string {
		t.Helper()
		w, err := b.Trace(t.Context(), s, route.Conn{From: generate.NodeAddr[0], To: netip.AddrPortFrom(p.Frontends[0].Addr, p.Frontends[0].Port), Protocol: service.TCP}, generate.IsNodeLocal)
		kit.Must(t, err)
		return w.Faults
	}
	for _, p := range []*service.Port{first, second, first} {
		got, want := ask(once, p), ask(anew, p)
		kit.Check(t, slices.Equal(got, want) && len(want) != 0, "%s: faults %q, want %q", p.Name, got, want)
	}
	k.reads = 0
	ask(once, second)
	s = snapshot(first, second)
	ask(once, second)
	kit.Check(t, k.reads == 1, "%d reads for a question of each of two snapshots, want 1 of the new one", k.reads)
}
