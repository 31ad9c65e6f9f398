// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"iter"
	"net/netip"
	"runtime"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/google/nftables"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
	own "kubeproxy/platform/linux/nftables"
)

const (
	changeRounds = 2000 // samples of each small change
	manyServices = 1000 // that change at once
	manyRounds   = 20
	masqueradeBy = 14 // bit of the mark, as the proxy's default
)

// serviceOfRound spreads changes over all Services; two successive rounds change one
// Service back and forth.
func serviceOfRound(round, services int) int { return round / 2 * 7919 % services }

func chunksOf(list []nftables.SetElement) iter.Seq[[]nftables.SetElement] {
	return slices.Chunk(list, perMessage)
}

// pipeline is our proxy without a source: the caller adds objects, and each round runs at
// once.
type pipeline struct {
	tracker *track.Tracker
	backend reconcile.Backend
	// do, if set, is how to call backend in its network.
	do func(func() error) error
}

// newPipeline returns a pipeline to the nftables tables of n's node.
func newPipeline(n *network) (*pipeline, error) {
	r := &pipeline{tracker: track.New(track.Options{
		NodeName: ownNode, NodePorts: service.AnyAddress(),
		Pods: service.LocalPods{Prefixes: []netip.Prefix{netip.MustParsePrefix(clusterCIDR)}},
	})}
	err := n.node.Do(func() (err error) {
		r.backend, err = own.New(service.IPv4, own.Options{MasqueradeBit: masqueradeBy})
		return err
	})
	return r, err
}

// feed adds all objects to the tracker and returns the duration of the calls, without the
// construction of the objects.
func (r *pipeline) feed(services int) (wall, cpu time.Duration) {
	const batch = 500
	for first := 0; first < services; first += batch {
		var list []*corev1.Service
		var parts []*discoveryv1.EndpointSlice
		for i := first; i < min(first+batch, services); i++ {
			list = append(list, newService(i))
			parts = append(parts, newSlice(i, numbers(perService)))
		}
		m := start()
		for i := range list {
			r.tracker.SetService(list[i])
			r.tracker.SetSlice(parts[i])
		}
		w, c := m.stop()
		wall, cpu = wall+w, cpu+c
	}
	return wall, cpu
}

// apply programs the latest snapshot and returns whether that took a change.
func (r *pipeline) apply(ctx context.Context) (changed bool, err error) {
	if r.do != nil {
		err = r.do(func() (err error) {
			changed, err = r.applyHere(ctx)
			return err
		})
		return changed, err
	}
	return r.applyHere(ctx)
}

func (r *pipeline) applyHere(ctx context.Context) (changed bool, err error) {
	p, err := r.backend.Plan(ctx, r.tracker.Latest())
	if err != nil || p.Empty() {
		return false, err
	}
	return true, p.Apply(ctx).Err
}

// measureOurs measures all figures of our own proxy.
func measureOurs(ctx context.Context, t task) (*figures, error) {
	n, err := newNetwork()
	if err != nil {
		return nil, err
	}
	defer n.close()
	f := newFigures()
	r, err := newPipeline(n)
	if err != nil {
		return nil, err
	}
	for _, step := range []func(context.Context, *figures, *pipeline) error{t.first, t.small, t.many} {
		if err := step(ctx, f, r); err != nil {
			return nil, err
		}
	}
	rss, err := peakRSS("self")
	if err != nil {
		return nil, err
	}
	f.set("rss", rss)
	if err := t.restart(ctx, f, n); err != nil {
		return nil, err
	}
	return f, t.connections(f, n)
}

// measureFew measures connections only.
func measureFew(ctx context.Context, t task) (*figures, error) {
	n, err := newNetwork()
	if err != nil {
		return nil, err
	}
	defer n.close()
	r, err := newPipeline(n)
	if err != nil {
		return nil, err
	}
	r.feed(t.Services)
	r.tracker.Synced()
	if _, err := r.apply(ctx); err != nil {
		return nil, err
	}
	f := newFigures()
	return f, t.connections(f, n)
}

// first measures the first program and the memory it takes.
func (t task) first(ctx context.Context, f *figures, r *pipeline) error {
	t.logf("first program")
	heap := heapInUse()
	wall, cpu := r.feed(t.Services)
	f.seconds("feed.wall", wall)
	f.seconds("feed.cpu", cpu)
	runtime.GC() // the objects are no part of what follows
	kernel, err := t.kernelMemory()
	if err != nil {
		return err
	}
	m := start()
	r.tracker.Synced()
	if _, err := r.apply(ctx); err != nil {
		return fmt.Errorf("first program: %w", err)
	}
	f.usage("first", m)
	after, err := t.kernelMemory()
	if err != nil {
		return err
	}
	f.set("kernel", after-kernel)
	f.set("heap", (heapInUse()-heap)/float64(t.Services*perService))
	runtime.KeepAlive(r)
	return nil
}

// small measures the change of one Service at a time.
func (t task) small(ctx context.Context, f *figures, r *pipeline) error {
	t.logf("changes")
	for _, c := range changes() {
		var took []time.Duration
		for round := range t.pick(changeRounds, 20) {
			i := serviceOfRound(round, t.Services)
			to := c.a
			if round%2 == 1 {
				to = c.b
			}
			s := newSlice(i, to)
			began := time.Now()
			r.tracker.SetSlice(s)
			changed, err := r.apply(ctx)
			if err != nil {
				return fmt.Errorf("change one Service: %w", err)
			}
			if changed {
				took = append(took, time.Since(began))
			}
		}
		f.set(c.metric+".p50", quantile(took, 0.5))
		f.set(c.metric+".p99", quantile(took, 0.99))
	}
	return r.restore(ctx, t.Services)
}

// restore gives every Service its first endpoints.
func (r *pipeline) restore(ctx context.Context, services int) error {
	for i := range services {
		r.tracker.SetSlice(newSlice(i, numbers(perService)))
	}
	if _, err := r.apply(ctx); err != nil {
		return fmt.Errorf("restore all Services: %w", err)
	}
	return nil
}

// many measures the change of many Services at once: from the first call of the tracker
// to the commit.
func (t task) many(ctx context.Context, f *figures, r *pipeline) error {
	if t.Services < manyServices {
		f.note("With fewer than %d Services all of them change at once.", manyServices)
	}
	all := numbers(perService)
	var took []time.Duration
	for round := range t.pick(manyRounds, 2) {
		var parts []*discoveryv1.EndpointSlice
		for i := range min(manyServices, t.Services) {
			parts = append(parts, newSlice(i, all[:perService-1+round%2]))
		}
		began := time.Now()
		for _, s := range parts {
			r.tracker.SetSlice(s)
		}
		if _, err := r.apply(ctx); err != nil {
			return fmt.Errorf("change many Services: %w", err)
		}
		took = append(took, time.Since(began))
	}
	f.set("many", quantile(took, 0.5))
	return nil
}

// restart measures a second proxy that finds the table of the first.
func (t task) restart(ctx context.Context, f *figures, n *network) error {
	t.logf("restart")
	r, err := newPipeline(n)
	if err != nil {
		return err
	}
	r.feed(t.Services)
	runtime.GC()
	m := start()
	r.tracker.Synced()
	changed, err := r.apply(ctx)
	if err != nil {
		return fmt.Errorf("restart: %w", err)
	}
	f.usage("restart", m)
	if changed {
		return errNotEmpty
	}
	return nil
}
