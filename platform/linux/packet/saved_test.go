// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"
	"slices"
	"testing"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

var (
	client = netip.MustParseAddr("192.0.2.7")
	front  = netip.MustParseAddrPort("10.0.0.1:80")
)

// near is a node that knows only its own address.
type near struct{}

func (near) Local(a netip.Addr) bool { return a == front.Addr() }
func (near) Route(a netip.Addr) (Link, uint8) {
	if a == front.Addr() {
		return Loopback(), Local
	}
	return Link{Unknown: true}, 0
}

// syn is a packet to front with a mark of which the bits in known are known.
func syn(mark, known uint32) *Packet {
	p := New(near{}, route.Conn{Protocol: service.TCP, From: client, To: front, Interface: "eth0"})
	p.In, p.Seen, p.mark = Link{Name: "eth0"}, true, number(mark, known)
	p.Out, _ = near{}.Route(front.Addr())
	return p
}

// start is the chain that tests begin with.
var start = Chain{Table: "filter", Name: "START"}

// matchOf returns whether a rule that drops matches p.
func matchOf(t *testing.T, rule string, p *Packet) Match {
	tables := NewSaved(nil)
	tables.Append(start, rule+" -j DROP")
	w := Walk{Tables: tables, Packet: p}
	f, err := w.Run(Base{Chain: start})
	switch {
	case err != nil:
		t.Fatal(err)
	case f.Does == explain.Drops:
		return Yes
	case len(f.Doubts) > 0:
		return Maybe
	}
	return No
}

func TestMatches(t *testing.T) {
	for rule, want := range map[string]Match{
		"": Yes, "-s 192.0.2.0/24": Yes, "! -s 192.0.2.0/24": No, "-d 10.0.0.2/32": No, "-d 10.0.0.1": Yes,
		"-i eth+": Yes, "-i eth": No, "! -i eth1": Yes, "-p tcp -m tcp --dport 80": Yes, "-p udp": No, "-m tcp --dport 81:90": No,
		"-m multiport --dports 22,79:81": Yes, "-m multiport ! --dports 22,79:81": No,
		"-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN": Yes, "-p tcp -m tcp --tcp-flags FIN FIN": No,
		"-p tcp -m tcp --tcp-flags ACK NONE": Yes, "-p tcp -m tcp --tcp-flags FIN,SYN NONE": No, "-p tcp -m tcp ! --tcp-flags ACK NONE": No,
		"-p tcp -m tcp --tcp-flags NONE NONE": Yes, "-p tcp -m tcp --tcp-flags SYN,ACK SYN,ACK": No, "-p tcp -m tcp --tcp-flags ALL SYN": Yes,
		"-m addrtype --dst-type LOCAL": Yes, "-m addrtype ! --dst-type LOCAL": No, "-m addrtype --src-type LOCAL": No, "-m addrtype --dst-type MULTICAST": No, "-m addrtype --src-type MULTICAST": No, "-m addrtype --src-type UNICAST": Maybe, "-m addrtype --src-type UNICAST,BROADCAST,ANYCAST": Yes,
		"-m conntrack --ctstate NEW": Yes, "-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT": Yes, "-m conntrack --ctdir REPLY": No, "-m state --state ESTABLISHED": No,
		"-m conntrack --ctorigdst 10.0.0.0/8": Yes, "-m mark --mark 0x4000/0x4000": Yes, "-m mark ! --mark 0x4000/0x4000": No, "-m mark --mark 0x4000": Yes,
		"-o lo": Yes, "! -o lo": No, "-o eth0": No,
		`-m comment --comment "a -s 1.2.3.4 \" b" -s 192.0.2.7/32`:  Yes,
		"-m statistic --mode random --probability 0.5":              Maybe,
		"-m statistic --mode random --probability 0.5 -s 10.0.0.0":  No,
		"-m recent --set --name A --mask 255.255.255.255 --rsource": Yes,
		"-m geoip --source-country DE":                              Maybe, "-m geoip --source-country DE -p udp": No, "! -f": Yes, "-f": No, "-p tcp -m tcp --sport 1024:65535": Maybe, "-p tcp -m tcp --sport 0:65535": Yes,
		"-m connmark --mark 0x4000/0x4000": No, "-m connmark --mark 0x0/0xffff": Yes, "-m policy --dir in --pol none --mode tunnel": Maybe,
		"-p 6": Yes, "-p icmp": No, "-d 10.0.0.0/255.0.0.255": Maybe, "-i eth+ -m physdev --physdev-in eth1": Maybe,
		"-m set --match-set X dst": Maybe, "-m bpf --bytecode \"1,6 0 0 0\"": Maybe, "-m owner --uid-owner 0": Maybe,
	} {
		kit.Equal(t, matchOf(t, rule, syn(0x4000, ^uint32(0))), want, "%q", rule)
	}
}

