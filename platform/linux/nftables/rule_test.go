// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"math/big"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/test/generate"
	"kubeproxy/test/kit"
)

func TestClassOf(t *testing.T) {
	for n, want := range map[int]uint32{
		1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 8: 8, 9: 16, 16: 16, 17: 32,
		1000: 1024, 1024: 1024, 1025: 2048, 65535: maxClass, 65536: maxClass,
	} {
		kit.Equal(t, classOf(n), want, "classOf(%d)", n)
	}
}

// shares computes from slotModuli the share of connections that each of n endpoints gets,
// and the share that gets no endpoint.
func shares(n int) (each []*big.Rat, none *big.Rat) {
	none = big.NewRat(1, 1)
	for range n {
		each = append(each, new(big.Rat))
	}
	for _, mod := range slotModuli(classOf(n)) {
		slot := new(big.Rat).Mul(none, big.NewRat(1, int64(mod)))
		for i := range min(n, int(mod)) {
			each[i].Add(each[i], slot)
			none = new(big.Rat).Sub(none, slot)
		}
	}
	return each, none
}

// Every endpoint gets its share within half a percent, and every connection gets an
// endpoint.
func TestDrawsAreFair(t *testing.T) {
	for n := 1; n <= 40; n++ {
		wantFair(t, n)
	}
	for _, n := range []int{100, 128, 129, 1000, 1025, 5000} {
		wantFair(t, n)
	}
}

func wantFair(t *testing.T, n int) {
	t.Helper()
	each, none := shares(n)
	if none.Sign() != 0 {
		t.Errorf("%d endpoints: %s of the connections reach none", n, none.FloatString(6))
	}
	for i, share := range each {
		off := new(big.Rat).Mul(share, big.NewRat(int64(n), 1))
		off.Sub(off, big.NewRat(1, 1))
		if off.Abs(off).Cmp(big.NewRat(5, 1000)) > 0 {
			t.Errorf("%d endpoints: endpoint %d gets %s of the connections, want 1/%d within 0.5 %%", n, i, share.FloatString(6), n)
		}
	}
}

// Endpoints that fill their class get exactly equal shares.
func TestFullClassesAreExact(t *testing.T) {
	for n := 1; n <= 256; n *= 2 {
		each, _ := shares(n)
		for i, share := range each {
			kit.Check(t, share.Cmp(big.NewRat(1, int64(n))) == 0, "%d endpoints: endpoint %d gets %s", n, i, share)
		}
	}
}

func TestClassSets(t *testing.T) {
	var a, b classes
	a.add(pickAddr, 4)
	a.add(pickAddr, 16)
	a.add(pickInternal, 1)
	b.add(pickAddr, 16)
	b.add(pickNodePort, 2)
	for name, tt := range map[string]struct{ want, got classes }{
		"union":           {classes{0b10100, 0b10, 0b1, 0}, a.union(b)},
		"without":         {classes{0b100, 0, 0b1, 0}, a.without(b)},
		"nothing without": {classes{}, classes{}.without(a)},
	} {
		kit.Same(t, fmt.Sprintf("%s (-want +got)", name), tt.want, tt.got)
	}
	names := func(c classes) []string {
		var names []string
		for _, x := range c.chains(Options{}) {
			names = append(names, x.name)
		}
		return names
	}
	want := []string{
		"pick-4", "cluster-4", "external-4", "pick-16", "cluster-16", "external-16", "internal-pick-1",
	}
	kit.Same(t, "chains (-want +got)", want, names(a))
	var most classes
	most.add(pickNodePortInternal, maxClass)
	most.add(pickNodePort, maxClass)
	kit.Same(t, "largest chains (-want +got)", []string{"nodeport-pick-65536", "nodeport-external-65536", "nodeport-internal-pick-65536"}, names(most))
}

