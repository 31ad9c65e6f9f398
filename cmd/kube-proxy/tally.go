// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"kubeproxy/common/metrics"
	"kubeproxy/platform/linux/iptables"
)

// restored is what the latest round did to rules of iptables, nil in a mode
// that has none.
func (b *backend) restored() *metrics.Restored {
	x, ok := b.Backend.(interface{ Tally() iptables.Tally })
	if !ok {
		return nil
	}
	t := x.Tally()
	return &metrics.Restored{Refused: t.Refused, Held: t.Rules, Written: t.Written}
}