// routed is a node that knows the types of addresses by their last byte. Some have no route.
type routed struct{}

func (routed) Local(a netip.Addr) bool { return a.AsSlice()[a.BitLen()/8-1] == Local }
func (routed) Route(a netip.Addr) (Link, uint8) {
	return Link{Name: "eth0", Index: 2}, a.AsSlice()[a.BitLen()/8-1]
}

// TestAddressTypes checks what iptables and nftables call an address. Types of IPv6 are all to
// hold, apart from those by route.
func TestAddressTypes(t *testing.T) {
	const net4, net6 = "192.0.2.", "2001:db8::"
	for _, tt := range []struct {
		addr, types string
		want        Match
		fib         uint32
	}{
		{net4 + "2", "LOCAL,UNICAST", Yes, Local}, {net4 + "1", "LOCAL,UNICAST", Yes, Unicast}, {net4 + "1", "LOCAL", No, Unicast},
		{net4 + "3", "BROADCAST", Yes, broadcast}, {net4 + "3", "UNICAST", No, broadcast}, {"224.0.0.1", "MULTICAST", Yes, multicast},
		{net4 + "6", "BLACKHOLE", No, Unicast}, {net4 + "0", "UNICAST", Yes, Unicast}, {net4 + "0", "UNSPEC", No, Unicast},
		{net6 + "2", "LOCAL,UNICAST", Yes, Local}, {net6 + "1", "LOCAL,UNICAST", No, Unicast}, {net6 + "1", "UNICAST", Yes, Unicast},
		{net6 + "2", "UNICAST", Yes, Local}, {net6 + "4", "LOCAL,ANYCAST", Yes, anycast}, {net6 + "2", "UNICAST,MULTICAST", No, Local},
		{net6 + "6", "UNREACHABLE", Yes, 6}, {net6 + "0", "UNREACHABLE", Yes, 0}, {net6 + "1", "UNREACHABLE", No, Unicast},
		{"ff02::1", "MULTICAST", Yes, multicast}, {"ff02::1", "UNICAST", No, multicast}, {net6 + "1", "UNSPEC", No, Unicast},
	} {
		p := New(routed{}, route.Conn{Protocol: service.TCP, From: client, To: netip.AddrPortFrom(netip.MustParseAddr(tt.addr), 80)})
		kit.Equal(t, matchOf(t, "-m addrtype --dst-type "+tt.types, p), tt.want, "%s %s", tt.addr, tt.types)
		if got := matchOf(t, "-m addrtype ! --dst-type "+tt.types, p); got != tt.want.negated() {
			t.Errorf("%s ! %s: %d, want %d", tt.addr, tt.types, got, tt.want.negated())
		}
		value, known := p.fib(Fib{Type: true}).number()
		kit.Check(t, value == tt.fib && (tt.fib == 0 || known == ^uint32(0)),
			"%s: fib says %d of %#x, want %d", tt.addr, value, known, tt.fib)
		if _, known = p.fib(Fib{Type: true, Interfaces: true}).number(); (known != 0) != (tt.fib == Unicast) {
			t.Errorf("%s: fib knows %#x of the type on an interface", tt.addr, known)
		}
	}
}

// TestFlags: the first packet of TCP has SYN alone, apart from the flags for congestion.
func TestFlags(t *testing.T) {
	for flags, want := range map[string]Match{
		"SYN SYN": Yes, "FIN,SYN,RST,ACK SYN": Yes, "ALL SYN": Yes, "ACK NONE": Yes, "FIN,RST NONE": Yes,
		"SYN NONE": No, "SYN,ACK SYN,ACK": No, "ALL NONE": No, "ACK ACK": No,
	} {
		p := New(routed{}, route.Conn{Protocol: service.TCP, From: client, To: netip.MustParseAddrPort("192.0.2.1:80")})
		kit.Equal(t, matchOf(t, "-p tcp -m tcp --tcp-flags "+flags, p), want, "%s", flags)
		if got := matchOf(t, "-p tcp -m tcp ! --tcp-flags "+flags, p); got != want.negated() {
			t.Errorf("! %s: %d, want %d", flags, got, want.negated())
		}
	}
}

