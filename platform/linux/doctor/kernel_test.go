// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"kubeproxy/common/doctor"
	"kubeproxy/common/lease"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/packet"
	"kubeproxy/platform/linux/sysctl"
	"kubeproxy/test/kit"
)

const forward4, forward6 = "proc/sys/net/ipv4/ip_forward", "proc/sys/net/ipv6/conf/all/forwarding"

func TestForwarding(t *testing.T) {
	for situation, test := range map[string]struct {
		v4, v6, mode string
		addr6        bool
		want         []string
	}{
		"both":                   {"1", "1", "nftables", true, nil},
		"neither":                {"0", "0", "nftables", true, []string{"ip-forward | net.ipv4.ip_forward | sysctl -w net.ipv4.ip_forward=1", "ip-forward | net.ipv6.conf.all.forwarding | sysctl -w net.ipv6.conf.all.forwarding=1"}},
		"no IPv6 on the node":    {"1", "0", "iptables", false, nil},
		"2 is enough":            {"1", "2", "ipvs", true, nil},
		"relayed by the process": {"0", "0", "userspace", true, nil},
	} {
		t.Run(situation, func(t *testing.T) {
			n := newNode(map[string]string{forward4: test.v4, forward6: test.v6})
			n.Modes = mode(test.mode)
			n.Kernel = &fakeKernel{links: []Link{{Name: "eth0", Global: both(true, test.addr6)}}}
			expect(t, n.forwarding, test.want)
		})
	}
	n := newNode(map[string]string{forward4: "1", forward6: "1", "proc/sys/net/ipv6/conf/all/disable_ipv6": "1"})
	n.Kernel = &fakeKernel{links: []Link{{Name: "eth0", Global: both(true, false)}}}
	expect(t, n.forwarding, nil)
	n.Services = func(context.Context) (*service.Snapshot, error) {
		return service.New(1, &service.Node{}, []*service.Port{{Family: service.IPv6}}), nil
	}
	expect(t, n.forwarding, []string{"ip-forward | net.ipv6.conf.all.disable_ipv6 | sysctl -w net.ipv6.conf.all.disable_ipv6=0"}, "1 Service ports")
	_, err := newNode(nil).forwarding(t.Context())
	kit.Check(t, err != nil, "a setting that cannot be read is no error")
}

func TestReversePathFilter(t *testing.T) {
	const all, eth0, eth1 = "proc/sys/net/ipv4/conf/all/rp_filter", "proc/sys/net/ipv4/conf/eth0/rp_filter", "proc/sys/net/ipv4/conf/eth1/rp_filter"
	pod := Link{Name: "veth2", Global: both(true, false)}
	two := []Link{link("eth1", ""), link("eth0", ""), {Name: "cni0", Bridge: true, Subnet: true}, link("veth1", "cni0"), pod}
	fix := []string{"rp-filter |  | sysctl -w net.ipv4.conf.all.rp_filter=2"}
	for situation, test := range map[string]struct {
		all, eth0, eth1 string
		links           []Link
		want            []string
		words           string
	}{
		"off":                         {"0", "0", "0", two, nil, ""},
		"loose everywhere":            {"2", "1", "1", two, nil, ""},
		"strict everywhere":           {"1", "0", "0", two, fix, "eth0, eth1"},
		"strict on one":               {"0", "2", "1", two, fix, "on eth1,"},
		"one interface is never hurt": {"1", "1", "0", two[1:], nil, ""},
	} {
		t.Run(situation, func(t *testing.T) {
			n := newNode(map[string]string{all: test.all, eth0: test.eth0, eth1: test.eth1})
			n.Kernel = &fakeKernel{links: test.links}
			expect(t, n.reversePathFilter, test.want, strings.Fields(test.words)...)
		})
	}
}

