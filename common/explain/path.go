// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"kubeproxy/common/route"
)

// Path is what the dataplane of this node does with a connection, read back from it.
type Path struct {
	// Hops are the objects that the first packet meets, in their order.
	Hops   []Hop  `json:"hops"`
	Action string `json:"action"` // as in Explanation
	// Targets are where the connection may go, sorted by address; only with action forward.
	Targets []Target `json:"targets,omitempty"`
	// Remembered is the endpoint that the client's last connection had, if session
	// affinity leads there. Then it is the only target.
	Remembered string `json:"remembered,omitempty"`
	// Faults are objects on the path that are not as the proxy makes them.
	Faults []string `json:"faults,omitempty"`
	// ByDesign is why the mode always differs from the rules of Kubernetes here. Then
	// action and targets do not count as a difference.
	ByDesign string `json:"byDesign,omitempty"`
	// Others are the base chains of others on the way, in the order in which the packet
	// passes them. Of tables that the proxy shares with others, such as those of iptables,
	// only those that matter are listed.
	Others []Other `json:"others,omitempty"`
	// Flows are the client's connections to the destination that connection tracking knows.
	Flows []Flow `json:"flows,omitempty"`
}

// Flow is an entry of connection tracking. Later packets of the connection follow it,
// even if the rules have changed.
type Flow struct {
	Client   netip.AddrPort `json:"client"`
	Target   netip.AddrPort `json:"target"`
	Answered bool           `json:"answered"`
	// Stale means that the target should not get packets of the connection. Then Remedy is
	// a command that deletes the entry.
	Stale  bool   `json:"stale,omitempty"`
	Remedy string `json:"remedy,omitempty"`
}

// Hop is one object that the packet meets, by the name that the system's own tools show.
type Hop struct {
	Object string `json:"object"`
	Does   string `json:"does"` // what it does with the packet
}

// OneOf says on one line, for a Hop, that a packet goes to one of some addresses. what is
// what they are, such as endpoints.
func OneOf(what string, all []netip.AddrPort) string {
	const most = 3
	var names []string
	for _, a := range all[:min(most, len(all))] {
		names = append(names, a.String())
	}
	text := fmt.Sprintf("one of %d %s: %s", len(all), what, strings.Join(names, ", "))
	if n := len(all) - most; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	return text
}

// Target is an endpoint to which the dataplane may send the connection.
type Target struct {
	Address string `json:"address"`
	// Client is what the endpoint sees as the client's address: kept, masqueraded or unknown.
	Client string `json:"client"`
	// Route is how packets get there, empty if that is unknown.
	Route string `json:"route,omitempty"`
}

// What an endpoint sees as the address of the client.
const (
	clientKept        = "kept"
	clientMasqueraded = "masqueraded"
	clientUnknown     = "unknown" // the dataplane does not say
)

// Agreement is the verdict on what should happen and what is installed.
type Agreement string

// The verdicts.
const (
	Agree   Agreement = "agree"
	Differ  Agreement = "differ"
	Unknown Agreement = "unknown" // nothing could be read, or nothing was to be read
)

// LegacyTables stands for all tables of iptables-legacy in Walk.Followed.
const LegacyTables = "iptables-legacy"

// Walk is the raw result of following a packet through a dataplane.
type Walk struct {
	Hops    []Hop
	Action  route.Action
	Targets map[netip.AddrPort]bool // whether the address of the client is replaced
	// ClientUnknown means that the dataplane does not say what Targets should.
	ClientUnknown bool
	// Remembered is the target by session affinity, invalid without one.
	Remembered netip.AddrPort
	Faults     []string
	ByDesign   string // as in Path
	// Others are rules of others, as in Path. Followed names the tables that were followed,
	// so that nobody else needs to, as nft or iptables-legacy name them.
	Others   []Other
	Followed []string
	// Served means that the node takes the packet for itself and then sends it to a target,
	// as IPVS does.
	Served bool
	// Taken means that connect(2) gives the socket a target, so that the rules see no packet
	// to the destination.
	Taken bool
	// Via are listeners of the process through which connections pass to the targets.
	Via []netip.AddrPort
	// Flows and Routes are as in Path and Target.
	Flows  []Flow
	Routes map[netip.Addr]string
	// Notes are for the user.
	Notes []string
}

