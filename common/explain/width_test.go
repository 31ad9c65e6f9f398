// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	"kubeproxy/common/track"
	"kubeproxy/test/kit"
)

// TestWidth prints the longest names that Kubernetes allows. Only a command that mends
// something is not wrapped, to be copied.
func TestWidth(t *testing.T) {
	name, node, zone := strings.Repeat("service-", 7)+"is-long", strings.Repeat("node-of-a-", 6)+"long.name.example.org", strings.Repeat("zone", 15)
	const address = "[2001:db8:1111:2222:3333:4444:5555:7777]:65535"
	client := netip.MustParseAddrPort(address)
	x := &Explanation{
		Node: node, Source: address, Destination: address, Protocol: "sctp", Action: "drop", Why: strings.Repeat("a reason ", 20),
		Steps:     []Step{{"destination", "the ClusterIP of port lines of service " + strings.Repeat("n", 63) + "/" + name}},
		Endpoints: []Endpoint{{Listed: track.Listed{Address: address, Node: node, Zone: zone, State: "terminating"}, Client: "masqueraded", Why: strings.Repeat("not ready ", 9)}},
		Problems:  []string{strings.Repeat("a problem ", 20)}, Notes: []string{strings.Repeat("a note ", 30)},
		Verdict: Differ, Differences: []string{strings.Repeat("a difference ", 20)},
		Installed: &Path{
			Hops:    []Hop{{"chain " + strings.Repeat("long-", 30), strings.Repeat("does it ", 20)}},
			Targets: []Target{{Address: address, Route: strings.Repeat("via interface ", 12)}},
			Flows:   []Flow{{Client: client, Target: client}},
		},
	}
	var out bytes.Buffer
	if err := (View{}).Print(&out, x); err != nil {
		t.Fatal(err)
	}
	kit.CheckWidth(t, out.String(), name, zone, node, address)
	t.Logf("\n%s", out.String())
}
