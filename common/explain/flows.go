// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"kubeproxy/common/route"
	"kubeproxy/common/service"
)

// Flow is an entry of connection tracking. Later packets of the connection follow it,
// even if the rules have changed.
type Flow struct {
	Client   netip.AddrPort `json:"client"`
	Target   netip.AddrPort `json:"target"`
	Answered bool           `json:"answered"`
	// Ended means that both sides closed the connection, or one of them reset it.
	Ended bool `json:"ended,omitempty"`
	// HalfOpen means that the client waits for its first answer, or went away meanwhile.
	HalfOpen bool `json:"halfOpen,omitempty"`
	// Fresh means that nobody answered, and that the latest packet is at most a minute old.
	Fresh bool `json:"fresh,omitempty"`
	// Stale means that the target should not get packets of the connection. Then Remedy is
	// a command that deletes the entry, and its like.
	Stale  bool   `json:"stale,omitempty"`
	Remedy string `json:"remedy,omitempty"`

	goesOn  bool // to a target that gets no new connections
	unheard bool // fresh, to a target
}

// rank sorts the strongest evidence first.
func (f *Flow) rank() int {
	switch {
	case f.Ended:
		return 3
	case f.Answered:
		return 2
	case f.Fresh:
		return 0
	}
	return 1
}

// state says whether the target answered.
func (f *Flow) state() string {
	return []string{"not answered yet", "not answered", "answered", "ended"}[f.rank()]
}

// SetFlows records what connection tracking has, unanswered connections first. Open
// connections to an endpoint that gets no new ones are worth a note, ended ones are not.
func (w *Walk) SetFlows(all []Flow) {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b Flow) int { return cmp.Compare(a.rank(), b.rank()) })
	toTarget := func(f Flow) bool {
		_, is := w.Targets[f.Target]
		return is || slices.Contains(w.Via, f.Target)
	}
	works := !translates(w.Others) && slices.ContainsFunc(all, func(f Flow) bool { return f.Answered && toTarget(f) })
	for _, f := range all {
		isTarget := toTarget(f)
		// A client that closed its port leaves a half-open entry. New connections have other ports.
		if f.Stale = f.Stale && !isTarget && !(f.HalfOpen && works); !f.Stale {
			f.Remedy = ""
		}
		f.goesOn = !f.Stale && !isTarget && !f.Ended && !f.HalfOpen && w.Action == route.Forward
		f.unheard = f.Fresh && isTarget
		w.Flows = append(w.Flows, f)
	}
	for _, g := range grouped(w.Flows, func(f *Flow) string { return f.to(f.goesOn) }) {
		if len(g) == 1 {
			w.Notes = append(w.Notes, fmt.Sprintf("the connection of %s goes on to %s, which gets no new ones", g[0].Client, g[0].Target))
		} else {
			w.Notes = append(w.Notes, fmt.Sprintf("%d connections go on to %s, which gets no new ones", len(g), g[0].Target))
		}
	}
}

// translates reports whether a rule of others gives the packet another destination.
func translates(all []Other) bool {
	return slices.ContainsFunc(all, func(o Other) bool { return o.Does == Translates })
}

// to is the target if the condition holds, a key for grouped.
func (f *Flow) to(holds bool) string {
	if !holds {
		return ""
	}
	return f.Target.String()
}

// grouped returns the flows that have the same key, in their order. It leaves out those without.
func grouped(all []Flow, key func(*Flow) string) [][]Flow {
	var groups [][]Flow
	at := map[string]int{}
	for i := range all {
		k := key(&all[i])
		if k == "" {
			continue
		}
		if _, known := at[k]; !known {
			at[k] = len(groups)
			groups = append(groups, nil)
		}
		groups[at[k]] = append(groups[at[k]], all[i])
	}
	return groups
}

// flowLines has a line for the connections to one target in one state.
func (p *Path) flowLines() []string {
	var lines []string
	for _, g := range grouped(p.Flows, func(f *Flow) string { return f.Target.String() + f.state() }) {
		if f := &g[0]; len(g) == 1 {
			lines = append(lines, fmt.Sprintf("connection of %s: tracked to %s, %s", f.Client, f.Target, f.state()))
		} else {
			lines = append(lines, fmt.Sprintf("%d connections: tracked to %s, %s", len(g), f.Target, f.state()))
		}
	}
	return lines
}

// flows adds what connection tracking has to the differences. The rule that makes such
// entries is named before them.
func (ex *Explanation) flows() {
	p := ex.Installed
	again := ""
	if translates(p.Others) {
		again = "; the rule above makes such entries, so remove it first"
	}
	for _, g := range grouped(p.Flows, func(f *Flow) string { return f.to(f.Stale) }) {
		text := fmt.Sprintf("%d entries of connection tracking lead to %s, which is no endpoint for it: they are stale", len(g), g[0].Target)
		if len(g) == 1 {
			text = fmt.Sprintf("connection tracking still leads %s to %s, which is no endpoint for it: the entry is stale", g[0].Client, g[0].Target)
		}
		ex.Differences = append(ex.Differences, text+again)
	}
	for _, g := range grouped(p.Flows, func(f *Flow) string { return f.to(f.unheard) }) {
		text := fmt.Sprintf("%d connections of the last minute to %s got no answer: their packets", len(g), g[0].Target)
		if len(g) == 1 {
			text = fmt.Sprintf("a connection of the last minute, of %s to %s, got no answer: its packets", g[0].Client, g[0].Target)
		}
		text += " passed all rules of this node; ask the endpoint, or the way back: explain --probe dials it"
		if ex.Protocol == service.UDP.String() {
			text += ". Not all programs answer over UDP"
		}
		ex.Leads = append(ex.Leads, text)
	}
}
