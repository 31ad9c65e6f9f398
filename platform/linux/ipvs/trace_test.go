// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/nftables"
)

// beside is a table beside virtual servers, as text.
type beside struct {
	sets   map[string]map[string]string // elements and what they yield
	chains map[string][]string
	types  map[string]string // of base chains
}

// besideOf reads what the table for want has in one family.
func besideOf(t fataler, f service.Family, want *service.Snapshot) *beside {
	var text bytes.Buffer
	o := nftables.Options{Role: nftables.BesideIPVS, MasqueradeBit: 14}
	var all struct {
		Tables []struct {
			Sets, Chains []struct {
				Name, Type      string
				Elements, Rules []string
			}
		}
	}
	if err := nftables.Render(&text, want, o, nftables.JSON); err != nil {
		t.Fatalf("Render: %v", err)
	}
	if err := json.Unmarshal(text.Bytes(), &all); err != nil {
		t.Fatalf("read what was rendered: %v", err)
	}
	b := &beside{map[string]map[string]string{}, map[string][]string{}, map[string]string{}}
	for _, s := range all.Tables[f].Sets {
		b.sets[s.Name] = map[string]string{}
		for _, e := range s.Elements {
			e = regexp.MustCompile(` comment "[^"]*"`).ReplaceAllString(e, "")
			k, v, _ := strings.Cut(e, " : ")
			b.sets[s.Name][k] = v
		}
	}
	for _, c := range all.Tables[f].Chains {
		b.chains[c.Name], b.types[c.Name] = c.Rules, c.Type
	}
	return b
}

// outcome is what became of a packet.
type outcome struct {
	action  route.Action
	targets []netip.AddrPort        // sorted, without duplicates
	masq    map[netip.AddrPort]bool // masqueraded when it goes there
}

// tracer walks a packet through a table and the virtual servers of a fake.
type tracer struct {
	*beside
	conn    route.Conn
	grammar []statement
	local   func(netip.Addr) bool // is it one that the node has or is led to
	marks   uint64
	dnat    bool       // the destination was translated
	answer  netip.Addr // where the connection went that the packet is an answer of, if it is one
	out     outcome
}

// result is what running a chain or a rule came to.
type result uint8

const (
	next   result = iota // no verdict
	back                 // return
	final                // accepted, translated, rejected or dropped
	breaks               // the rule does not match
)

func trace(b *beside, k *fake, c route.Conn, node func(netip.Addr) bool) outcome {
	return newTracer(b, k, c, node).run(k)
}

func newTracer(b *beside, k *fake, c route.Conn, node func(netip.Addr) bool) *tracer {
	return &tracer{beside: b, conn: c, grammar: grammar, local: func(a netip.Addr) bool {
		_, routed := k.routes[a]
		return routed || node(a)
	}}
}

// grammar is what rules are made of, compiled once.
var grammar = statements()

func (t *tracer) run(k *fake) outcome {
	c, entry := t.conn, "prerouting"
	if c.Interface == "" {
		entry = "output"
	}
	if t.chain(entry); t.out.action != route.Pass {
		return t.out
	}
	to := t.conn.To
	s := k.servers[key{to.Addr(), to.Port(), c.Protocol}]
	switch {
	case !t.local(to.Addr()):
		t.chain("postrouting")
		return t.out
	case s == nil || !s.ours():
		// A chain of type nat sees nothing of the node's own here.
		if c.Interface != "" || !strings.HasPrefix(t.types["input"], "nat ") {
			t.chain("input")
		}
		return t.out
	}
	o := outcome{action: route.Reject}
	for a, x := range s.dests {
		if x.weight > 0 {
			o.action = route.Forward
			o.targets = append(o.targets, a)
		}
	}
	slices.SortFunc(o.targets, netip.AddrPort.Compare)
	o.masq = map[netip.AddrPort]bool{}
	for _, a := range o.targets {
		after := *t
		after.conn.To, after.dnat = a, true
		after.chain("postrouting")
		o.masq[a] = after.out.masq != nil
	}
	return o
}

