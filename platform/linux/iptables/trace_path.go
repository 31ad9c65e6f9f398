// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/platform/linux/packet"
)

// path is the path of the first packet of a connection through the hooks, in the order of
// Packet.Way. After a translation it has a branch for each destination.
type path struct {
	layout
	*traceNode
	tables *packet.Saved
	err    error

	targets    map[netip.AddrPort]bool // whether it is masqueraded on the way there
	remembered netip.AddrPort
	passes     bool // untranslated
	ends       []end
	accepted   []packet.Place // rules of others that let it pass, so that later ones do not see it
	doubtful   []end          // rules of others that may decide
	noted      []end          // rules of others that masquerade or do not track it
	served     bool           // by a virtual server
	alone      bool           // no rule of others mattered
	// visits are the packets that came to each chain, on all branches.
	visits map[id][]packet.Packet
	// hops are those of the first branch. quiet ends them.
	hops  []explain.Hop
	quiet bool
	at    string // the built-in chain that the packet came to last
}

// end is a place where a packet ends.
type end struct {
	does explain.Deed
	by   packet.Place
	why  string // of a doubt
	to   netip.AddrPort
	at   string // the built-in chain
}

func newPath(l layout, t *packet.Saved, n *traceNode) *path {
	return &path{layout: l, tables: t, traceNode: n, alone: true, targets: map[netip.AddrPort]bool{}, visits: map[id][]packet.Packet{}}
}

// tablesAt are the tables with a chain at each hook, in the order of the kernel (kernel:
// include/uapi/linux/netfilter_ipv4.h). Table nat comes before table filter at OUTPUT, else last.
var tablesAt = map[packet.Hook][]string{
	packet.Prerouting: {rawTable, mangle}, packet.Input: {mangle, filter}, packet.Forward: {mangle, filter},
	packet.Output: {rawTable, mangle}, packet.Postrouting: {mangle},
}

// follow sends the first packet of c.
func (p *path) follow(c route.Conn) {
	pk, from := *packet.New(p.traceNode, c), packet.Prerouting
	if c.Interface == "" {
		from = packet.Output
	} else { // the name may stand for several interfaces
		pk.In = packet.Link{Name: c.Interface, Guess: c.Interface != packet.Loopback().Name}
	}
	if p.pass(&pk, from, tablesAt[from]...) {
		p.translate(pk, from)
	}
}

var actions = map[explain.Deed]route.Action{explain.Drops: route.Drop, explain.Refuses: route.Reject}

// action is what happens to the packet.
func (p *path) action() route.Action {
	switch {
	case len(p.targets) > 0:
		return route.Forward
	case len(p.ends) > 0 && !p.passes:
		return actions[p.ends[0].does]
	}
	return route.Pass
}

func (p *path) walk() *explain.Walk {
	w := &explain.Walk{Hops: p.hops, Action: p.action(), Remembered: p.remembered, Others: p.others()}
	if w.Action == route.Forward {
		w.Targets = p.targets
	}
	return w
}

// hook runs a built-in chain on pk, and records what the packet meets.
func (p *path) hook(pk *packet.Packet, table string, at packet.Hook) packet.Finding {
	p.at = strings.ToUpper(at.String())
	c := packet.Chain{Table: table, Name: p.at}
	pk.Seen = pk.Seen || table != rawTable && !pk.Untracked
	to := pk.To
	if at == packet.Output && !p.served { // the kernel tells this hook the interface before any translation
		to = pk.Dialled
	}
	if pk.Out, _ = p.Route(to.Addr()); pk.Out.Unknown { // the address is not of the node
		pk.Out = packet.Link{Guess: true}
	}
	w := packet.Walk{Tables: p.tables, Packet: pk, Owns: p.owns}
	before := *pk
	f, err := w.Run(p.tables.Base(c))
	p.err, p.alone = errors.Join(p.err, err), p.alone && f.Alone
	for _, s := range f.Steps {
		if s.Rule == nil && p.tables.Has(s.Chain) {
			p.visits[idOf(s.Chain)] = append(p.visits[idOf(s.Chain)], before)
		}
	}
	p.show(f.Steps)
	for _, d := range f.Doubts {
		p.doubtful = append(p.doubtful, end{d.Does, d.Place, d.Why, pk.To, p.at})
	}
	if f.Does == explain.Untracks {
		p.noted = append(p.noted, end{f.Does, f.By, "", pk.To, p.at})
	}
	if at := f.Accepted; at.Chain.Name != "" && !p.owns(at.Chain) {
		p.accepted = append(p.accepted, at)
	}
	return f
}

