// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"kubeproxy/common/service"
)

// Connections calls each for the TCP connections of a family that the kernel tracks, with
// the addresses that clients used.
type Connections func(ctx context.Context, f service.Family, each func(from, to netip.AddrPort)) error

// missed finds out that no connection of pods is taken, whatever the reason: that the
// programs are attached, and the tables are right, does not say that a socket meets them.
type missed struct {
	list Connections // nil to find out nothing
	last uint64      // connections of pods that were taken, at the last look
	seen map[[2]netip.AddrPort]bool
	next time.Time // not before
	text string    // empty if some were taken, or none was made
}

const (
	// fewMissed is how many connections may meet the rules for a reason of their own, as
	// those of sockets that are bound.
	fewMissed = 3
	// missedPause bounds the cost of the looks: 2 % of the time, as of all looks into
	// connection tracking.
	missedPause = 50
)

// look compares what was taken of pods since the last look with the new connections of pods
// to addresses of the tables. The rules have seen those.
func (m *missed) look(ctx context.Context, b *Backend, want *service.Snapshot) {
	now := time.Now()
	if m.list == nil || now.Before(m.next) {
		return
	}
	taken, err := b.driver.Taken()
	if err != nil || taken.Pods != m.last {
		*m = missed{list: m.list, last: taken.Pods}
		return
	}
	seen := map[[2]netip.AddrPort]bool{}
	fresh, example := 0, [2]netip.AddrPort{}
	err = m.list(ctx, b.family, func(from, to netip.AddrPort) {
		i, found := b.tables.find(nameOf(to))
		if !found || b.tables.list(i) == 0 || !inPods(want.Node, from.Addr()) {
			return
		}
		c := [2]netip.AddrPort{from, to}
		seen[c] = true
		if m.seen != nil && !m.seen[c] {
			fresh, example = fresh+1, c
		}
	})
	m.next = now.Add(missedPause * time.Since(now))
	if err != nil {
		return
	}
	if m.seen = seen; fresh >= fewMissed {
		m.text = fmt.Sprintf("the rules saw %d new connections of pods, as from %s to %s, and none of a pod was taken since: "+
			"the cgroups of these pods are not where a kubelet makes them, or other programs decide first", fresh, example[0], example[1])
	}
}

// inPods reports whether an address is that of a pod of this node. Without prefixes nobody
// knows.
func inPods(n *service.Node, a netip.Addr) bool {
	return n.Pods.Interface == "" && n.Pods.InterfacePrefix == "" && n.Pods.Contains(a, "pod")
}