func (t *tracer) chain(name string) result {
	for _, r := range t.chains[name] {
		switch res := t.rule(r); res {
		case final:
			return final
		case back:
			return next
		}
	}
	return next
}

// statement is one that a rule may begin with.
type statement struct {
	match *regexp.Regexp
	run   func(t *tracer, m []string) result
}

func is(b bool) result {
	if b {
		return next
	}
	return breaks
}

// statements are all that a table beside has.
func statements() []statement {
	on := func(s string, run func(*tracer, []string) result) statement {
		return statement{regexp.MustCompile(`^` + s + `(?: |$)`), run}
	}
	const fields = `((?:(?:ct original )?ip6? [sd]addr|meta l4proto|th dport)(?: \. (?:ip6? [sd]addr|meta l4proto|th dport))*)`
	return []statement{
		on(`dnat ip6? to `+fields+` map @(\S+)`, (*tracer).translate),
		on(fields+` (!= )?@(\S+)`, func(t *tracer, m []string) result { return is(t.has(m[3], m[1]) == (m[2] == "")) }),
		on(`ip6? ([sd]addr) (!= )?(\S+)`, func(t *tracer, m []string) result { return is(within(m[3], t.addr(m[1])) == (m[2] == "")) }),
		on(`iifname "([^"]*)"`, func(t *tracer, m []string) result { return is(t.from(m[1])) }),
		on(`meta l4proto (\w+)`, func(t *tracer, m []string) result { return is(t.conn.Protocol.String() == m[1]) }),
		on(`fib ([sd]addr) type local`, func(t *tracer, m []string) result { return is(t.local(t.addr(m[1]))) }),
		on(`ct direction reply`, func(t *tracer, _ []string) result { return is(t.answer.IsValid()) }),
		on(`ct status dnat`, func(t *tracer, _ []string) result { return is(t.dnat) }),
		on(`meta mark & (\w+) == (\w+)`, func(t *tracer, m []string) result { return is(t.marks&number(m[1]) == number(m[2])) }),
		on(`meta mark set meta mark \| (\w+)`, func(t *tracer, m []string) result { t.marks |= number(m[1]); return next }),
		on(`meta mark set meta mark & (\w+)`, func(t *tracer, m []string) result { t.marks &= number(m[1]); return next }),
		on(`masquerade fully-random`, func(t *tracer, _ []string) result { t.out.masq = map[netip.AddrPort]bool{}; return final }),
		on(`reject(?: with tcp reset)?`, func(t *tracer, _ []string) result { t.out.action = route.Reject; return final }),
		on(`drop`, func(t *tracer, _ []string) result { t.out.action = route.Drop; return final }),
		on(`accept`, func(*tracer, []string) result { return final }),
		on(`return`, func(*tracer, []string) result { return back }),
		on(`jump (\S+)`, func(t *tracer, m []string) result { return t.chain(m[1]) }),
		on(`goto (\S+)`, func(t *tracer, m []string) result {
			if t.chain(m[1]) == final {
				return final
			}
			return back
		}),
	}
}

func (t *tracer) rule(text string) result {
	for text != "" {
		i := slices.IndexFunc(t.grammar, func(s statement) bool { return s.match.MatchString(text) })
		if i < 0 {
			panic("no statement that is known: " + text)
		}
		m := t.grammar[i].match.FindStringSubmatch(text)
		text = text[len(m[0]):]
		switch res := t.grammar[i].run(t, m); res {
		case final, back:
			return res
		case breaks:
			return next
		}
	}
	return next
}

func number(s string) uint64 {
	n, err := strconv.ParseUint(s, 0, 64)
	if err != nil {
		panic(err)
	}
	return n
}

func within(prefix string, a netip.Addr) bool {
	if p, err := netip.ParsePrefix(prefix); err == nil {
		return p.Contains(a)
	}
	return netip.MustParseAddr(prefix) == a
}