// The chains that mark continue in the chain that picks.
func TestPickerChains(t *testing.T) {
	var b strings.Builder
	for _, c := range pickAddr.chains(4, Options{MasqueradeBit: 14}) {
		b.WriteString(c.text(service.IPv4))
	}
	draw := "\t\tdnat ip to ip daddr . meta l4proto . th dport . numgen random mod 4 map @endpoints\n"
	want := "\tchain pick-4 {\n" + strings.Repeat(draw, 4) + strings.Replace(draw, "mod 4", "mod 2", 1) + "\t}\n" +
		"\tchain cluster-4 {\n\t\tjump mark-unless-pod\n\t\tgoto pick-4\n\t}\n" +
		"\tchain external-4 {\n\t\tmeta mark set meta mark | 0x00004000\n\t\tgoto pick-4\n\t}\n"
	kit.Same(t, "(-want +got)", want, b.String())
}

// A Port needs a class for each list that one of its frontends may use.
func TestNeededClasses(t *testing.T) {
	eps := func(n int) []service.Endpoint {
		return slices.Repeat([]service.Endpoint{{Addr: addrPort("10.244.1.1:80")}}, n)
	}
	all := []service.Frontend{{Kind: service.ClusterIP}, {Kind: service.NodePort}, {Kind: service.ExternalIP}}
	for name, tt := range map[string]struct {
		port service.Port
		want classes
	}{
		"ClusterIP only":       {service.Port{Frontends: all[:1], Cluster: eps(33)}, classes{1 << 6, 0, 0, 0}},
		"every kind":           {service.Port{Frontends: all, Cluster: eps(33)}, classes{1 << 6, 1 << 6, 0, 0}},
		"external Local":       {service.Port{Frontends: all, Cluster: eps(33), Local: eps(5), External: service.PolicyLocal}, classes{1<<6 | 1<<3, 1 << 3, 1 << 6, 1 << 6}},
		"external Local, none": {service.Port{Frontends: all, Cluster: eps(2), External: service.PolicyLocal}, classes{1 << 1, 0, 1 << 1, 1 << 1}},
		"internal Local":       {service.Port{Frontends: all, Cluster: eps(33), Local: eps(5), Internal: service.PolicyLocal}, classes{1<<6 | 1<<3, 1 << 6, 0, 0}},
		"affinity":             {service.Port{Frontends: all, Cluster: eps(33), Affinity: 1}, classes{}},
		"no endpoint":          {service.Port{Frontends: all}, classes{}},
	} {
		t.Run(name, func(t *testing.T) {
			kit.Same(t, "(-want +got)", tt.want, (layout{port: &tt.port}).neededClasses())
		})
	}
}

// letterEndpoints returns an endpoint for each letter, in order.
func letterEndpoints(letters string) []service.Endpoint {
	var list []service.Endpoint
	for _, c := range letters {
		list = append(list, service.Endpoint{Addr: addrPort(fmt.Sprintf("10.244.1.%d:80", c))})
	}
	return list
}

// slotOrder returns the letters of the endpoints in slot order.
func slotOrder(l layout, w service.Policy) string {
	var b strings.Builder
	for _, a := range l.targets(w) {
		b.WriteByte(a.Addr().As4()[3])
	}
	return b.String()
}

// layoutOf returns a layout whose endpoints have the order of letters.
func layoutOf(letters string) layout {
	sorted := []byte(letters)
	slices.Sort(sorted)
	l := layout{port: &service.Port{Cluster: letterEndpoints(string(sorted))}}
	for _, c := range []byte(letters) {
		l.slots[service.PolicyCluster] = append(l.slots[service.PolicyCluster], uint16(slices.Index(sorted, c)))
	}
	return l
}

