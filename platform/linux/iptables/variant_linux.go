// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"os/exec"
	"slices"

	"kubeproxy/common/service"
)

// kubeletChains are the chains that kubelet makes in table mangle in any case. They show
// which variant a node uses (kubernetes/kubernetes#109059).
var kubeletChains = []id{{"mangle", "KUBE-IPTABLES-HINT"}, {"mangle", "KUBE-KUBELET-CANARY"}}

// commandPrefix returns the name of the iptables commands for f, without suffix. A
// container has its own commands, and rules of the wrong variant are not in the tables
// that all other components of the node use. So if kubelet has used exactly one variant
// and there are commands for it, the result is that variant. Otherwise it is the short
// name.
func commandPrefix(f service.Family) string {
	var used []string
	for _, v := range Variants {
		long := Leftovers{Variant: v, Family: f}.String()
		if !UsedByKubelet(v) {
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

// UsedByKubelet reports whether kubelet has made a chain with v, in any family.
func UsedByKubelet(v Variant) bool {
	list := legacyChains
	if v == NFT {
		list = nftChains
	}
	return slices.ContainsFunc(service.Families[:], func(f service.Family) bool {
		all, err := list(f)
		return err == nil && slices.ContainsFunc(all, func(i id) bool { return slices.Contains(kubeletChains, i) })
	})
}
