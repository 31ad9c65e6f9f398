// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"fmt"
	"slices"
	"strings"
)

// allTables lists the tables in which a service proxy may have chains.
var allTables = []string{nat, filter, mangle}

// upstreamChainNames are chains of some version of kube-proxy, in one of its modes, that
// this proxy does not make.
var upstreamChainNames = map[string][]string{
	nat: {
		"KUBE-PROXY-CANARY", "KUBE-FIREWALL", "KUBE-LOAD-BALANCER", "KUBE-NODE-PORT",
	},
	filter: {
		"KUBE-PROXY-CANARY", "KUBE-NODE-PORT", "KUBE-SOURCE-RANGES-FIREWALL",
		"KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER",
	},
	mangle: {"KUBE-PROXY-CANARY"},
}

// sharedWithKubelet are chains that kubelet made until version 1.27. They alone do not
// prove that a service proxy ran.
var sharedWithKubelet = []id{{nat, markChain}, {nat, postroutingChain}}

// describeLeftovers describes those of all that a service proxy left, "" if there are
// none.
func describeLeftovers(all []id, of Role) string {
	var left []id
	ours := of == IPVSCompanion
	for _, i := range all {
		if of.owns(i) {
			left = append(left, i)
			ours = ours || i.name == refuseChain
		}
	}
	if !slices.ContainsFunc(left, func(i id) bool { return !slices.Contains(sharedWithKubelet, i) }) {
		return ""
	}
	whose := "another service proxy"
	if ours {
		whose = "this proxy"
	}
	const some = 3
	slices.SortFunc(left, id.compare)
	var names []string
	for _, i := range left[:min(some, len(left))] {
		names = append(names, i.name)
	}
	text := strings.Join(names, ", ")
	if len(left) > some {
		text += ", ..."
	}
	return fmt.Sprintf("chains of %s: %d (%s)", whose, len(left), text)
}