func TestBridges(t *testing.T) {
	const v4, v6 = "proc/sys/net/bridge/bridge-nf-call-iptables", "proc/sys/net/bridge/bridge-nf-call-ip6tables"
	const fix = "sysctl -w net.bridge.bridge-nf-call-iptables=1 net.bridge.bridge-nf-call-ip6tables=1"
	bridge := []Link{link("eth0", ""), {Name: "cni0", Bridge: true}, link("veth1", "cni0")}
	for situation, test := range map[string]struct {
		files map[string]string
		mode  string
		links []Link
		want  []string
	}{
		"passes":         {map[string]string{v4: "1", v6: "1"}, "nftables", bridge, nil},
		"off":            {map[string]string{v4: "0", v6: "1"}, "nftables", bridge, []string{"br-netfilter |  | " + fix}},
		"not loaded":     {nil, "iptables", bridge, []string{"br-netfilter |  | modprobe br_netfilter && " + fix}},
		"no ports":       {nil, "nftables", bridge[:2], nil},
		"no bridge":      {nil, "nftables", bridge[:1], nil},
		"mode userspace": {nil, "userspace", bridge, nil},
	} {
		t.Run(situation, func(t *testing.T) {
			n := newNode(test.files)
			n.Modes, n.Kernel = mode(test.mode), &fakeKernel{links: test.links}
			expect(t, n.bridges, test.want)
		})
	}
}

func TestSettings(t *testing.T) {
	const liberal, timeout = "proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal", "proc/sys/net/netfilter/nf_conntrack_udp_timeout"
	const hashsize, limit = "sys/module/nf_conntrack/parameters/hashsize", "proc/sys/net/netfilter/nf_conntrack_max"
	files := map[string]string{liberal: "0", timeout: "30", hashsize: "1024", limit: "65536"}
	with := func(name, value string) map[string]string {
		now := maps.Clone(files)
		now[name] = value
		return now
	}
	wants := sysctl.Settings{UDP: 40 * time.Second}
	for situation, test := range map[string]struct {
		files    map[string]string
		settings sysctl.Settings
		writable bool
		mode     string
		want     []string
	}{
		"nothing asked for":      {files, sysctl.Settings{}, false, "nftables", nil},
		"the proxy can write it": {files, wants, true, "nftables", nil},
		"it cannot":              {files, wants, false, "nftables", []string{"setting | net.netfilter.nf_conntrack_udp_timeout | sysctl -w net.netfilter.nf_conntrack_udp_timeout=40"}},
		"of a module": {files, sysctl.Settings{MaxPerCore: 65536, CPUs: 1}, false, "nftables",
			[]string{"setting | nf_conntrack hashsize | echo 16384 > /sys/module/nf_conntrack/parameters/hashsize"}},
		"no conntrack yet":   {nil, wants, false, "nftables", nil},
		"liberal":            {with(liberal, "1"), sysctl.Settings{}, false, "iptables", []string{"be-liberal | net.netfilter.nf_conntrack_tcp_be_liberal | sysctl -w net.netfilter.nf_conntrack_tcp_be_liberal=0"}},
		"liberal, asked for": {with(liberal, "1"), sysctl.Settings{TCPBeLiberal: true}, false, "iptables", nil},
		"liberal, relayed":   {with(liberal, "1"), sysctl.Settings{}, false, "userspace", nil},
	} {
		t.Run(situation, func(t *testing.T) {
			n := newNode(test.files)
			n.Settings, n.Modes = test.settings, mode(test.mode)
			n.Writable = func(string) bool { return test.writable }
			expect(t, n.settings, test.want)
		})
	}
}

// lossy is the file of Linux 6.18 on two processors, whose columns stand further apart than
// one space.
const lossy = `entries  clashres found new invalid ignore delete chainlength insert insert_failed drop early_drop icmp_error  expect_new expect_create expect_delete search_restart
00040000  00000000 00000003 00000000 00000011 00000000 00000000 00000000 00000000 00000200 00000000 00000000 00000000  00000000 00000000 00000000 00000000
00040000  00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 000001f0 00000000 0000009e 00000000  00000000 00000000 00000000 00000002
`