func (t *tracer) from(name string) bool {
	if wild, found := strings.CutSuffix(name, "*"); found {
		return strings.HasPrefix(t.conn.Interface, wild)
	}
	return t.conn.Interface == name
}

func (t *tracer) addr(field string) netip.Addr {
	if strings.HasPrefix(field, "ct original") {
		return t.answer
	}
	if strings.HasSuffix(field, "saddr") {
		return t.conn.From
	}
	return t.conn.To.Addr()
}

func (t *tracer) key(fields string) []string {
	var parts []string
	for f := range strings.SplitSeq(fields, " . ") {
		switch f {
		case "meta l4proto":
			parts = append(parts, t.conn.Protocol.String())
		case "th dport":
			parts = append(parts, strconv.Itoa(int(t.conn.To.Port())))
		default:
			parts = append(parts, t.addr(f).String())
		}
	}
	return parts
}

// has looks a packet up in a set, whose last field may be a prefix.
func (t *tracer) has(set, fields string) bool {
	elements, known := t.sets[set]
	if !known {
		panic("no set " + set)
	}
	parts := t.key(fields)
	if _, found := elements[strings.Join(parts, " . ")]; found {
		return true
	}
	last := len(parts) - 1
	for e := range elements {
		words := strings.Split(e, " . ")
		if strings.Contains(words[last], "/") && slices.Equal(words[:last], parts[:last]) && within(words[last], netip.MustParseAddr(parts[last])) {
			return true
		}
	}
	return false
}

func (t *tracer) translate(m []string) result {
	to, found := t.sets[m[2]][strings.Join(t.key(m[1]), " . ")]
	if !found {
		return breaks
	}
	a, port, _ := strings.Cut(to, " . ")
	t.conn.To = netip.AddrPortFrom(netip.MustParseAddr(a), uint16(number(port)))
	t.dnat = true
	return final
}

func TestTracerKnowsTheGrammar(t *testing.T) {
	b := &beside{sets: map[string]map[string]string{"s": {"10.0.0.1 . tcp . 80 . 192.0.2.0/24": ""}}}
	c := route.Conn{Protocol: service.TCP, From: netip.MustParseAddr("192.0.2.7"), To: netip.MustParseAddrPort("10.0.0.1:80")}
	const match = "ip daddr . meta l4proto . th dport . ip saddr "
	for rule, want := range map[string]route.Action{
		match + "@s drop": route.Drop, match + "!= @s drop": route.Pass,
		"ip saddr 192.0.2.0/24 reject": route.Reject, "ip saddr != 192.0.2.7 reject": route.Pass,
	} {
		x := &tracer{beside: b, conn: c, grammar: grammar}
		if x.rule(rule); x.out.action != want {
			t.Errorf("%q: %s, want %s", rule, x.out.action, want)
		}
	}
}

// What comes to an address of a Service and no virtual server took is refused, but
// for answers of connections to such an address, which kube-proxy had come from there.
func TestOnlyAnswersPass(t *testing.T) {
	node, vip := netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("10.96.0.10")
	port := &service.Port{Frontends: []service.Frontend{
		{Kind: service.ClusterIP, Addr: vip, Port: 80}, {Kind: service.ExternalIP, Addr: netip.MustParseAddr("203.0.113.1"), Port: 80},
	}}
	b := besideOf(t, service.IPv4, service.New(1, &service.Node{Addrs: []netip.Addr{node}}, []*service.Port{port}))
	for _, to := range []string{"10.96.0.10:9999", "203.0.113.1:9999"} {
		for answer, want := range map[netip.Addr]route.Action{{}: route.Reject, vip: route.Pass, netip.MustParseAddr("192.0.2.99"): route.Reject} {
			c := route.Conn{Protocol: service.TCP, From: netip.MustParseAddr("192.0.2.7"), To: netip.MustParseAddrPort(to)}
			x := &tracer{beside: b, conn: c, grammar: grammar, answer: answer}
			if x.chain("input"); x.out.action != want {
				t.Errorf("to %s, answer from %s: %s, want %s", to, answer, x.out.action, want)
			}
		}
	}
}
