// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	"kubeproxy/common/service"
	"kubeproxy/test/netlab"
)

// ruleCase is a connection, and the rules of others that concern it alone, by the address of
// its client.
type ruleCase struct {
	number int
	probe  probe
	client *netlab.Host
	device string // by which it enters the node, "" for a process of the node
	// leads are where the Service leads, and the device. Without a Service it is where it goes.
	leads netip.AddrPort
	leave string
	local bool // it ends on the node
	rules map[string]*madeRule
}

// madeRule is a rule of a case. Its comment in the kernel is its id.
type madeRule struct {
	id, chain, text string
	kinds           []string
	ends            bool // a packet that matches it ends here, or goes elsewhere
}

// hooks are those that the packet passes.
func (c *ruleCase) hooks() []string {
	switch {
	case c.device == "" && c.local:
		return []string{"output", "postrouting", "prerouting", "input"}
	case c.device == "":
		return []string{"output", "postrouting"}
	case c.local:
		return []string{"prerouting", "input"}
	}
	return []string{"prerouting", "forward", "postrouting"}
}

// condition is one sort of match.
type condition struct {
	kind  string
	words func(*ruleMaker) string
	// protocol means that it names a protocol, which one condition of a rule may do.
	protocol bool
	// vague means that explain does not know what it asks for.
	vague bool
	// hooks are those that take it, all if it is empty.
	hooks string
}

// ruleMaker makes rules that others could have.
type ruleMaker struct {
	*rand.Rand
	family     service.Family
	conditions []condition
	*ruleCase
	hook    string // at which the rules are evaluated
	table   string // of iptables
	nat     bool
	early   bool // before connection tracking
	chains  int
	text    []string // of chains
	writing func(r *ruleMaker, chain, conditions, verdict, comment string) string
	verdict func(r *ruleMaker, depth int) (words string, ends bool)
}

func pick[T any](r *ruleMaker, all ...T) T { return all[r.IntN(len(all))] }

// byFamily returns the first text for IPv4.
func (r *ruleMaker) byFamily(v4, v6 string) string {
	if r.family == service.IPv4 {
		return v4
	}
	return v6
}

// ip is the word of nft for the family.
func (r *ruleMaker) ip() string { return r.byFamily("ip", "ip6") }

// single returns an address that matters more often than not.
func (r *ruleMaker) single() string {
	return pick(r, r.probe.from.Addr().String(), r.probe.to.Addr().String(), r.leads.Addr().String(), r.leads.Addr().String(),
		r.byFamily("10.96.0.10", "fd00:10:96::a"), r.byFamily("10.244.1.11", "fd00:10:244:1::11"), r.byFamily("203.0.113.7", "2001:db8:3::7"))
}

// addr returns an address or a prefix.
func (r *ruleMaker) addr() string {
	s := r.single()
	if r.IntN(2) == 0 {
		return s
	}
	a := netip.MustParseAddr(s)
	p, _ := a.Prefix(a.BitLen() - pick(r, 1, 4, 8, 16, 24))
	return p.String()
}

