// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"net/netip"
	"slices"

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
	// Faults are objects on the way that are not as the proxy makes them.
	Faults []string `json:"faults,omitempty"`
	// ByDesign is why the mode always does something else than the rules of Kubernetes
	// say. Then the action and the targets are no difference.
	ByDesign string `json:"byDesign,omitempty"`
}

// Hop is one object that the packet meets, by the name that the system's own tools show.
type Hop struct {
	Object string `json:"object"`
	Does   string `json:"does"` // what it does with the packet
}

// Target is an endpoint to which the dataplane may send the connection.
type Target struct {
	Address string `json:"address"`
	Client  string `json:"client"` // kept or masqueraded
}

// What an endpoint sees as the address of the client.
const (
	clientKept        = "kept"
	clientMasqueraded = "masqueraded"
)

// Agreement is the verdict on what should happen and what is installed.
type Agreement string

// The verdicts.
const (
	Agree   Agreement = "agree"
	Differ  Agreement = "differ"
	Unknown Agreement = "unknown" // nothing could be read, or nothing was asked to
)

// Walk is the raw result of following a packet through a dataplane.
type Walk struct {
	Hops    []Hop
	Action  route.Action
	Targets map[netip.AddrPort]bool // whether the address of the client is replaced
	// Remembered is the target by session affinity, invalid without one.
	Remembered netip.AddrPort
	Faults     []string
	ByDesign   string // as in Path
	// Notes are for the person who asked.
	Notes []string
}

// Path returns w in printable form.
func (w *Walk) Path() *Path {
	p := &Path{Hops: w.Hops, Action: w.Action.String(), Faults: w.Faults, ByDesign: w.ByDesign}
	if w.Remembered.IsValid() {
		p.Remembered = w.Remembered.String()
	}
	var addrs []netip.AddrPort
	for a := range w.Targets {
		addrs = append(addrs, a)
	}
	slices.SortFunc(addrs, netip.AddrPort.Compare)
	for _, a := range addrs {
		t := Target{a.String(), clientKept}
		if w.Targets[a] {
			t.Client = clientMasqueraded
		}
		p.Targets = append(p.Targets, t)
	}
	return p
}

// Compare sets what is installed, and says where it parts from what should happen.
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

// comesBack reports whether t is the client itself, on whatever node. Its own address in
// place of the client's is no difference: without it the answer would not pass this node.
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
		case client != t.Client && !x.comesBack(t):
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
