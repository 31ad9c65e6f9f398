// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"strings"
	"time"

	"kubeproxy/common/service"
)

// probeTable is the name of the table in dry runs. It is never created.
const probeTable = "kube-services-probe"

// kernelFeature is a feature of the kernel that the table needs.
type kernelFeature struct {
	name   string
	module string // the module that usually provides it
	ops    []op
	// dependsOn is the module of a feature that this one needs. While that is missing,
	// the probe has no result.
	dependsOn string
}

// kernelFeatures lists what a table for f needs, dependencies first.
func kernelFeatures(f service.Family) []kernelFeature {
	clients := &set{name: "clients", kind: addrMap, key: clientKey, timeout: time.Hour, limit: clientLimit}
	nat := func(rules ...rule) *chain {
		return &chain{name: "prerouting", hook: &hook{name: "prerouting", priority: dstNAT}, rules: rules}
	}
	post := &chain{name: "postrouting", hook: &hook{name: "postrouting", priority: srcNAT}, rules: []rule{{masquerade{}}}}
	plain := &chain{name: "plain", rules: []rule{{recordClient{clients}}}}
	const chains = "nft_chain_nat"
	return []kernelFeature{
		{"tables for " + f.String(), "nf_tables", nil, ""},
		{"chains of type nat", chains, appendChain(nil, nat()), ""},
		{"the type of an address in rules", "nft_fib_" + strings.ToLower(f.String()), appendChain(nil, nat(rule{isLocal{daddr}})), chains},
		{"connection tracking in rules", "nft_ct", appendChain(nil, nat(rule{translated{}})), chains},
		{"random numbers and translation in rules", "nft_numgen and nft_nat", appendChain([]op{{verb: addSet, set: endpoints}}, nat(dnatRule)), chains},
		{"masquerading in rules", "nft_masq", appendChain(nil, post), chains},
		{"rejecting in rules", "nft_reject_" + strings.ToLower(f.String()), appendChain(nil, nat(rule{reject{}})), chains},
		{"sets of ranges in several fields", "nf_tables of Linux 5.6", []op{{verb: addSet, set: sources}}, ""},
		{"maps that rules write", "nf_tables of Linux 5.6", appendChain([]op{{verb: addSet, set: clients}}, plain), "nft_ct"},
	}
}

// dnatRule is a rule that selects an endpoint.
var dnatRule = rule{dnat{endpoints.key, 1, endpoints}}

// completeTable returns the ops that create a table without Services, and the parts that
// Service ports and session affinity add.
func completeTable(f service.Family) []op {
	ops := []op{{verb: addTable}}
	for _, s := range baseSets {
		ops = append(ops, op{verb: addSet, set: s})
	}
	ops = appendChain(ops, baseChains(f, &service.Node{NodePorts: service.AnyAddress()}, Options{DropInvalid: true})...)
	ops = appendChain(ops, &chain{name: "draw", rules: []rule{dnatRule}})
	return append(ops, kernelFeatures(f)[len(kernelFeatures(f))-1].ops...)
}

// probeFeatures reports which of the features for f the kernel lacks. try makes the
// kernel check a transaction without applying it.
func probeFeatures(f service.Family, try func([]op) error) error {
	first := try(completeTable(f))
	if first == nil {
		return nil
	}
	var missing []string
	missingModules := map[string]bool{}
	for _, n := range kernelFeatures(f) {
		if missingModules[n.dependsOn] {
			continue
		}
		err := try(append([]op{{verb: addTable}}, n.ops...))
		if err == nil {
			continue
		}
		missingModules[n.module] = true
		missing = append(missing, fmt.Sprintf("%s (module %s)", n.name, n.module))
		if n.ops == nil { // without tables nothing else can work
			break
		}
	}
	if len(missing) == 0 {
		return fmt.Errorf("the kernel refuses the rules: %w", first)
	}
	return fmt.Errorf("the kernel lacks %s: %w", strings.Join(missing, ", "), first)
}
