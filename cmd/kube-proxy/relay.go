// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// relay is a Backend that connections pass through this process with.
type relay interface {
	// Led returns the snapshot that the kernel knows of, whose endpoints are
	// ports of this process.
	Led() *service.Snapshot
	// Observe has report told what the relay lacks, nothing most of the time.
	Observe(report func(text string))
	// Drain waits for the connections that are open now, as long as ctx lasts.
	Drain(ctx context.Context)
}

// relayed is settle for the snapshot that the kernel knows of.
func relayed(b *backend, settle func(context.Context, *service.Snapshot, reconcile.Result) (int, error)) func(context.Context, *service.Snapshot, reconcile.Result) (int, error) {
	r, ok := b.Backend.(relay)
	if !ok {
		return settle
	}
	return func(ctx context.Context, _ *service.Snapshot, result reconcile.Result) (int, error) {
		return settle(ctx, r.Led(), result)
	}
}

// observeRelay has what a relay lacks be a condition.
func (o *observers) observeRelay(backends []*backend) {
	if r, ok := backends[0].Backend.(relay); ok { // what one family lacks, both do
		r.Observe(func(text string) {
			o.health.SetCondition("relay", text)
			if text != "" {
				o.log.Info("Warning: " + text)
			}
		})
	}
}

// drainTime is how long connections through this process may go on after it
// was told to stop. A supervisor waits at least twice as long.
const drainTime = 5 * time.Second

// stopped says what becomes of connections now that the proxy ends. Those that
// pass through it may end first.
func stopped(log klog.Logger, b *backend) {
	r, ok := b.Backend.(relay)
	if !ok {
		log.Info("Stopped; the rules stay in force", "mode", b.mode)
		return
	}
	log.Info("Stopping; connections through this process may end", "mode", b.mode, "within", drainTime.String())
	ctx, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	r.Drain(ctx)
	log.Info("Stopped; until the next start, connections to Services are refused", "mode", b.mode)
}
