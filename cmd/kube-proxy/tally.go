// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"time"

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

// packetsWithin bounds how long a scrape waits for what rules have counted.
const packetsWithin = 2 * time.Second

// packets is what rules of all backends have counted, nil in a mode where none
// do. Where it cannot be read now, it is what it was.
func packets(backends []*backend) *metrics.Packets {
	ctx, cancel := context.WithTimeout(context.Background(), packetsWithin)
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

// lacking shows what the node does not let b have, and logs it when that begins.
func (o *observers) lacking(b *backend) {
	x, ok := b.Backend.(interface{ Lacks() string })
	if !ok {
		return
	}
	text := x.Lacks()
	o.health.SetCondition("lacking-"+b.family.String(), text)
	if text != "" && text != b.lacks {
		o.log.Info("Warning: "+text, "backend", b.String())
	}
	b.lacks = text
}
