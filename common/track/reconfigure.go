// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import "slices"

// Reconfigure takes in other choices of the operator. NodeName,
// IgnoreExternalIPs, Changed and Report stay as they are: the Tracker keeps no
// objects that it could read again.
func (t *Tracker) Reconfigure(o Options) {
	t.change(func() bool {
		before := t.options.node(t.facts)
		t.options.NodeIPs = slices.Clone(o.NodeIPs)
		t.options.Pods, t.options.PodsFromNode = o.Pods, o.PodsFromNode
		t.options.NodePorts, t.options.NodePortsPrimary = slices.Clone(o.NodePorts), o.NodePortsPrimary
		t.options.MasqueradeAll = o.MasqueradeAll
		now := t.options.node(t.facts)
		if sameNode(before, now) {
			return false
		}
		if !slices.Equal(before.Addrs, now.Addrs) { // which decide about hairpins
			for _, s := range t.services {
				t.touch(s)
			}
		}
		t.renode = true
		return true
	})
}
