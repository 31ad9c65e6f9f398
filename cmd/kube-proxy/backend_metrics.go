// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"time"

	"kubeproxy/common/metrics"
	"kubeproxy/platform/linux/iptables"
)

// restoreMetrics is what the latest round did to rules of iptables, nil in a mode
// that has none.
func (b *backend) restoreMetrics() *metrics.Restored {
	x, ok := b.Backend.(interface{ Tally() iptables.Tally })
	if !ok {
		return nil
	}
	t := x.Tally()
	return &metrics.Restored{Refused: t.Refused, Held: t.Rules, Written: t.Written}
}

// packetsTimeout bounds how long a scrape waits for what rules have counted.
const packetsTimeout = 2 * time.Second

// packetMetrics is what rules of all backends have counted, nil in a mode where none
// do. Where it cannot be read now, it is what it was.
func packetMetrics(backends []*backend) *metrics.Packets {
	ctx, cancel := context.WithTimeout(context.Background(), packetsTimeout)
	defer cancel()
	var all *metrics.Packets
	for _, b := range backends {
		x, ok := b.Backend.(interface {
			Packets(context.Context) (iptables.Packets, error)
		})
		if !ok {
			continue
		}
		p, _ := x.Packets(ctx)
		if all == nil {
			all = &metrics.Packets{}
		}
		all.Invalid += p.Invalid
		all.Loopback += p.Loopback
	}
	return all
}

// reportDegraded shows what the node does not let b have, and logs it when that begins.
func (o *statusReporter) reportDegraded(b *backend) {
	x, ok := b.Backend.(interface{ DegradedReason() string })
	if !ok {
		return
	}
	text := x.DegradedReason()
	o.health.SetCondition("lacking-"+b.family.String(), text)
	if text != "" && text != b.degradedReason {
		o.log.Info("Warning: "+text, "backend", b.String())
	}
	b.degradedReason = text
}
