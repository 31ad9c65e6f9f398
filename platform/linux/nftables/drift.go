// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"kubeproxy/common/reconcile"
)

// drift describes what other processes changed in a table that held h, by the steps that
// would restore it.
func (b *Backend) drift(t *table, h *installed) []string {
	p := b.compare(t, h.snapshot)
	var r reconcile.DriftReport
	for _, m := range p.incompatible {
		r.Add(func() string { return "altered: " + m })
	}
	if len(p.incompatible) > 0 {
		return r.Lines()
	}
	for _, u := range p.units {
		for _, o := range u.ops {
			r.Add(func() string { return o.driftText(b.family) })
		}
		for _, c := range u.shared {
			r.Add(func() string { return c.op().driftText(b.family) })
		}
	}
	return r.Lines()
}
