// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"strings"
	"time"

	"kubeproxy/common/service"
)

// probeTable names the table that is tried out and never comes to be.
const probeTable = "kube-services-probe"

// need is something that the table takes from the kernel.
type need struct {
	what   string
	module string // that usually brings it
	ops    []op
	// on is the module of what this builds upon: while that is lacking,
	// nothing can be said.
	on string
}

// needs lists what a table for f takes from the kernel, what the others
// build upon first.
func needs(f service.Family) []need {
	clients := &set{name: "clients", kind: addrMap, key: clientKey, timeout: time.Hour}
	nat := func(rules ...rule) *chain {
		return &chain{name: "prerouting", hook: &hook{name: "prerouting", priority: dstNAT}, rules: rules}
	}
	post := &chain{name: "postrouting", hook: &hook{name: "postrouting", priority: srcNAT}, rules: []rule{{masquerade{}}}}
	plain := &chain{name: "plain", rules: []rule{{remember{clients}}}}
	const chains = "nft_chain_nat"
	return []need{
		{"tables for " + f.String(), "nf_tables", nil, ""},
		{"chains of type nat", chains, appendChain(nil, nat()), ""},
		{"the type of an address in rules", "nft_fib_" + strings.ToLower(f.String()), appendChain(nil, nat(rule{isLocal{daddr}})), chains},
		{"connection tracking in rules", "nft_ct", appendChain(nil, nat(rule{translated{}})), chains},
		{"random numbers and translation in rules", "nft_numgen and nft_nat", appendChain([]op{{verb: addSet, set: endpoints}}, nat(draw)), chains},
		{"masquerading in rules", "nft_masq", appendChain(nil, post), chains},
		{"rejecting in rules", "nft_reject_" + strings.ToLower(f.String()), appendChain(nil, nat(rule{reject{}})), chains},
		{"sets of ranges in several fields", "nf_tables of Linux 5.6", []op{{verb: addSet, set: sources}}, ""},
		{"maps that rules write", "nf_tables of Linux 5.6", appendChain([]op{{verb: addSet, set: clients}}, plain), "nft_ct"},
	}
}

// draw is a rule that chooses an endpoint.
var draw = rule{translate{endpoints.key, 1, endpoints}}

// whole is a table as it is before any Service, with what Service ports and
// session affinity add.
func whole(f service.Family) []op {
	ops := []op{{verb: addTable}}
	for _, s := range baseSets {
		ops = append(ops, op{verb: addSet, set: s})
	}
	ops = appendChain(ops, baseChains(f, &service.Node{NodePorts: service.Everywhere()}, Options{DropInvalid: true})...)
	ops = appendChain(ops, &chain{name: "draw", rules: []rule{draw}})
	return append(ops, needs(f)[len(needs(f))-1].ops...)
}

// lacking tells what the kernel cannot do of what a table for f needs. try
// has it check a transaction without doing anything.
func lacking(f service.Family, try func([]op) error) error {
	first := try(whole(f))
	if first == nil {
		return nil
	}
	var missing []string
	lacks := map[string]bool{}
	for _, n := range needs(f) {
		if lacks[n.on] {
			continue
		}
		err := try(append([]op{{verb: addTable}}, n.ops...))
		if err == nil {
			continue
		}
		lacks[n.module] = true
		missing = append(missing, fmt.Sprintf("%s (module %s)", n.what, n.module))
		if n.ops == nil { // and nothing else can work
			break
		}
	}
	if len(missing) == 0 {
		return fmt.Errorf("the kernel refuses the rules: %w", first)
	}
	return fmt.Errorf("the kernel lacks %s: %w", strings.Join(missing, ", "), first)
}