// SetFlows records what connection tracking has. A stale entry is a fault. Open connections
// to an endpoint that gets no new ones are worth a note.
func (w *Walk) SetFlows(all []Flow) {
	remaining := map[netip.AddrPort][]Flow{}
	for _, f := range all {
		_, isTarget := w.Targets[f.Target]
		isTarget = isTarget || slices.Contains(w.Via, f.Target)
		switch f.Stale = f.Stale && !isTarget; {
		case f.Stale:
			w.Faults = append(w.Faults, fmt.Sprintf("connection tracking still leads %s to %s, which is no endpoint for it: the entry is stale", f.Client, f.Target))
		case !isTarget && w.Action == route.Forward:
			remaining[f.Target] = append(remaining[f.Target], f)
		}
		w.Flows = append(w.Flows, f)
	}
	for _, to := range slices.SortedFunc(maps.Keys(remaining), netip.AddrPort.Compare) {
		if some := remaining[to]; len(some) == 1 {
			w.Notes = append(w.Notes, fmt.Sprintf("the connection of %s goes on to %s, which gets no new ones", some[0].Client, to))
		} else {
			w.Notes = append(w.Notes, fmt.Sprintf("%d connections go on to %s, which gets no new ones", len(some), to))
		}
	}
}

// Path returns w in printable form.
func (w *Walk) Path() *Path {
	p := &Path{Hops: w.Hops, Action: w.Action.String(), Faults: w.Faults, ByDesign: w.ByDesign, Others: w.Others, Flows: w.Flows}
	if w.Remembered.IsValid() {
		p.Remembered = w.Remembered.String()
	}
	var addrs []netip.AddrPort
	for a := range w.Targets {
		addrs = append(addrs, a)
	}
	slices.SortFunc(addrs, netip.AddrPort.Compare)
	for _, a := range addrs {
		t := Target{Address: a.String(), Client: clientKept, Route: w.Routes[a.Addr()]}
		switch {
		case w.ClientUnknown:
			t.Client = clientUnknown
		case w.Targets[a]:
			t.Client = clientMasqueraded
		}
		p.Targets = append(p.Targets, t)
	}
	return p
}

// Compare sets what is installed, and says where it differs from what should happen.
func (x *Explanation) Compare(p *Path) {
	x.Installed, x.Verdict, x.Differences = p, Agree, slices.Clone(p.Faults)
	switch {
	case p.ByDesign != "":
		x.Notes = append(x.Notes, p.ByDesign)
	case p.Action != x.Action:
		x.Differences = append(x.Differences, fmt.Sprintf("the node does %s, and should %s", actionText(p.Action), actionText(x.Action)))
	default:
		x.Differences = append(x.Differences, x.differentTargets(p)...)
	}
	x.others()
	if len(x.Differences) > 0 {
		x.Verdict = Differ
	}
}

func actionText(action string) string {
	if action == "pass" {
		return "leave it alone"
	}
	return action
}

// comesBack reports whether t is the client itself, on any node. Such a connection may be
// masqueraded, because otherwise the answer would not pass this node.
func (x *Explanation) comesBack(t Target) bool {
	a, err := netip.ParseAddrPort(t.Address)
	return err == nil && a.Addr().String() == x.Source && t.Client == clientMasqueraded
}

// differentTargets compares the endpoints. Session affinity narrows the choice to one.
func (x *Explanation) differentTargets(p *Path) []string {
	var all []string
	want, have := map[string]string{}, map[string]string{}
	for _, e := range x.Endpoints {
		if e.Chosen {
			want[e.Address] = e.Client
		}
	}
	for _, t := range p.Targets {
		have[t.Address] = t.Client
		switch client, wanted := want[t.Address]; {
		case !wanted:
			all = append(all, fmt.Sprintf("the node also sends it to %s, which should not get it", t.Address))
		case client != t.Client && t.Client != clientUnknown && !x.comesBack(t):
			all = append(all, fmt.Sprintf("the client's address is %s on the way to %s, and should be %s", t.Client, t.Address, client))
		}
	}
	if p.Remembered != "" {
		return all
	}
	for _, e := range x.Endpoints {
		if _, there := have[e.Address]; e.Chosen && !there {
			all = append(all, fmt.Sprintf("the node never sends it to %s, which should get its share", e.Address))
		}
	}
	return all
}
