// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"net/netip"
	"slices"
	"strings"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/platform/linux/iptables/walk"
)

// doubt records a rule of others that may decide.
func (p *path) doubt(s walk.Step, to netip.AddrPort) {
	if !p.owns(s.Chain) {
		p.doubtful = append(p.doubtful, end{route.Drop, s, to, p.at})
	}
}

// others returns the rules of others that decide what happens to the connection, or may
// decide it.
func (p *path) others() []explain.Other {
	var all []explain.Other
	for _, e := range p.ends {
		if e.by.Chain.Name == "" || p.owns(e.by.Chain) {
			continue
		}
		does := explain.Drops
		if e.action == route.Reject {
			does = explain.Refuses
		}
		all = p.addOther(all, does, e)
	}
	for _, e := range p.masqueraded {
		all = p.addOther(all, explain.Masquerades, e)
	}
	for _, e := range p.doubtful {
		o := p.other(explain.Passes, e)
		o.Doubts = []explain.Doubt{{Rule: stepText(e.by), Does: explain.Drops, Why: "a part of it that is not known here", Look: o.Look}}
		if !slices.ContainsFunc(all, func(x explain.Other) bool { return x.Alike(&o) }) {
			o.Look, o.To = "", []string{e.to.String()}
			all = append(all, o)
		}
	}
	return all
}

// addOther adds where a packet ends to a list, in which each rule stands once.
func (p *path) addOther(all []explain.Other, does explain.Deed, e end) []explain.Other {
	o := p.other(does, e)
	o.Rule = stepText(e.by)
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
