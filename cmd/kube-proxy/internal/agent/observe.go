// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"time"

	"kubeproxy/common/metrics"
	"kubeproxy/common/service"
	"kubeproxy/platform/mode"
)

// packetsTimeout bounds how long a scrape waits for the packet counters of rules.
const packetsTimeout = 2 * time.Second

// packetMetrics sums the packet counters of the rules of all backends. It returns nil in
// modes without counters, and the previous values if the counters cannot be read now.
func packetMetrics(backends []*mode.Backend) *metrics.Packets {
	ctx, cancel := context.WithTimeout(context.Background(), packetsTimeout)
	defer cancel()
	var all *metrics.Packets
	for _, b := range backends {
		if b.Packets == nil {
			continue
		}
		p, _ := b.Packets(ctx)
		if all == nil {
			all = &metrics.Packets{}
		}
		all.Invalid += p.Invalid
		all.Loopback += p.Loopback
	}
	return all
}

// relayMetrics returns what the relay counts for all families, nil without a relay.
func relayMetrics(backends []*mode.Backend) *metrics.Relay {
	if r := backends[0].Relay; r != nil {
		return r.Use()
	}
	return nil
}

// localhostMetrics returns the state of the listeners on loopback addresses, empty
// without any.
func localhostMetrics(backends []*mode.Backend) map[service.Family]metrics.Localhost {
	all := map[service.Family]metrics.Localhost{}
	for _, b := range backends {
		if b.Localhost != nil {
			all[b.Family] = metrics.Localhost{Listeners: b.Localhost.Listeners(), Failures: b.Localhost.Failures()}
		}
	}
	return all
}

// countedByFamily returns what of reads, by family. Counters that cannot be read are left
// out.
func countedByFamily(backends []*mode.Backend, of func(*mode.Backend) func() (uint64, error)) map[service.Family]uint64 {
	all := map[service.Family]uint64{}
	for _, b := range backends {
		read := of(b)
		if read == nil {
			continue
		}
		if n, err := read(); err == nil {
			all[b.Family] = n
		}
	}
	return all
}

// acceleratedMetrics returns how many connections socket acceleration took, by family.
func acceleratedMetrics(backends []*mode.Backend) map[service.Family]uint64 {
	return countedByFamily(backends, func(b *mode.Backend) func() (uint64, error) { return b.Accelerated })
}

// unrelayedMetrics returns how many packets rules refused on loopback addresses, by family.
func unrelayedMetrics(backends []*mode.Backend) map[service.Family]uint64 {
	return countedByFamily(backends, func(b *mode.Backend) func() (uint64, error) { return b.Unrelayed })
}