func idOf(c packet.Chain) id { return id{c.Table, c.Name} }

func (p *path) owns(c packet.Chain) bool { return p.options.Role.owns(idOf(c)) }

// pass runs the chains of one hook in tables. It reports whether the packet goes on.
func (p *path) pass(pk *packet.Packet, at packet.Hook, tables ...string) bool {
	for _, table := range tables {
		switch r := p.hook(pk, table, at); r.Does {
		case explain.Drops, explain.Refuses:
			p.ends = append(p.ends, end{r.Does, r.By, "", pk.To, p.at})
			return false
		}
	}
	return true
}

// translate runs table nat, and follows the packet to each destination that it gives.
func (p *path) translate(pk packet.Packet, at packet.Hook) {
	var r packet.Finding
	if !pk.Untracked { // the kernel runs table nat for tracked connections only
		r = p.hook(&pk, nat, at)
	}
	if r.Does == explain.Translates && !r.To.IsValid() && !p.owns(r.By.Chain) {
		const why = "where it leads is not known here"
		p.doubtful = append(p.doubtful, end{r.Does, r.By, why, pk.To, p.at})
		pk.Divert(r.By, why)
	}
	if r.To.IsValid() && len(r.Targets) == 1 && slices.Contains(packet.Split(r.By.Text), "--update") {
		p.remembered = r.Targets[0]
	}
	for _, to := range r.Targets {
		next := pk
		next.To, next.Translated = to, true
		p.routed(next, at)
		p.quiet = true
	}
	if len(r.Targets) == 0 {
		p.routed(pk, at)
	}
}

// routed follows a packet after table nat. IPVS takes those of the node itself before table filter.
func (p *path) routed(pk packet.Packet, from packet.Hook) {
	if from != packet.Output || !p.serve(pk) && p.pass(&pk, packet.Output, filter) {
		p.deliver(pk, from)
	}
}

// serve follows the packet to each destination of its virtual server. It reports whether
// there is one. The packet leaves like one of the node itself, except that table nat has
// translated it before (kernel: net/netfilter/ipvs/ip_vs_xmit.c, ip_vs_nat_send_or_cont).
func (p *path) serve(pk packet.Packet) bool {
	if p.companion == nil {
		return false
	}
	to, found := p.companion.Server(pk)
	if !found {
		return false
	}
	server := "virtual server " + pk.To.String() + " " + pk.Protocol.String()
	if len(to) == 0 {
		p.hop(server, "it has no destination that takes new connections, so it refuses")
		p.ends = append(p.ends, end{explain.Refuses, packet.Place{}, "", pk.To, p.at})
		return true
	}
	p.served = true
	p.hop(server, "%s", explain.OneOf("destinations", to))
	for _, a := range to {
		next := pk
		next.To, next.In = a, packet.Link{}
		if p.pass(&next, packet.Output, mangle, filter) {
			p.deliver(next, packet.Output)
		}
		p.quiet = true
	}
	return true
}

// deliver follows a packet from the routing decision on. IPVS takes what comes from outside behind
// table filter. Masquerading is recorded for endpoints on the node, too, as in package route.
func (p *path) deliver(pk packet.Packet, from packet.Hook) {
	masquerades, way := false, pk.Way(from)
	if p.served { // IPVS has sent it to the endpoint, also to one of the node
		way = way[:1]
	}
	for _, at := range way {
		if at == packet.Prerouting {
			pk.In = packet.Loopback()
		}
		if !p.pass(&pk, at, tablesAt[at]...) {
			return
		}
		switch {
		case at == packet.Postrouting:
			masquerades = p.masquerade(&pk)
		case at == packet.Input && from == packet.Prerouting:
			if p.serve(pk) {
				return
			}
			masquerades = pk.To != pk.Dialled && p.masquerade(&pk)
		}
	}
	p.reach(pk, masquerades)
}

// masquerade runs the chain that may replace the source, and reports whether the mode does so.
func (p *path) masquerade(pk *packet.Packet) bool {
	if pk.Untracked {
		return false
	}
	r := p.hook(pk, nat, packet.Postrouting)
	if r.Does != explain.Masquerades {
		return false
	}
	pk.From = netip.Addr{}
	if !p.owns(r.By.Chain) {
		p.noted = append(p.noted, end{r.Does, r.By, "", pk.To, p.at})
		return false
	}
	return true
}