func TestArrange(t *testing.T) {
	for name, tt := range map[string]struct{ old, want, now string }{
		"from nothing":                         {"", "abc", "abc"},
		"nothing left":                         {"abc", "", ""},
		"as it was":                            {"abc", "abc", "abc"},
		"out of order, as it was":              {"cab", "abc", "cab"},
		"one replaced":                         {"abc", "acd", "adc"},
		"the first one leaves, the last moves": {"abcd", "bcd", "dbc"},
		"the last one leaves":                  {"abcd", "abc", "abc"},
		"one comes":                            {"bcd", "abcd", "bcda"},
		"two come, in order":                   {"cb", "abcd", "cbad"},
		"all replaced":                         {"abc", "xyz", "xyz"},
		"two of four leave":                    {"abcd", "bd", "db"},
	} {
		t.Run(name, func(t *testing.T) {
			got := slotOrder(layoutOf(tt.old).next(&service.Port{Cluster: letterEndpoints(tt.want)}), service.PolicyCluster)
			kit.Check(t, got == tt.now, "%q lies as %q, want %q", tt.want, got, tt.now)
		})
	}
}

// A table may hold an endpoint twice if another process changed it.
func TestArrangeWithDuplicateEndpoints(t *testing.T) {
	old := []netip.AddrPort{letterEndpoints("b")[0].Addr, letterEndpoints("b")[0].Addr, {}}
	kit.Same(t, "(-want +got)", []uint16{1, 0, 2}, arrange(old, letterEndpoints("abc")))
}

// An endpoint keeps its slot if possible, so no arrangement changes fewer slots. Every
// endpoint has a slot. An arrangement in order is nil.
func TestArrangeChangesAsLittleAsPossible(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		letters := rapid.SliceOfNDistinct(rapid.ByteRange('a', 'z'), 0, 20, rapid.ID[byte])
		old, want := string(letters.Draw(t, "old")), letters.Draw(t, "want")
		slices.Sort(want)
		perm := arrange(layoutOf(old).targets(service.PolicyCluster), letterEndpoints(string(want)))
		l := layout{port: &service.Port{Cluster: letterEndpoints(string(want))}, slots: slots{service.PolicyCluster: perm}}
		now := slotOrder(l, service.PolicyCluster)
		for i := range min(len(old), len(want)) {
			if strings.IndexByte(string(want), old[i]) >= 0 && now[i] != old[i] {
				t.Fatalf("%s to %s: %c was moved", old, now, old[i])
			}
		}
		sorted := []byte(now)
		slices.Sort(sorted)
		if string(sorted) != string(want) {
			t.Fatalf("%s to %s: not %s", old, now, want)
		}
		if (perm == nil) != (now == string(want)) {
			t.Fatalf("%s is kept as %v", now, perm)
		}
	})
}

// An unchanged list keeps its slots without a copy. Each list has its own slots.
func TestNextKeepsTheOtherList(t *testing.T) {
	l := layoutOf("cab")
	l.port.Local = letterEndpoints("xy")
	next := l.next(&service.Port{Cluster: letterEndpoints("abc"), Local: letterEndpoints("yz")})
	if got := slotOrder(next, service.PolicyCluster); got != "cab" || &next.slots[service.PolicyCluster][0] != &l.slots[service.PolicyCluster][0] {
		t.Errorf("unchanged list lies as %q", got)
	}
	got := slotOrder(next, service.PolicyLocal)
	kit.Check(t, got == "zy", "local list lies as %q, want zy", got)
	kit.Check(t, !next.slots.identity() && (slots{}).identity() && !(slots{service.PolicyLocal: {1, 0}}).identity(),
		"identity is wrong")
}