func TestConntrack(t *testing.T) {
	const count, limit, statistics = "proc/sys/net/netfilter/nf_conntrack_count", "proc/sys/net/netfilter/nf_conntrack_max", "proc/thread-self/net/stat/nf_conntrack"
	const head = "entries  insert_failed drop early_drop icmp_error\n"
	for situation, test := range map[string]struct {
		count, statistics string
		want              []string
	}{
		"room":               {"899", head + "00000001 00000000 00000001 00000000 00000000", nil},
		"nearly full":        {"900", head, []string{"conntrack-full |  | sysctl -w net.netfilter.nf_conntrack_max=2000"}},
		"was full":           {"1", head + "00000001 00000000 00000000 00000001 00000000\n00000001 00000000 00000000 0000000a 00000000", []string{"early-drop |  | sysctl -w net.netfilter.nf_conntrack_max=2000"}},
		"a file of a kernel": {"1", lossy, []string{"early-drop |  | sysctl -w net.netfilter.nf_conntrack_max=2000", "insert-failed |  | "}},
		"a few races":        {"1", head + "00000001 000003e7 00000000 00000000 00000000", nil},
		"many, on two cores": {"1", head + "00000001 000001f4 00000000 00000000 00000000\n00000001 000001f4 00000000 00000000 00000000", []string{"insert-failed |  | "}},
	} {
		t.Run(situation, func(t *testing.T) {
			expect(t, newNode(map[string]string{count: test.count, limit: "1000", statistics: test.statistics}).conntrack, test.want)
		})
	}
	expect(t, newNode(map[string]string{count: "1", limit: "1000"}).conntrack, nil) // built without statistics
	expect(t, newNode(nil).conntrack, nil)
	_, err := newNode(map[string]string{count: "1", limit: "1000", statistics: head + "x"}).conntrack(t.Context())
	kit.Check(t, err != nil, "an odd line is no error")
}

func TestServiceRoutes(t *testing.T) {
	port := func(name, addr string, kind service.Kind) *service.Port {
		a := netip.MustParseAddr(addr)
		return &service.Port{Name: service.PortName{Namespace: "shop", Name: name}, Family: service.FamilyOf(a), Frontends: []service.Frontend{{Kind: kind, Addr: a, Port: 80}}}
	}
	ports := []*service.Port{
		port("web", "10.96.0.10", service.ClusterIP), port("dns", "10.96.0.9", service.ClusterIP),
		port("six", "fd96::1", service.ClusterIP), port("lb", "203.0.113.1", service.LoadBalancerIP),
	}
	unreachable := errors.New("network is unreachable")
	all := map[string]error{"10.96.0.9": unreachable, "10.96.0.10": unreachable, "fd96::1": unreachable, "203.0.113.1": unreachable}
	for name, tt := range map[string]struct {
		mode   string
		routes map[string]error
		ranges []netip.Prefix
		want   []string
	}{
		"routes":   {"nftables", map[string]error{"203.0.113.1": unreachable}, nil, nil},
		"ipvs":     {"ipvs", all, nil, nil},
		"one lost": {"iptables", map[string]error{"10.96.0.10": unreachable}, nil, []string{"service-route | IPv4 | ip route replace 10.96.0.10/32 dev eth0"}},
		"range not known": {"iptables", map[string]error{"10.96.0.9": unreachable, "10.96.0.10": unreachable}, nil,
			[]string{"service-route | IPv4 | ip route replace 10.96.0.8/30 dev eth0"}},
		"no route": {"nftables", all, []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, []string{
			"service-route | IPv4 | ip route replace 10.96.0.0/16 dev eth0", "service-route | IPv6 | ",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(nil)
			n.Modes = mode(tt.mode)
			n.Kernel = &fakeKernel{links: []Link{{Name: "eth0", Global: both(true, false)}}}
			n.Route = func(a netip.Addr) error { return tt.routes[a.String()] }
			n.Services = func(context.Context) (*service.Snapshot, error) {
				return service.New(1, &service.Node{ServiceCIDRs: tt.ranges}, ports), nil
			}
			expect(t, n.serviceRoutes, tt.want)
		})
	}
}

