// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"net/netip"
	"slices"
	"testing"

	"kubeproxy/common/route"
	"kubeproxy/common/track"
)

var (
	good  = netip.MustParseAddrPort("10.244.1.1:8080")
	other = netip.MustParseAddrPort("10.244.1.2:8080")
)

// compared compares w with an Explanation that leads to good, unmasqueraded.
func compared(w *Walk) *Explanation {
	x := &Explanation{Source: "10.244.1.2", Action: "forward", Endpoints: []Endpoint{{Listed: track.Listed{Address: good.String()}, Chosen: true, Client: "kept"}}}
	x.Compare(w.Path())
	return x
}

func TestCompare(t *testing.T) {
	for name, tc := range map[string]struct {
		walk    Walk
		want    Agreement
		differs []string
	}{
		"same":       {Walk{Action: route.Forward, Targets: map[netip.AddrPort]bool{good: false}}, Agree, nil},
		"masquerade": {Walk{Action: route.Forward, Targets: map[netip.AddrPort]bool{good: true}}, Differ, []string{"the client's address is masqueraded on the way to 10.244.1.1:8080, and should be kept"}},
		"unknown":    {Walk{Action: route.Forward, Targets: map[netip.AddrPort]bool{good: true}, ClientUnknown: true}, Agree, nil},
		"one more":   {Walk{Action: route.Forward, Targets: map[netip.AddrPort]bool{good: false, other: false}}, Differ, []string{"the node also sends it to 10.244.1.2:8080, which should not get it"}},
		"another":    {Walk{Action: route.Reject}, Differ, []string{"the node does reject, and should forward"}},
		"by design":  {Walk{Action: route.Reject, ByDesign: "the mode never does that"}, Agree, nil},
		"fault":      {Walk{Action: route.Forward, Targets: map[netip.AddrPort]bool{good: false}, Faults: []string{"x"}}, Differ, []string{"x"}},
	} {
		if x := compared(&tc.walk); x.Verdict != tc.want || !slices.Equal(x.Differences, tc.differs) {
			t.Errorf("%s: %s %q, want %s %q", name, x.Verdict, x.Differences, tc.want, tc.differs)
		}
	}
}

// The client itself is reached with an address of the node, wherever it is.
func TestCompareHairpin(t *testing.T) {
	x := &Explanation{Source: good.Addr().String(), Action: "forward", Endpoints: []Endpoint{{Listed: track.Listed{Address: good.String()}, Chosen: true, Client: "kept"}}}
	x.Compare((&Walk{Action: route.Forward, Targets: map[netip.AddrPort]bool{good: true}}).Path())
	if x.Verdict != Agree {
		t.Errorf("%q", x.Differences)
	}
}

func TestFlows(t *testing.T) {
	client := netip.MustParseAddrPort("10.244.1.7:1001")
	for name, tc := range map[string]struct {
		flow          Flow
		via           []netip.AddrPort
		faults, notes int
	}{
		"to an endpoint":       {Flow{Target: good}, nil, 0, 0},
		"stale":                {Flow{Target: other, Stale: true}, nil, 1, 0},
		"open, of before":      {Flow{Target: other, Answered: true}, nil, 0, 1},
		"to a listener":        {Flow{Target: other, Stale: true}, []netip.AddrPort{other}, 0, 0},
		"to one of before":     {Flow{Target: other, Stale: true}, []netip.AddrPort{good}, 1, 0},
		"elsewhere, by design": {Flow{Target: other}, nil, 0, 1},
	} {
		tc.flow.Client = client
		w := &Walk{Action: route.Forward, Targets: map[netip.AddrPort]bool{good: false}, Via: tc.via}
		if w.SetFlows([]Flow{tc.flow}); len(w.Faults) != tc.faults || len(w.Notes) != tc.notes || len(w.Path().Flows) != 1 {
			t.Errorf("%s: %+v", name, w)
		}
	}
}

// TestRemainingConnections counts the connections to one endpoint that gets no new ones.
func TestRemainingConnections(t *testing.T) {
	w := &Walk{Action: route.Forward, Targets: map[netip.AddrPort]bool{good: true}}
	at := func(port uint16, to netip.AddrPort) Flow {
		return Flow{Client: netip.AddrPortFrom(netip.MustParseAddr("10.244.1.9"), port), Target: to}
	}
	third := netip.MustParseAddrPort("10.244.1.3:8080")
	w.SetFlows([]Flow{at(1, third), at(2, other), at(3, good), at(4, other)})
	want := []string{"2 connections go on to 10.244.1.2:8080, which gets no new ones", "the connection of 10.244.1.9:1 goes on to 10.244.1.3:8080, which gets no new ones"}
	if !slices.Equal(w.Notes, want) || len(w.Flows) != 4 {
		t.Errorf("got %q, %d flows, want %q", w.Notes, len(w.Flows), want)
	}
}