func TestFields(t *testing.T) {
	for name, tt := range map[string]struct {
		field field
		text  [2]string
		size  [2]int
	}{
		"source":               {saddr, [2]string{"ip saddr", "ip6 saddr"}, [2]int{4, 16}},
		"destination":          {daddr, [2]string{"ip daddr", "ip6 daddr"}, [2]int{4, 16}},
		"protocol":             {proto, [2]string{"meta l4proto", "meta l4proto"}, [2]int{4, 4}},
		"port":                 {dport, [2]string{"th dport", "th dport"}, [2]int{4, 4}},
		"original source":      {origSaddr, [2]string{"ct original ip saddr", "ct original ip6 saddr"}, [2]int{4, 16}},
		"original destination": {origDaddr, [2]string{"ct original ip daddr", "ct original ip6 daddr"}, [2]int{4, 16}},
		"original port":        {origDport, [2]string{"ct original proto-dst", "ct original proto-dst"}, [2]int{4, 4}},
		"slot":                 {slot, [2]string{"numgen random mod 65536", "numgen random mod 65536"}, [2]int{4, 4}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, f := range service.Families {
				kit.Equal(t, tt.field.text(f), tt.text[f], "%s: text", f)
				got := tt.field.size(f)
				kit.Check(t, got == tt.size[f], "%s: %d bytes, want %d", f, got, tt.size[f])
			}
		})
	}
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func TestKeyText(t *testing.T) {
	tcp80 := func(a string) []byte { return appendPort(appendProto(appendAddr(nil, addr(a)), service.TCP), 80) }
	for name, tt := range map[string]struct {
		fields   []field
		family   service.Family
		key, end []byte
		want     string
	}{
		"address":          {[]field{daddr}, service.IPv4, appendAddr(nil, addr("10.96.0.10")), nil, "10.96.0.10"},
		"frontend":         {addrKey, service.IPv4, tcp80("10.96.0.10"), nil, "10.96.0.10 . tcp . 80"},
		"IPv6 frontend":    {addrKey, service.IPv6, tcp80("fd00:10:96::a"), nil, "fd00:10:96::a . tcp . 80"},
		"node port":        {nodePortKey, service.IPv6, appendPort(appendProto(nil, service.SCTP), 30080), nil, "sctp . 30080"},
		"slot":             {[]field{proto, dport, slot}, service.IPv4, appendSlot(appendPort(appendProto(nil, service.UDP), 53), 258), nil, "udp . 53 . 258"},
		"target":           {targetFields, service.IPv4, appendPort(appendAddr(nil, addr("10.244.1.5")), 8080), nil, "10.244.1.5 . 8080"},
		"unknown protocol": {nodePortKey, service.IPv4, appendPort(appendProto(nil, 99), 1), nil, "unknown . 1"},
		"a range of sources": {
			sources.key, service.IPv4,
			appendAddr(tcp80("203.0.113.5"), addr("192.0.2.0")), appendAddr(tcp80("203.0.113.5"), addr("192.0.2.127")),
			"203.0.113.5 . tcp . 80 . 192.0.2.0/25",
		},
		"a range of IPv6 sources": {
			sources.key, service.IPv6,
			appendAddr(tcp80("2001:db8::5"), addr("2001:db8:2::")), appendAddr(tcp80("2001:db8::5"), addr("2001:db8:2::ffff")),
			"2001:db8::5 . tcp . 80 . 2001:db8:2::/112",
		},
		"too short a key, as only others write": {addrKey, service.IPv6, tcp80("10.96.0.10"), nil, "0a60000a060000000050" + "0000"},
	} {
		t.Run(name, func(t *testing.T) {
			kit.Equal(t, keyText(tt.fields, tt.family, tt.key, tt.end), tt.want, "keyText")
		})
	}
}

func TestKeySize(t *testing.T) {
	got := [2]int{keySize(sources.key, service.IPv4), keySize(sources.key, service.IPv6)}
	want := [2]int{16, 40}
	kit.Check(t, got == want, "keys of sources have %v bytes, want %v", got, want)
}