// distinct joins n different results of draw.
func (r *ruleMaker) distinct(n int, draw func() string) string {
	var all []string
	for range n {
		if s := draw(); !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	return strings.Join(all, ", ")
}

func (r *ruleMaker) port() string {
	return pick(r, fmt.Sprint(r.probe.to.Port()), fmt.Sprint(r.leads.Port()), "443")
}

// not returns the word for the opposite, or nothing.
func (r *ruleMaker) not(word string) string { return pick(r, "", "", word+" ") }

func (r *ruleMaker) proto() string {
	if r.IntN(5) == 0 {
		return pick(r, "tcp", "udp")
	}
	return r.probe.proto.String()
}

// draw returns conditions for one rule, and their kinds.
func (r *ruleMaker) draw() (words string, kinds []string) {
	var all []string
	protocol := false
	for range pick(r, 1, 1, 1, 2, 2, 3) {
		c := r.conditions[r.IntN(len(r.conditions))]
		if protocol && c.protocol || c.hooks != "" && !slices.Contains(strings.Fields(c.hooks), r.hook) || slices.Contains(kinds, c.kind) || c.vague && r.IntN(3) > 0 {
			continue
		}
		protocol = protocol || c.protocol
		all, kinds = append(all, c.words(r)), append(kinds, c.kind)
	}
	return strings.Join(all, " "), kinds
}

// chain makes a chain and those that it leads to, and returns its name.
func (r *ruleMaker) chain(depth int) string {
	name := fmt.Sprintf("c%d-%d", r.number, r.chains)
	r.chains++
	count := 1
	if r.IntN(2) == 0 || depth > 0 {
		count += r.IntN(3)
	}
	lines := []string{}
	for range count {
		x := &madeRule{id: fmt.Sprintf("r%d.%d", r.number, len(r.rules)), chain: name}
		r.rules[x.id] = x
		words, kinds := r.draw()
		verdict, ends := r.verdict(r, depth)
		x.kinds, x.ends, x.text = kinds, ends, r.writing(r, name, words, verdict, x.id)
		lines = append(lines, x.text)
	}
	r.text = append(r.text, r.block(name, lines))
	return name
}

// block writes a chain.
func (r *ruleMaker) block(name string, rules []string) string {
	if r.table != "" {
		return strings.Join(rules, "\n") + "\n"
	}
	return "chain " + name + " {\n" + strings.Join(rules, "\n") + "\n}\n"
}

// nftConditions are the conditions of nft.
var nftConditions = []condition{
	{kind: "address", words: func(r *ruleMaker) string {
		return r.ip() + " " + pick(r, "saddr", "daddr") + " " + r.not("!=") + r.addr()
	}},
	{kind: "address set", words: func(r *ruleMaker) string {
		return r.ip() + " " + pick(r, "saddr", "daddr") + " " + r.not("!=") + "{ " + r.distinct(3, r.single) + " }"
	}},
	{kind: "address range", words: func(r *ruleMaker) string {
		return r.ip() + " daddr " + r.not("!=") + r.byFamily(pick(r, "10.244.0.0-10.244.1.255", "10.96.0.10-10.96.0.11", "192.0.2.0-192.0.2.10"), pick(r, "fd00:10:244::-fd00:10:244:1::ffff", "fd00:10:96::a-fd00:10:96::b", "2001:db8:2::-2001:db8:2::10"))
	}},
	{kind: "named set", words: func(r *ruleMaker) string { return r.ip() + " daddr " + r.not("!=") + "@near" }},
	{kind: "concatenation", protocol: true, words: func(r *ruleMaker) string {
		return r.ip() + " daddr . th dport " + r.not("!=") + "{ " + r.distinct(3, func() string { return r.single() + " . " + r.port() }) + " }"
	}},
	{kind: "concatenation of ranges", words: func(r *ruleMaker) string {
		return r.ip() + " saddr . " + r.ip() + " daddr " + r.not("!=") + "{ " + r.addr() + " . " + r.addr() + " }"
	}},
	{kind: "named concatenation", protocol: true, words: func(r *ruleMaker) string {
		return r.ip() + " daddr . meta l4proto . th dport " + r.not("!=") + "@ports"
	}},
	{kind: "port", protocol: true, words: func(r *ruleMaker) string {
		return pick(r, "th", r.proto()) + " dport " + r.not("!=") + r.port()
	}},
	{kind: "port set", protocol: true, words: func(r *ruleMaker) string {
		return pick(r, "th", r.proto()) + " dport " + r.not("!=") + pick(r, "{ 80, 8080 }", "{ 22, 79-81, 8000-8100 }", "{ 443, 30000-32767 }", "{ "+r.port()+" }")
	}},
	{kind: "port range", protocol: true, words: func(r *ruleMaker) string {
		return r.proto() + " dport " + pick(r, "1-1023", "!= 1-1023", "8000-9000", "< 1024", "<= 80", "> 80", ">= 8080", "!= 80")
	}},
	{kind: "protocol", protocol: true, words: func(r *ruleMaker) string {
		return pick(r, "meta l4proto", r.byFamily("ip protocol", "ip6 nexthdr")) + " " + r.not("!=") + pick(r, r.proto(), "{ tcp, udp }", "{ sctp, "+r.proto()+" }")
	}},
	{kind: "in", hooks: "prerouting input forward", words: func(r *ruleMaker) string {
		return "iifname " + r.not("!=") + pick(r, `"eth0"`, `"veth-*"`, `"lo"`, `"veth-web-1"`, `"veth-shopper"`, `{ "eth0", "veth-shopper" }`)
	}},
	{kind: "in index", hooks: "prerouting input forward", words: func(r *ruleMaker) string {
		return "iif " + r.not("!=") + pick(r, `"eth0"`, `"lo"`, `"veth-shopper"`, `{ "eth0", "lo" }`)
	}},
	{kind: "out", hooks: "forward output postrouting", words: func(r *ruleMaker) string {
		return "oifname " + r.not("!=") + pick(r, `"eth0"`, `"veth-*"`, `"lo"`, `"veth-web-1"`)
	}},
	{kind: "out index", hooks: "forward output postrouting", words: func(r *ruleMaker) string {
		return "oif " + r.not("!=") + pick(r, `"eth0"`, `"lo"`, `"veth-web-1"`)
	}},
	{kind: "state", words: func(r *ruleMaker) string {
		return "ct state " + r.not("!=") + pick(r, "new", "established,related", "new,untracked", "invalid", "untracked")
	}},
	{kind: "state map", words: func(r *ruleMaker) string {
		return "ct state { new, " + pick(r, "established", "invalid") + " }"
	}},
	{kind: "status", words: func(r *ruleMaker) string {
		return "ct status " + pick(r, "dnat", "& dnat == 0", "& (dnat|expected) == dnat")
	}},
	{kind: "assured", words: func(*ruleMaker) string { return "ct status & (assured|seen-reply) == 0" }},
	{kind: "direction", words: func(r *ruleMaker) string { return "ct direction " + pick(r, "original", "reply") }},
	{kind: "original destination", words: func(r *ruleMaker) string {
		return "ct original " + r.ip() + " " + pick(r, "saddr", "daddr") + " " + r.not("!=") + r.single()
	}},
	{kind: "original port", protocol: true, words: func(r *ruleMaker) string {
		return "meta l4proto " + r.proto() + " ct original proto-dst " + r.not("!=") + r.port()
	}},
	{kind: "tracked protocol", protocol: true, words: func(r *ruleMaker) string { return "ct protocol " + r.proto() }},
	{kind: "mark", words: func(r *ruleMaker) string {
		return "meta mark & " + pick(r, "0xff ", "0x3 ") + pick(r, "==", "!=") + " " + pick(r, "0", "1", "3")
	}},
	{kind: "mark of the mode", vague: true, words: func(r *ruleMaker) string {
		return "meta mark " + pick(r, "0", "& 0x4000 == 0x4000", "0x4000", "!= 0", "0x1-0xff")
	}},
	{kind: "connection mark", words: func(r *ruleMaker) string { return "ct mark " + pick(r, "0", "7", "!= 7", "and 0x4 == 4") }},
	{kind: "fib type", words: func(r *ruleMaker) string {
		return "fib " + pick(r, "saddr", "daddr") + " type " + r.not("!=") + pick(r, "local", "unicast", "{ local, broadcast }")
	}},
	{kind: "reverse path", hooks: "prerouting", words: func(r *ruleMaker) string {
		return pick(r, "fib saddr oif exists", "fib saddr oif missing", `fib saddr oifname "eth0"`, "fib saddr . iif oif missing")
	}},
	{kind: "flags", protocol: true, words: func(r *ruleMaker) string {
		return "tcp flags " + pick(r, "& (fin|syn|rst|ack) == syn", "syn", "& (fin|syn|rst|ack) != syn", "& ack == 0", "& (syn|ack) == ack", "& (fin|rst) == 0", "{ syn, ack }")
	}},
	{kind: "family", words: func(r *ruleMaker) string {
		return pick(r, "meta protocol "+r.byFamily("ip", "ip6"), "ct l3proto "+r.byFamily("ipv4", "ipv6"))
	}},
	{kind: "packet type", hooks: "prerouting input forward", words: func(r *ruleMaker) string { return "pkttype " + r.not("!=") + pick(r, "host", "broadcast") }},
	{kind: "map", words: func(r *ruleMaker) string {
		return "meta mark set " + r.ip() + " daddr map { " + r.leads.Addr().String() + " : 0x1 } meta mark & 0xff == " + pick(r, "0", "1")
	}},
	{kind: "client port", protocol: true, vague: true, words: func(r *ruleMaker) string { return r.proto() + " sport " + pick(r, "1024-65535", "< 1024") }},
	{kind: "limit", vague: true, words: func(r *ruleMaker) string { return "limit rate " + r.not("over") + "1/hour" }},
	{kind: "header", vague: true, words: func(r *ruleMaker) string {
		return r.byFamily(pick(r, "ip ttl < 65", "ip dscp cs0", "ip version 4", "ip length < 100"), pick(r, "ip6 hoplimit < 65", "ip6 dscp cs0", "ip6 length < 100"))
	}},
	{kind: "chance", vague: true, words: func(*ruleMaker) string { return "numgen random mod 2 == 0" }},
	{kind: "length", vague: true, words: func(*ruleMaker) string { return "meta length < 100" }},
	{kind: "owner", vague: true, hooks: "output", words: func(*ruleMaker) string { return "meta skuid 0" }},
}

// nftRule writes a rule of nft. The counter counts what the conditions let through.
func nftRule(_ *ruleMaker, _, conditions, verdict, comment string) string {
	return fmt.Sprintf("%s counter %s comment \"%s\"", conditions, verdict, comment)
}

// nftVerdict returns what ends a rule, if anything.
func nftVerdict(r *ruleMaker, depth int) (words string, ends bool) {
	to := func() string { return r.chain(depth + 1) }
	deep := depth >= 2
	n := r.IntN(20)
	switch {
	case r.nat && n < 10 && r.hook != "postrouting":
		return pick(r, "dnat "+r.ip()+" to "+r.byFamily("10.244.1.12", "fd00:10:244:1::12"), "redirect"), true
	case r.nat && n < 10:
		return "masquerade", false
	case n < 9:
		return "drop", true
	case n == 9 && !r.nat && !strings.HasSuffix(r.hook, "routing"):
		return "reject", true
	case n < 12:
		return "accept", false
	case n == 12:
		return "return", false
	case n < 15:
		return pick(r, "meta mark set 1", "meta mark set meta mark or 0x3", "ct mark set 7", "meta mark set ct mark"), false
	case n == 15 && r.early:
		return "notrack", false
	case n < 17 && !deep:
		return "jump " + to(), false
	case n == 17 && !deep:
		return "goto " + to(), false
	case n == 18 && !deep && r.device != "":
		return r.ip() + " daddr vmap { " + r.leads.Addr().String() + " : " + pick(r, "drop", "jump "+to(), "goto "+to(), "accept", "return") + " }", false
	}
	return "", false
}

// iptablesConditions are the matches of iptables.
var iptablesConditions = []condition{
	{kind: "-s", words: func(r *ruleMaker) string { return r.not("!") + "-s " + r.addr() }},
	{kind: "-d", words: func(r *ruleMaker) string { return r.not("!") + "-d " + r.addr() }},
	{kind: "-p", protocol: true, words: func(r *ruleMaker) string { return r.not("!") + "-p " + r.proto() }},
	{kind: "-i", hooks: "prerouting input forward", words: func(r *ruleMaker) string {
		return r.not("!") + "-i " + pick(r, "eth0", "veth-+", "lo", "veth-shopper", "eth+")
	}},
	{kind: "-o", hooks: "forward output postrouting", words: func(r *ruleMaker) string {
		return r.not("!") + "-o " + pick(r, "eth0", "veth-+", "lo", "veth-web-1")
	}},
	{kind: "--dport", protocol: true, words: func(r *ruleMaker) string {
		p := r.proto()
		return "-p " + p + " -m " + p + " " + r.not("!") + "--dport " + pick(r, r.port(), "1:1023", "8000:9000", ":80", "8080:")
	}},
	{kind: "multiport", protocol: true, words: func(r *ruleMaker) string {
		return "-p " + r.proto() + " -m multiport " + r.not("!") + "--dports " + pick(r, "80,8080", "22,8000:9000", "1:100,443", r.port())
	}},
	{kind: "--tcp-flags", protocol: true, words: func(r *ruleMaker) string {
		return "-p tcp -m tcp " + r.not("!") + pick(r, "--syn", "--tcp-flags ACK NONE", "--tcp-flags SYN NONE", "--tcp-flags SYN SYN", "--tcp-flags SYN,ACK SYN", "--tcp-flags ALL SYN", "--tcp-flags FIN,RST NONE", "--tcp-flags SYN,ACK SYN,ACK", "--tcp-flags ALL NONE", "--tcp-flags ACK ACK")
	}},
	{kind: "mark", words: func(r *ruleMaker) string {
		return "-m mark " + r.not("!") + "--mark " + pick(r, "0x0/0xff", "0x1/0x1", "0x3/0x3", "0x1/0xff")
	}},
	{kind: "mark of the mode", vague: true, words: func(r *ruleMaker) string {
		return "-m mark " + r.not("!") + "--mark " + pick(r, "0x0", "0x4000/0x4000")
	}},
	{kind: "conntrack state", words: func(r *ruleMaker) string {
		return "-m conntrack " + r.not("!") + "--ctstate " + pick(r, "NEW", "ESTABLISHED,RELATED", "DNAT", "NEW,UNTRACKED", "INVALID", "NEW,DNAT", "UNTRACKED")
	}},
	{kind: "state", words: func(r *ruleMaker) string {
		return "-m state " + r.not("!") + "--state " + pick(r, "NEW", "ESTABLISHED,RELATED", "INVALID")
	}},
	{kind: "--ctdir", words: func(r *ruleMaker) string { return "-m conntrack --ctdir " + pick(r, "ORIGINAL", "REPLY") }},
	{kind: "--ctorigdst", vague: true, words: func(r *ruleMaker) string { return "-m conntrack " + r.not("!") + "--ctorigdst " + r.single() }},
	{kind: "--ctorigdstport", vague: true, words: func(r *ruleMaker) string { return "-m conntrack " + r.not("!") + "--ctorigdstport " + r.port() }},
	{kind: "--ctstatus", vague: true, words: func(r *ruleMaker) string {
		return "-m conntrack " + r.not("!") + "--ctstatus " + pick(r, "NONE", "ASSURED", "CONFIRMED")
	}},
	{kind: "addrtype local", words: func(r *ruleMaker) string {
		return "-m addrtype " + r.not("!") + pick(r, "--dst-type", "--src-type") + " LOCAL"
	}},
	{kind: "addrtype", vague: true, words: func(r *ruleMaker) string {
		return "-m addrtype " + r.not("!") + pick(r, "--dst-type UNICAST", "--src-type UNICAST", "--src-type LOCAL,UNICAST", r.byFamily("--dst-type BLACKHOLE", "--dst-type UNREACHABLE"))
	}},
	{kind: "set", vague: true, words: func(r *ruleMaker) string {
		return "-m set " + r.not("!") + "--match-set near" + r.byFamily("4", "6") + " " + pick(r, "src", "dst")
	}},
	{kind: "physdev", vague: true, hooks: "prerouting input forward", words: func(r *ruleMaker) string { return "-m physdev " + r.not("!") + "--physdev-in veth-web-1" }},
	{kind: "--sport", protocol: true, vague: true, words: func(r *ruleMaker) string {
		p := r.proto()
		return "-p " + p + " -m " + p + " " + r.not("!") + "--sport " + pick(r, "1024:65535", ":1023")
	}},
	{kind: "multiport of the client", protocol: true, vague: true, words: func(r *ruleMaker) string {
		return "-p " + r.proto() + " -m multiport " + r.not("!") + pick(r, "--ports ", "--sports ") + r.port()
	}},
	{kind: "limit", vague: true, words: func(*ruleMaker) string { return "-m limit --limit 1/hour" }},
	{kind: "statistic", vague: true, words: func(*ruleMaker) string { return "-m statistic --mode random --probability 0.5" }},
	{kind: "length", vague: true, words: func(r *ruleMaker) string { return "-m length " + r.not("!") + "--length 0:100" }},
	{kind: "iprange", vague: true, words: func(r *ruleMaker) string {
		return "-m iprange " + r.not("!") + "--dst-range " + r.byFamily("10.244.0.0-10.244.1.255", "fd00:10:244::-fd00:10:244:1::ffff")
	}},
	{kind: "pkttype", vague: true, words: func(r *ruleMaker) string { return "-m pkttype --pkt-type " + pick(r, "unicast", "broadcast") }},
	{kind: "tos", vague: true, words: func(r *ruleMaker) string { return "-m tos " + r.not("!") + "--tos 0x00" }},
	{kind: "connmark", vague: true, words: func(r *ruleMaker) string { return "-m connmark " + r.not("!") + "--mark 0x0" }},
	{kind: "owner", vague: true, hooks: "output", words: func(*ruleMaker) string { return "-m owner --uid-owner 0" }},
	{kind: "dscp", vague: true, words: func(r *ruleMaker) string { return "-m dscp " + r.not("!") + "--dscp 0x00" }},
}

// iptablesRule writes a rule of iptables.
func iptablesRule(_ *ruleMaker, chain, conditions, verdict, comment string) string {
	return strings.Join(strings.Fields("-A "+chain+" "+conditions+" -m comment --comment "+comment+" "+verdict), " ")
}

// iptablesVerdict returns the target of a rule, if any.
func iptablesVerdict(r *ruleMaker, depth int) (words string, ends bool) {
	deep := depth >= 2
	n := r.IntN(20)
	switch {
	case r.table == "nat" && n < 10 && r.hook != "postrouting":
		return "-j DNAT --to-destination " + r.byFamily("10.244.1.12", "fd00:10:244:1::12"), true
	case r.table == "nat" && n < 10:
		return "-j MASQUERADE", false
	case r.table != "nat" && n < 9:
		return "-j DROP", true
	case n == 9 && r.table == "filter":
		return "-j REJECT", true
	case n < 12:
		return "-j ACCEPT", false
	case n == 12:
		return "-j RETURN", false
	case n < 15:
		return pick(r, "-j MARK --set-xmark 0x1/0xff", "-j MARK --set-xmark 0x3/0x3", "-j MARK --set-xmark 0x0/0x3", "-j CONNMARK --set-xmark 0x7/0xffffffff"), false
	case n == 15 && r.table == "raw":
		return "-j CT --notrack", false
	case n < 17 && !deep:
		return "-j " + r.chain(depth+1), false
	case n == 17 && !deep:
		return "-g " + r.chain(depth+1), false
	}
	return "", false
}