// TestVagueMark checks marks of which not all bits are known, and what makes them so.
func TestVagueMark(t *testing.T) {
	for rule, want := range map[string]Match{
		"--mark 0x4000/0x4000": Maybe, "! --mark 0x4000/0x4000": Maybe, "--mark 0x1/0x1": Yes, "! --mark 0x1/0x1": No, "--mark 0x2/0x4002": No,
	} {
		kit.Equal(t, matchOf(t, "-m mark "+rule, syn(1, ^uint32(0x4000))), want, "%q", rule)
	}
	for rule, want := range map[string][2]uint32{
		"-j MARK --set-xmark 0x2/0xff":                                      {0x2, 0x4000},
		"-j MARK --set-xmark 0x4000/0x4000":                                 {0x4001, 0},
		"-m geoip --cc DE -j MARK --set-xmark 0x2/0x3":                      {0, 0x4003},
		"-m geoip --cc DE -j MARK --set-xmark 0x1/0x1":                      {0x1, 0x4000},
		"-m statistic --probability 0.5 -j MARK --set-xmark 0x0/0xffffffff": {0, 0x4001},
	} {
		tables := NewSaved(nil)
		tables.Append(start, rule)
		w := &Walk{Tables: tables, Packet: syn(1, ^uint32(0x4000))}
		_, err := w.Run(Base{Chain: start})
		value, known := w.Packet.mark.number()
		if got := [2]uint32{value, ^known}; got != want || err != nil {
			t.Errorf("%q: mark and unknown bits %#x, %v, want %#x", rule, got, err, want)
		}
	}
}

func TestConcerns(t *testing.T) {
	for rule, want := range map[string]bool{
		"-m conntrack ! --ctstate NEW": true, "-m mark ! --mark 0x4000/0x4000": true, "-s 10.0.0.0/8": false, "-p tcp -m tcp --dport 81": false, "-i eth1": false,
	} {
		tables := NewSaved(nil)
		tables.Append(start, rule+" -j DROP")
		kit.Equal(t, Concerns(&tables.List(start)[0], *syn(0, 0)), want, "%q", rule)
	}
}

// walked runs the chain START of a table.
func walked(t *testing.T, table string, chains map[string][]string, owns func(Chain) bool) Finding {
	tables := NewSaved(nil)
	for name, rules := range chains {
		tables.Append(Chain{Table: table, Name: name}, rules...)
	}
	w := Walk{Tables: tables, Packet: syn(0x4000, ^uint32(0)), Owns: owns}
	f, err := w.Run(Base{Chain: Chain{Table: table, Name: "START"}})
	kit.Must(t, err)
	return f
}

func TestVerdicts(t *testing.T) {
	for _, tc := range []struct {
		chains   map[string][]string
		want     explain.Deed
		by       string
		doubtful int
	}{
		{nil, explain.Passes, "", 0},
		{map[string][]string{"START": {"-j NEXT", "-j DROP"}, "NEXT": {"-p udp -j ACCEPT"}}, explain.Drops, "-j DROP", 0},
		{map[string][]string{"START": {"-g NEXT", "-j DROP"}, "NEXT": {"-p udp -j ACCEPT"}}, explain.Passes, "", 0},
		{map[string][]string{"START": {"-j NEXT", "-j REJECT"}, "NEXT": {"-j RETURN", "-j DROP"}}, explain.Refuses, "-j REJECT", 0},
		{map[string][]string{"START": {"-j MARK --set-xmark 0x4000/0x0", "-m mark --mark 0x4000/0x4000 -j DROP", "-j ACCEPT"}}, explain.Passes, "-j ACCEPT", 0},
		{map[string][]string{"START": {"-m geoip --cc DE -j DROP", "-m geoip --cc DE -j LOG", "-j ACCEPT"}}, explain.Passes, "-j ACCEPT", 1},
		{map[string][]string{"START": {"-j NFQUEUE --queue-num 1"}}, explain.Passes, "", 1},
		{map[string][]string{"START": {"-j START"}}, explain.Passes, "", 0}, // the kernel refuses that
	} {
		f := walked(t, "filter", tc.chains, nil)
		by := f.By.Text + f.Accepted.Text
		kit.Check(t, f.Does == tc.want && by == tc.by && len(f.Doubts) == tc.doubtful,
			"%q: %q by %q, doubts %v; want %q by %q", tc.chains, f.Does, by, f.Doubts, tc.want, tc.by)
	}
}