// The text of each prefix of either family is the prefix, or its address if it holds only
// one.
func TestPrefixes(t *testing.T) {
	for _, a := range []string{"203.0.113.86", "2001:db8:aaaa:5555:f0f0:1234:5678:9abc"} {
		for bits := range addr(a).BitLen() + 1 {
			p := netip.PrefixFrom(addr(a), bits).Masked()
			want := p.String()
			if p.IsSingleIP() {
				want = p.Addr().String()
			}
			last := lastAddr(p)
			kit.Equal(t, prefixText(p.Addr().AsSlice(), last.AsSlice()), want, "%s to %s is written", p.Addr(), last)
			next := last.Next()
			kit.Check(t, p.Contains(last) && (!next.IsValid() || !p.Contains(next)), "last address of %s = %s", p, last)
		}
	}
}

func TestLoopbackPrefix(t *testing.T) {
	got := []string{loopbackPrefix(service.IPv4).String(), loopbackPrefix(service.IPv6).String()}
	kit.Same(t, "(-want +got)", []string{"127.0.0.0/8", "::1/128"}, got)
}

func TestTargetOf(t *testing.T) {
	for _, s := range []string{"10.244.1.5:8080", "[fd00:10:244:1::5]:65535"} {
		a := addrPort(s)
		got := targetOf(appendPort(appendAddr(nil, a.Addr()), a.Port()))
		kit.Check(t, got == a, "target %s is read as %s", a, got)
	}
	got := targetOf([]byte{1, 2, 3})
	kit.Check(t, !got.IsValid(), "target of three bytes = %s, want none", got)
}

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func TestStatementTexts(t *testing.T) {
	clients := &set{name: "clients"}
	for _, tt := range []struct {
		statement statement
		v4, v6    string // v6 only if it differs
	}{
		{lookup{[]field{daddr}, clusterIPs, false}, "ip daddr @cluster-ips", "ip6 daddr @cluster-ips"},
		{lookup{[]field{saddr, daddr}, hairpin, false}, "ip saddr . ip daddr @hairpin", "ip6 saddr . ip6 daddr @hairpin"},
		{dispatch{nodePortKey, nodePorts}, "meta l4proto . th dport vmap @nodeports", ""},
		{dnat{addrKey, 0, endpoints}, "dnat ip to ip daddr . meta l4proto . th dport map @endpoints", "dnat ip6 to ip6 daddr . meta l4proto . th dport map @endpoints"},
		{dnat{slotKey, 3, endpoints}, "dnat ip to numgen random mod 3 map @endpoints", "dnat ip6 to numgen random mod 3 map @endpoints"},
		{affinityDNAT{clients, 8080}, "dnat ip to ip saddr map @clients : 8080", "dnat ip6 to ip6 saddr map @clients : 8080"},
		{recordClient{clients}, "update @clients { ct original ip saddr : ip daddr }", "update @clients { ct original ip6 saddr : ip6 daddr }"},
		{countConnection{connections},
			"update @connections { ct original ip daddr . meta l4proto . ct original proto-dst . ip daddr . th dport counter }",
			"update @connections { ct original ip6 daddr . meta l4proto . ct original proto-dst . ip6 daddr . th dport counter }"},
		{toPort{53}, "th dport 53", ""},
		{within{saddr, prefix("10.0.0.0/8"), false}, "ip saddr 10.0.0.0/8", "ip6 saddr 10.0.0.0/8"},
		{within{daddr, prefix("192.0.2.1/32"), true}, "ip daddr != 192.0.2.1", "ip6 daddr != 192.0.2.1"},
		{fromInterface{"cbr0"}, `iifname "cbr0"`, ""},
		{isProto{service.SCTP}, "meta l4proto sctp", ""},
		{isLocal{saddr}, "fib saddr type local", ""},
		{isLocal{daddr}, "fib daddr type local", ""},
		{translated{}, "ct status dnat", ""},
		{invalid{}, "ct state invalid", ""},
		{marked{1 << 14}, "meta mark & 0x00004000 == 0x00004000", ""},
		{mark{1 << 31}, "meta mark set meta mark | 0x80000000", ""},
		{unmark{1}, "meta mark set meta mark & 0xfffffffe", ""},
		{masquerade{}, "masquerade fully-random", ""},
		{reject{tcp: true}, "reject with tcp reset", ""},
		{reject{}, "reject", ""},
		{counter{}, "counter", ""},
		{jumpVerdict("a"), "jump a", ""},
		{gotoVerdict("a"), "goto a", ""},
		{verdict{code: verdictReturn}, "return", ""},
		{verdict{code: verdictDrop}, "drop", ""},
		{verdict{code: verdictAccept}, "accept", ""},
	} {
		if tt.v6 == "" {
			tt.v6 = tt.v4
		}
		got := [2]string{tt.statement.text(service.IPv4), tt.statement.text(service.IPv6)}
		want := [2]string{tt.v4, tt.v6}
		kit.Check(t, got == want, "%#v is written %q, want %q", tt.statement, got, want)
	}
}