// reach records that the packet arrives.
func (p *path) reach(pk packet.Packet, masquerades bool) {
	if pk.To == pk.Dialled {
		p.passes = true
		return
	}
	p.targets[pk.To] = masquerades
}

func (p *path) hop(object, format string, args ...any) {
	if !p.quiet {
		p.hops = append(p.hops, explain.Hop{Object: object, Does: fmt.Sprintf(format, args...)})
	}
}

// show records the chains of ours that the packet entered, and the rules that matched it.
// Rules of one chain that translate are shown together.
func (p *path) show(steps []packet.Step) {
	steps = withoutBranches(steps)
	for len(steps) > 0 {
		s, n := steps[0], translations(steps)
		switch {
		case n > 0:
			p.showTargets(steps[:n])
		case !p.owns(s.Chain):
		case s.Rule == nil:
			p.hop(s.Chain.Table+" "+s.Chain.Name, "%s", p.purpose(s.Chain))
		case !p.leadsOn(s.Rule):
			p.hop("rule", "%s", s.Rule.Text)
		}
		steps = steps[max(n, 1):]
	}
}

// withoutBranches leaves out the ways to branches, so that all endpoints are shown together.
func withoutBranches(steps []packet.Step) []packet.Step {
	var all []packet.Step
	leads := false // the step before led to a branch
	for _, s := range steps {
		entered := leads && s.Rule == nil
		leads = s.Rule != nil && isList(s.Chain.Name) && isList(targetOf(s.Rule.Words()))
		if !entered && !leads {
			all = append(all, s)
		}
	}
	return all
}

// isList reports whether a chain is a list of endpoints or a branch of one.
func isList(chain string) bool {
	return strings.HasPrefix(chain, clusterPrefix) || strings.HasPrefix(chain, localPrefix)
}

// translations counts the first of steps that translate.
func translations(steps []packet.Step) int {
	n := slices.IndexFunc(steps, func(s packet.Step) bool { return !s.To.IsValid() })
	if n < 0 {
		return len(steps)
	}
	return n
}

func (p *path) showTargets(steps []packet.Step) {
	var to []netip.AddrPort
	for _, s := range steps {
		if !slices.Contains(to, s.To) {
			to = append(to, s.To)
		}
	}
	first := steps[0]
	switch {
	case len(to) > 1:
		p.hop("rules", "%s", explain.OneOf("endpoints", to))
	case slices.Contains(first.Rule.Words(), "--update"):
		p.hop("rule", "the client had %s before", to[0])
	default:
		p.hop("rule", "%s", first.Rule.Text)
	}
}

// leadsOn reports whether a rule only leads to another chain of ours, which is shown
// itself. A rule with a comment names the Service, so it is shown, too.
func (p *path) leadsOn(r *packet.Rule) bool {
	w := r.Words()
	return !slices.Contains(w, "--comment") && strings.HasPrefix(targetOf(w), "KUBE-")
}

// others returns the rules of others that decide, or may decide, what happens.
func (p *path) others() []explain.Other {
	var all []explain.Other
	for _, e := range p.ends {
		if e.by.Chain.Name == "" || p.owns(e.by.Chain) {
			continue
		}
		all = p.addOther(all, e)
	}
	for _, e := range p.noted {
		all = p.addOther(all, e)
	}
	for _, e := range p.doubtful {
		o := p.other(explain.Passes, e)
		o.Doubts = []explain.Doubt{{Rule: e.by.String(), Does: e.does, Why: e.why, Look: o.Look}}
		if !slices.ContainsFunc(all, func(x explain.Other) bool { return x.Alike(&o) }) {
			o.Look, o.To = "", []string{e.to.String()}
			all = append(all, o)
		}
	}
	return all
}

// addOther adds where a packet ends to a list, in which each rule stands once.
func (p *path) addOther(all []explain.Other, e end) []explain.Other {
	o := p.other(e.does, e)
	o.Rule = e.by.String()
	i := slices.IndexFunc(all, func(x explain.Other) bool { return x.Alike(&o) })
	if i < 0 {
		i, all = len(all), append(all, o)
	}
	if to := e.to.String(); !slices.Contains(all[i].To, to) {
		all[i].To = append(all[i].To, to)
	}
	return all
}

// other describes the built-in chain in which a packet ends.
func (p *path) other(does explain.Deed, e end) explain.Other {
	return explain.Other{
		Hook: strings.ToLower(e.at), Table: e.by.Chain.Table, Chain: e.at, Does: does,
		Look: command(p.family) + "-save -t " + e.by.Chain.Table,
	}
}
