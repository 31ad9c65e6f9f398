// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package foreign

import (
	"net/netip"
	"strings"

	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/iptables/walk"
)

// Legacy is a table of iptables-legacy.
type Legacy struct {
	Family service.Family
	Name   string
	// Tables are what iptables-legacy-save prints of it, nil if it cannot be read.
	Tables *walk.Tables
}

// legacyBases are the built-in chains of iptables-legacy (kernel: the table's file in
// net/ipv4/netfilter).
var legacyBases = map[string][]Base{
	"raw":    {{Hook: Prerouting, Priority: -300}, {Hook: Output, Priority: -300}},
	"mangle": {{Hook: Prerouting, Priority: -150}, {Hook: Input, Priority: -150}, {Hook: Forward, Priority: -150}, {Hook: Output, Priority: -150}, {Hook: Postrouting, Priority: -150}},
	"nat": {
		{Hook: Prerouting, Priority: dstNATPosition, NAT: true}, {Hook: Output, Priority: dstNATPosition, NAT: true},
		{Hook: Input, Priority: srcNATPosition, NAT: true}, {Hook: Postrouting, Priority: srcNATPosition, NAT: true},
	},
	"filter":   {{Hook: Input}, {Hook: Forward}, {Hook: Output}},
	"security": {{Hook: Input, Priority: 50}, {Hook: Forward, Priority: 50}, {Hook: Output, Priority: 50}},
}

func (l *Legacy) command() string {
	if l.Family == service.IPv6 {
		return "ip6tables-legacy-save -t " + l.Name
	}
	return "iptables-legacy-save -t " + l.Name
}

func (l *Legacy) stations(n Node) []*station {
	var all []*station
	for _, b := range legacyBases[l.Name] {
		b.Chain = Chain{Table: l.Name + " of iptables-legacy", Name: strings.ToUpper(b.Hook.String())}
		s := &station{Base: b, position: b.Priority, look: func(rule) string { return l.command() }}
		s.run = func(p *packet) (finding, error) { return l.run(n, b, p), nil }
		all = append(all, s)
	}
	return all
}

// run follows a packet through a built-in chain.
func (l *Legacy) run(n Node, b Base, p *packet) finding {
	if l.Tables == nil {
		return finding{doubts: []doubt{{rule{chain: b.Chain}, drops, "its rules cannot be read without the command iptables-legacy-save"}}}
	}
	mark, known := p.mark.number()
	w := walk.Walker{
		Tables: l.Tables, Node: walk.Node{Local: n.Local},
		Packet: walk.Packet{
			Conn:    route.Conn{Protocol: p.protocol, From: p.from, To: p.to, Interface: p.in.Name},
			Dialled: p.dialled, Translated: p.translated, Untracked: p.untracked, Mark: mark, Vague: ^known,
		},
	}
	w.Node.AnyInterface = p.in.Unknown
	if p.out.Name != "" && !p.out.Unknown {
		w.Node.Leaves = func(netip.Addr) string { return p.out.Name }
	}
	at := walk.Chain{Table: l.Name, Name: b.Name}
	r := w.Hook(at)
	p.mark = number(w.Packet.Mark, ^w.Packet.Vague)
	f := finding{verdict: legacyVerdicts[r.Verdict], by: l.rule(b, r.By), empty: len(l.Tables.Rules(at)) == 0}
	if w.Packet.Untracked && !p.untracked {
		p.untracked, f.verdict = true, untracks
	}
	for _, s := range w.Doubtful {
		f.doubts = append(f.doubts, doubt{l.rule(b, s), drops, "a part of it that is not known here"})
	}
	if len(f.doubts) > 0 && (f.verdict == drops || f.verdict == rejects) {
		f.doubts = append(f.doubts, doubt{f.by, f.verdict, "unless a rule before accepts it"})
		f.verdict = passes
	}
	return f
}

var legacyVerdicts = map[walk.Verdict]verdict{
	walk.Dropped: drops, walk.Rejected: rejects, walk.Translated: translates, walk.Untranslated: translates, walk.Masqueraded: masquerades,
}

func (l *Legacy) rule(b Base, s walk.Step) rule {
	r := rule{chain: Chain{Table: b.Table, Name: s.Chain.Name}}
	if s.Rule != nil {
		r.text = s.Rule.Text
	}
	return r
}