func TestSetTexts(t *testing.T) {
	for _, tt := range []struct {
		set  *set
		want string
	}{
		{services, "\tmap services {\n\t\ttypeof ip6 daddr . meta l4proto . th dport : verdict\n"},
		{endpoints, "\tmap endpoints {\n\t\ttypeof ip6 daddr . meta l4proto . th dport . numgen random mod 65536 : ip6 daddr . th dport\n"},
		{clusterIPs, "\tset cluster-ips {\n\t\ttypeof ip6 daddr\n"},
		{sources, "\tset sources {\n\t\ttypeof ip6 daddr . meta l4proto . th dport . ip6 saddr\n\t\tflags interval\n"},
		{
			&set{name: "c", kind: addrMap, key: clientKey, timeout: 3 * time.Hour, limit: clientLimit},
			"\tmap c {\n\t\ttypeof ip6 saddr : ip6 daddr\n\t\tsize 1048576\n\t\tflags dynamic,timeout\n\t\ttimeout 10800s\n",
		},
	} {
		kit.Same(t, fmt.Sprintf("%s (-want +got)", tt.set.name), tt.want, tt.set.text(service.IPv6))
	}
}

func TestElementTexts(t *testing.T) {
	key := appendPort(appendProto(appendAddr(nil, addr("10.96.0.10")), service.TCP), 80)
	to := appendPort(appendAddr(nil, addr("10.244.1.5")), 8080)
	for _, tt := range []struct {
		element element
		want    string
	}{
		{element{in: services, key: key, verdict: gotoVerdict("cluster-2"), comment: "shop/web:http"}, `10.96.0.10 . tcp . 80 comment "shop/web:http" : goto cluster-2`},
		{element{in: services, key: key, verdict: verdict{code: verdictDrop}}, "10.96.0.10 . tcp . 80 : drop"},
		{element{in: endpoints, key: appendSlot(key, 3), value: to}, "10.96.0.10 . tcp . 80 . 3 : 10.244.1.5 . 8080"},
		{element{in: clusterIPs, key: key[:4]}, "10.96.0.10"},
	} {
		got := tt.element.text(service.IPv4)
		kit.Check(t, got == tt.want, "element is written %q, want %q", got, tt.want)
	}
}

func TestOpTexts(t *testing.T) {
	c := &chain{name: "c", rules: []rule{{reject{}}, {reject{}}}}
	e := element{in: clusterIPs, key: []byte{10, 96, 0, 1}}
	for _, tt := range []struct {
		op   op
		want string
	}{
		{op{verb: delTable}, "- table kube-services"},
		{op{verb: addTable}, "+ table kube-services"},
		{op{verb: addSet, set: services}, "+ set services"},
		{op{verb: delSet, set: services}, "- set services"},
		{op{verb: addChain, chain: c}, "+ chain c"},
		{op{verb: delChain, chain: c}, "- chain c"},
		{op{verb: flushChain, chain: c}, "- rules of chain c"},
		{op{verb: addRules, chain: c}, "+ rules of chain c (2)"},
		{op{verb: addElement, element: e}, "+ cluster-ips: 10.96.0.1"},
		{op{verb: delElement, element: e}, "- cluster-ips: 10.96.0.1"},
	} {
		got := tt.op.text(service.IPv4)
		kit.Check(t, got == tt.want, "op is written %q, want %q", got, tt.want)
	}
}