// TestOwned checks that chances are followed in chains of the mode, and not elsewhere.
func TestOwned(t *testing.T) {
	a, b := netip.MustParseAddrPort("10.1.0.1:80"), netip.MustParseAddrPort("10.1.0.2:80")
	half, all := "-m statistic --mode random --probability 0.5 -j DNAT --to-destination "+a.String(), "-j DNAT --to-destination "+b.String()
	chains := map[string][]string{"START": {"-j NEXT"}, "NEXT": {"-p tcp " + half, "-p tcp " + all, half}}
	for name, tc := range map[string]struct {
		owns    func(Chain) bool
		targets []netip.AddrPort
		steps   int // two chains, the jump, two rules
		doubts  int
	}{
		"all":  {func(Chain) bool { return true }, []netip.AddrPort{a, b}, 5, 0},
		"none": {nil, nil, 4, 2},
	} {
		f := walked(t, "nat", chains, tc.owns)
		if is := f.Does == explain.Translates; is != (tc.owns != nil) || !slices.Equal(f.Targets, tc.targets) || len(f.Steps) != tc.steps || len(f.Doubts) != tc.doubts {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

// TestAlone has rules of others before and behind a jump to a chain of the mode. Only where none of
// them may match, nor a policy decides, the packet met nothing else.
func TestAlone(t *testing.T) {
	owns := func(c Chain) bool { return c.Name == "OURS" }
	for _, tc := range []struct {
		start []string
		drops bool // the policy
		want  bool
	}{
		{start: []string{"-j OURS"}, want: true},
		{start: []string{"-p udp -j ACCEPT", "-p tcp -j OURS", "-p udp -j DROP"}, want: true},
		{start: []string{"-j ACCEPT"}},
		{start: []string{"-j OURS", "-j THEIRS"}},
		{start: []string{"-j MARK --set-xmark 0x1/0x1", "-j OURS"}},
		{start: []string{"-m geoip --cc DE -j ACCEPT", "-j OURS"}},
		{start: []string{"-m geoip --cc DE -j OURS"}},
		{start: []string{"-j OURS"}, drops: true},
	} {
		tables := NewSaved(nil)
		start := Chain{Table: "filter", Name: "START"}
		tables.Append(start, tc.start...)
		tables.Append(Chain{Table: "filter", Name: "OURS"}, "-j RETURN", "-m geoip --cc DE -j RETURN")
		tables.Append(Chain{Table: "filter", Name: "THEIRS"}, "-p udp -j ACCEPT")
		w := Walk{Tables: tables, Packet: syn(0, ^uint32(0)), Owns: owns}
		f, err := w.Run(Base{Chain: start, Drops: tc.drops})
		if kit.Must(t, err); f.Alone != tc.want {
			t.Errorf("%q, policy drops: %t: alone %t, want %t", tc.start, tc.drops, f.Alone, tc.want)
		}
	}
}

func TestParse(t *testing.T) {
	tables := Parse("# by iptables\n*filter\n:INPUT DROP [0:0]\n:MINE - [0:0]\n-A INPUT -s 10.0.0.0/8 -j MINE\n-A MINE -j RETURN\nCOMMIT\n")
	w := Walk{Tables: tables, Packet: syn(0, 0)}
	input := Chain{Table: "filter", Name: "INPUT"}
	if f, err := w.Run(tables.Base(input)); err != nil || f.Does != explain.Drops || f.By.String() != "the policy of chain INPUT of table filter" {
		t.Errorf("%+v, %v, want what the policy says", f, err)
	}
	if got := tables.List(Chain{Table: "filter", Name: "MINE"}); len(got) != 1 || got[0].Text != "-j RETURN" {
		t.Errorf("rules %+v", got)
	}
	if tables.Remove("filter"); tables.Has(Chain{Table: "filter", Name: "INPUT"}) {
		t.Error("the table is still there")
	}
}
