// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"os/exec"
	"slices"

	"kubeproxy/common/service"
)

// kubeletChains are what kubelet makes in table mangle, whatever else it leaves
// to others: by them it tells which variant a node uses.
var kubeletChains = []id{{"mangle", "KUBE-IPTABLES-HINT"}, {"mangle", "KUBE-KUBELET-CANARY"}}

// commandPrefix returns how the commands of iptables are called for f, but for what
// is added to the name. A container has commands of its own, and rules that
// are made with the wrong variant are rules beside those of everybody else on
// the node. So if kubelet has used one variant and there are commands for it,
// it is that one, else whatever the short name stands for.
func commandPrefix(f service.Family) string {
	var used []string
	for _, v := range Variants {
		long := Leftovers{Variant: v, Family: f}.String()
		if !kubeletUses(v) {
			continue
		}
		_, err := exec.LookPath(long + "-restore")
		if _, noSave := exec.LookPath(long + "-save"); err == nil && noSave == nil {
			used = append(used, long)
		}
	}
	if len(used) == 1 {
		return used[0]
	}
	return command(f)
}

// kubeletUses reports that kubelet has made a chain with v, in any family.
func kubeletUses(v Variant) bool {
	list := legacyChains
	if v == NFT {
		list = nftChains
	}
	return slices.ContainsFunc(service.Families[:], func(f service.Family) bool {
		all, err := list(f)
		return err == nil && slices.ContainsFunc(all, func(i id) bool { return slices.Contains(kubeletChains, i) })
	})
}