// long has the maximum length of a Service or namespace name.
var long = strings.Repeat("n", 63)

// unusualPorts have names that the API permits and that nft might reject.
func unusualPorts() []*service.Port {
	names := []service.PortName{
		{Namespace: "shop", Name: "web"},
		{Namespace: "0", Name: "1", Port: "2"},
		{Namespace: "0day-ns", Name: "9front", Port: "80-http"},
		{Namespace: "drop", Name: "accept", Port: "goto"},
		{Namespace: "map", Name: "type-ip-daddr", Port: "counter"},
		{Namespace: "x--y", Name: "a-b--c", Port: "h--p"},
		{Namespace: "n.with.dots", Name: "s.with.dots", Port: "p"},
		{Namespace: long, Name: strings.Repeat("s", 63), Port: strings.Repeat("p", 15)},
		{Namespace: long, Name: strings.Repeat("s", 63), Port: strings.Repeat("p", 14) + "q"},
	}
	var ports []*service.Port
	for i, n := range names {
		n.Protocol = []service.Protocol{service.TCP, service.UDP, service.SCTP}[i%3]
		ports = append(ports, &service.Port{
			Name: n, Affinity: 86400 * time.Second, External: service.PolicyLocal,
			Frontends: []service.Frontend{
				{Kind: service.ClusterIP, Addr: generate.NthAddr("10.96.0.0", i), Port: 65535},
				{Kind: service.NodePort, Port: uint16(30000 + i)},
			},
			Cluster: []service.Endpoint{{Addr: addrPort("10.244.1.1:65535")}, {Addr: addrPort("10.244.1.2:65534")}},
			Local:   []service.Endpoint{{Addr: addrPort("10.244.1.1:65535"), Local: true}},
		})
	}
	return ports
}