func TestSharedMark(t *testing.T) {
	n := newNode(nil)
	expect(t, n.sharedMark, nil)
	n.SharedMark = func(f service.Family) (string, error) {
		return map[service.Family]string{service.IPv6: "another program"}[f], nil
	}
	expect(t, n.sharedMark, []string{"shared-mark | shared-mark-IPv6 | "})
}

// with gives c its rules, and an empty chain OTHER, as iptables-save prints them.
func (c Chain) with(rules ...string) Chain {
	tables := packet.NewSaved(nil)
	tables.Append(packet.Chain{Table: "filter", Name: "OTHER"})
	tables.Append(packet.Chain{Table: "filter", Name: "FLANNEL-FWD"}, "-s 10.244.0.0/16 -j ACCEPT")
	tables.Append(packet.Chain{Table: "filter", Name: "DOCKER-USER"}, "-j RETURN")
	c.Base = packet.Base{Chain: packet.Chain{Table: "filter", Name: c.Name}, Drops: true}
	tables.Append(c.Base.Chain, rules...)
	c.Tables = tables
	return c
}

func TestInputPolicy(t *testing.T) {
	nft := Chain{Hook: Input, Family: "ip", Table: "filter", Name: "INPUT"}.with
	own := Chain{Hook: Input, Family: "inet", Table: "firewall", Name: "in"}.with()
	legacy := Chain{Hook: Input, Family: "ip6", Table: "filter", Name: "INPUT", Legacy: true}.with()
	for situation, test := range map[string]struct {
		chain  Chain
		mode   string
		checks []uint16
		want   []string
	}{
		"nothing accepted": {nft("-i lo -j ACCEPT", "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "-i docker0 -j ACCEPT", "-j OTHER"), "nftables", []uint16{31000, 30100},
			[]string{"input-policy | chain INPUT of table ip filter of nftables | iptables-nft -I INPUT -p tcp -m multiport --dports 30100,31000 -j ACCEPT"}},
		"of nftables": {own, "nftables", []uint16{31000},
			[]string{"input-policy | chain in of table inet firewall of nftables | nft insert rule inet firewall in tcp dport '{ 31000 }' accept"}},
		"of iptables-legacy": {legacy, "nftables", []uint16{31000},
			[]string{"input-policy | chain INPUT of ip6tables-legacy | ip6tables-legacy -I INPUT -p tcp -m multiport --dports 31000 -j ACCEPT"}},
		"one of two accepted": {nft("-p tcp -m tcp --dport 31000 -j ACCEPT"), "nftables", []uint16{31000, 31001},
			[]string{"input-policy | chain INPUT of table ip filter of nftables | iptables-nft -I INPUT -p tcp -m multiport --dports 31001 -j ACCEPT"}},
		"accepted on the way in": {nft("-i eth0 -j ACCEPT"), "nftables", []uint16{31000}, nil},
		"accepted for some":      {nft("-s 10.0.0.0/8 -p tcp -m tcp --dport 31000 -j ACCEPT"), "nftables", []uint16{31000}, nil},
		"accepted by multiport":  {nft("-p tcp -m multiport --dports 22,31000:31002 -j ACCEPT"), "nftables", []uint16{31001}, nil},
		"accepted by a range":    {nft("-p tcp -m tcp --dport 30000:32767 -j ACCEPT"), "nftables", []uint16{31001}, nil},
		"dropped":                {nft("-p tcp -m tcp --dport 31000 -j DROP", "-j ACCEPT"), "nftables", []uint16{31000}, []string{"input-policy | chain INPUT of table ip filter of nftables | iptables-nft -I INPUT -p tcp -m multiport --dports 31000 -j ACCEPT"}},
		"all but it":             {nft("-p tcp -m tcp ! --dport 31000 -j ACCEPT"), "nftables", []uint16{31000}, []string{"input-policy | chain INPUT of table ip filter of nftables | iptables-nft -I INPUT -p tcp -m multiport --dports 31000 -j ACCEPT"}},
		"no health checks":       {nft(), "nftables", nil, nil},
		"a mode that accepts":    {nft(), "iptables", []uint16{31000}, nil},
		"it accepts elsewhere": {own, "iptables", []uint16{31000},
			[]string{"input-policy | chain in of table inet firewall of nftables | nft insert rule inet firewall in tcp dport '{ 31000 }' accept"}},
		"mode ipvs":               {own, "ipvs", []uint16{31000}, []string{"input-policy | chain in of table inet firewall of nftables | "}},
		"a chain for other hooks": {Chain{Hook: Forward}.with(), "nftables", []uint16{31000}, nil},
	} {
		t.Run(situation, func(t *testing.T) {
			n := newNode(nil)
			n.Modes, n.Kernel = mode(test.mode), &fakeKernel{links: []Link{link("eth0", "")}, chains: []Chain{test.chain}}
			var ports []*service.Port
			for i, p := range test.checks {
				ports = append(ports, &service.Port{Name: service.PortName{Name: string(rune('a' + i))}, HealthCheck: p})
			}
			n.Services = func(context.Context) (*service.Snapshot, error) { return service.New(1, &service.Node{}, ports), nil }
			expect(t, n.inputPolicy, test.want)
		})
	}
	n := newNode(nil) // no Services are known
	n.Kernel = &fakeKernel{chains: []Chain{nft()}}
	expect(t, n.inputPolicy, nil)
}

func TestForwardPolicy(t *testing.T) {
	filter := Chain{Hook: Forward, Family: "ip", Table: "filter", Name: "FORWARD"}.with
	for situation, test := range map[string]struct {
		chain Chain
		mode  string
		want  []string
	}{
		"docker alone": {filter("-j DOCKER-USER", "-o docker0 -j ACCEPT", "-i docker0 ! -o docker0 -j ACCEPT", "-i br-12ab -j ACCEPT"), "nftables",
			[]string{"forward-policy | chain FORWARD of table ip filter of nftables | iptables-nft -I FORWARD -m conntrack --ctstate DNAT -j ACCEPT"}},
		"known connections": {filter("-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "-j OTHER"), "nftables",
			[]string{"forward-policy | chain FORWARD of table ip filter of nftables | iptables-nft -I FORWARD -m conntrack --ctstate DNAT -j ACCEPT"}},
		"of iptables-legacy": {Chain{Hook: Forward, Family: "ip", Table: "filter", Name: "FORWARD", Legacy: true}.with("-j DOCKER-USER"), "nftables",
			[]string{"forward-policy | chain FORWARD of iptables-legacy | iptables-legacy -I FORWARD -m conntrack --ctstate DNAT -j ACCEPT"}},
		"of nftables": {Chain{Hook: Forward, Family: "inet", Table: "firewall", Name: "fwd"}.with(), "nftables",
			[]string{"forward-policy | chain fwd of table inet firewall of nftables | nft insert rule inet firewall fwd ct status dnat accept"}},
		"a network plugin accepts": {filter("-j DOCKER-USER", "-j FLANNEL-FWD"), "nftables", nil},
		"addresses of pods":        {filter("-d 10.244.0.0/16 -j ACCEPT"), "nftables", nil},
		"an interface of pods":     {filter("-i cni0 -j ACCEPT"), "nftables", nil},
		"what was translated":      {filter("-m conntrack --ctstate DNAT -j ACCEPT"), "nftables", nil},
		"a mode that accepts":      {filter(), "iptables", nil},
		"one that relays":          {Chain{Hook: Forward, Family: "inet", Table: "firewall", Name: "fwd"}.with(), "userspace", nil},
		"it accepts elsewhere": {Chain{Hook: Forward, Family: "inet", Table: "firewall", Name: "fwd"}.with(), "iptables",
			[]string{"forward-policy | chain fwd of table inet firewall of nftables | nft insert rule inet firewall fwd ct status dnat accept"}},
		"of the other variant": {Chain{Hook: Forward, Family: "ip", Table: "filter", Name: "FORWARD", Legacy: true}.with("-j DOCKER-USER"), "iptables",
			[]string{"forward-policy | chain FORWARD of iptables-legacy | iptables-legacy -I FORWARD -m conntrack --ctstate DNAT -j ACCEPT"}},
		"another hook": {Chain{Hook: Input}.with(), "nftables", nil},
	} {
		t.Run(situation, func(t *testing.T) {
			n := newNode(nil)
			n.Modes, n.Kernel = mode(test.mode), &fakeKernel{chains: []Chain{test.chain}}
			expect(t, n.forwardPolicy, test.want)
		})
	}
}

func TestFirewalls(t *testing.T) {
	for name, want := range map[string][]string{
		"kube-services":    nil,
		"firewalld":        {"firewall | firewalld | "},
		"ufw-before-input": {"firewall | ufw | "},
	} {
		n := newNode(nil)
		n.Kernel = &fakeKernel{names: []string{"filter", name}}
		expect(t, n.firewalls, want)
	}
}

// fakeKernel has what a test says.
type fakeKernel struct {
	links  []Link
	chains []Chain
	names  []string
}

func (k *fakeKernel) Links() ([]Link, error)                          { return k.links, nil }
func (k *fakeKernel) FirewallNames(context.Context) ([]string, error) { return k.names, nil }
func noHolder(context.Context) (lease.Identity, error)                { return lease.Identity{}, errors.New("nobody") }
func noServices(context.Context) (s *service.Snapshot, err error)     { return nil, nil }
func both(v4, v6 bool) [2]bool                                        { return [2]bool{service.IPv4: v4, service.IPv6: v6} }

func mode(name string) []Mode {
	return []Mode{{Name: name, Relays: name == "userspace", XTables: name != "nftables", Routes: name == "ipvs"}}
}

func link(name, master string) Link {
	return Link{Name: name, Master: master, Global: both(master == "", false), Subnet: master == ""}
}

func (k *fakeKernel) FilterChains(_ context.Context, each func(*Chain) error) error {
	for i := range k.chains {
		if err := each(&k.chains[i]); err != nil {
			return err
		}
	}
	return nil
}

// newNode returns a node with these files, which nobody may write.
func newNode(files map[string]string) *Node {
	root := fstest.MapFS{}
	for name, text := range files {
		root[name] = &fstest.MapFile{Data: []byte(text + "\n")}
	}
	return &Node{
		Files: root, Proc: fstest.MapFS{}, Writable: func(string) bool { return false }, Modes: mode("nftables"), Services: noServices, Holder: noHolder, IPTables: func() (Variants, error) { return Variants{Used: "nft"}, nil },
		Kernel: &fakeKernel{links: []Link{link("eth0", "")}},
	}
}

// expect runs look and compares what it found, a line for each Finding: its topic, its
// subject and its fix. words must be in what the first one says or advises. No fix may
// harm.
func expect(t *testing.T, look func(context.Context) (doctor.Seen, error), want []string, words ...string) {
	t.Helper()
	seen, err := look(t.Context())
	kit.Must(t, err)
	var got []string
	for _, f := range seen.Findings {
		got = append(got, strings.Join([]string{string(f.Topic), f.Subject, f.Fix}, " | "))
		kit.Check(t, f.What != "" && f.Topic.Why() != "" && f.Fix+f.Advice != "", "says nothing: %+v", f)
		kit.Check(t, !kit.MayHarm(f.Fix), "a command that may harm is a fix: %+v", f)
	}
	kit.Check(t, strings.Join(got, "\n") == strings.Join(want, "\n"),
		"found\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	for _, w := range words {
		kit.Check(t, len(seen.Findings) != 0 && strings.Contains(seen.Findings[0].What+" "+seen.Findings[0].Advice, w),
			"%+v does not say %q", seen.Findings, w)
	}
	kit.Check(t, len(want) != 0 || seen.Note != "", "does not say what it looked at")
}
