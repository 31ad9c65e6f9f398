// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import "slices"

// Reconfigure applies changed settings. It ignores NodeName and IgnoreExternalIPs: the
// Tracker keeps no objects that it could read again.
func (t *Tracker) Reconfigure(o Options) {
	t.change(func() bool {
		before := t.options.node(t.nodeInfo)
		t.options.NodeIPs = slices.Clone(o.NodeIPs)
		t.options.Pods, t.options.PodsFromNode = o.Pods, o.PodsFromNode
		t.options.NodePorts, t.options.NodePortsPrimary = slices.Clone(o.NodePorts), o.NodePortsPrimary
		t.options.MasqueradeAll = o.MasqueradeAll
		now := t.options.node(t.nodeInfo)
		if sameNode(before, now) {
			return false
		}
		// Addresses affect hairpin traffic and, with NodePorts, which addresses are
		// refused.
		if !slices.Equal(before.Addrs, now.Addrs) || !slices.Equal(before.NodePorts, now.NodePorts) {
			for _, s := range t.services {
				t.markDirty(s)
			}
		}
		t.nodeDirty = true
		return true
	})
}