// unquotedName matches what nft reads as one word without quotes.
var unquotedName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_./-]*$`)

// affinityNames returns the names of the chains and sets that only p uses.
func affinityNames(p *service.Port) []string {
	var names []string
	for _, s := range ownSets(p) {
		names = append(names, s.name)
	}
	for _, c := range ownChains(p, Options{}) {
		names = append(names, c.name)
	}
	return names
}

func TestNamesAreUniqueWordsOfNft(t *testing.T) {
	taken := map[string]bool{}
	for _, s := range baseSets {
		taken[s.name] = true
	}
	for _, c := range append(baseChains(service.IPv4, &service.Node{NodePorts: service.AnyAddress()}, Options{}), baseClasses.chains(Options{})...) {
		taken[c.name] = true
	}
	for _, p := range unusualPorts() {
		names := affinityNames(p)
		kit.Check(t, len(names) >= 10, "%s has %d objects of its own, want those of two lists", p.Name, len(names))
		for _, n := range names {
			kit.Check(t, unquotedName.MatchString(n) && len(n) <= 128,
				"name %q of %d bytes is not a word of nft", n, len(n))
			kit.Check(t, !taken[n], "name %q is taken", n)
			taken[n] = true
		}
	}
}

// The readable part identifies the Service. The hash before it never changes between
// versions, because a restarted process finds the clients map by it.
func TestServicePortID(t *testing.T) {
	for _, tt := range []struct {
		name service.PortName
		want string
	}{
		{service.PortName{Namespace: "shop", Name: "web", Protocol: service.TCP}, "-shop/web/tcp"},
		{service.PortName{Namespace: "shop", Name: "web", Port: "http", Protocol: service.UDP}, "-shop/web/udp/http"},
		{service.PortName{Namespace: long, Name: "web", Protocol: service.UDP}, "-" + long + "/web/udp"},
		{service.PortName{Namespace: long, Name: long, Protocol: service.UDP}, "-" + long + "/nnnnnnnn"},
	} {
		id := servicePortID(tt.name)
		hash, found := strings.CutSuffix(id, tt.want)
		kit.Check(t, found && len(hash) == 8, "clientID(%s) = %q, want eight letters and %q", tt.name, id, tt.want)
	}
	got, want := servicePortID(service.PortName{Namespace: "shop", Name: "web", Protocol: service.TCP}), "2n6w3cvw-shop/web/tcp"
	kit.Check(t, got == want, "clientID = %q, want %q as ever", got, want)
}

func TestComments(t *testing.T) {
	for _, tt := range []struct {
		name service.PortName
		want string
	}{
		{service.PortName{Namespace: "shop", Name: "web", Port: "http"}, "shop/web:http"},
		{service.PortName{Namespace: "shop", Name: "web"}, "shop/web"},
		{service.PortName{Namespace: long, Name: long, Port: "http"}, long + "/" + long[:53] + "..."},
	} {
		got := comment(tt.name)
		kit.Check(t, got == tt.want && len(got) <= 128, "comment = %q, want %q", got, tt.want)
	}
}

// TestSlotsInOrder checks that the endpoints of a Service are listed by number, also where
// the bytes of the number are in another order.
func TestSlotsInOrder(t *testing.T) {
	all, _ := Render(servicesWith(1, 300), Options{MasqueradeBit: 14})
	at := -1
	for _, n := range []string{" . 1 : ", " . 2 : ", " . 255 : ", " . 256 : ", " . 257 : ", " . 299 : "} {
		next := strings.Index(all.String(), n)
		kit.Check(t, next >= at && next >= 0, "%q stands before what has a lower number", n)
		at = next
	}
}

// TestReadBackNames checks that what is read back names what is wrong, and where.
func TestReadBackNames(t *testing.T) {
	k := &fake{family: service.IPv4}
	b := &Backend{family: service.IPv4, options: Options{MasqueradeBit: 14}, driver: k}
	want := simple(1)
	if held, wanted, err := b.ReadBack(t.Context(), want); err != nil || held != nil || !strings.HasPrefix(wanted.String(), "table ip kube-services {\n") {
		t.Errorf("without a table: %v, %q", err, held)
	}
	apply(t, b, want)
	held, wanted, err := b.ReadBack(t.Context(), want)
	kit.Check(t, err == nil && held.String() == wanted.String(), "%v; held:\n%s\nwanted:\n%s", err, held, wanted)
	for _, objects := range []reconcile.Objects{held, wanted} {
		of := service.PortName{Namespace: "shop", Name: "web-000", Protocol: service.TCP}
		kit.Check(t, slices.ContainsFunc(objects, func(o reconcile.Object) bool { return o.Port == of }),
			"nothing is for %s in\n%s", of, objects)
	}
	k.table.chains[dispatchChain].rules = append(k.table.chains[dispatchChain].rules, rule{verdict{code: verdictAccept}})
	k.table.chains["foreign"] = &fakeChain{}
	k.table.sets["foreign"] = &fakeSet{&set{name: "foreign"}, map[string]element{}}
	clear(k.table.sets[clusterIPs.name].elements)
	held, _, err = b.ReadBack(t.Context(), want)
	for _, text := range []string{"# a rule that others wrote", "chain foreign {", "set or map foreign {\n\t\t# not one that is wanted"} {
		kit.Check(t, err == nil && strings.Contains(held.String(), text), "%v, no %q in\n%s", err, text, held)
	}
	kit.Check(t, strings.Contains(wanted.String(), "set cluster-ips {\n\t\ttypeof ip daddr\n\t\telements") && !strings.Contains(held.String(), "set cluster-ips {\n\t\ttypeof ip daddr\n\t\telements"),
		"an emptied set is read back as\n%s", held)
}
