// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/platform/linux/iptables"
)

const (
	chainServices = 5000  // that are programmed and changed in mode iptables
	pathServices  = 10000 // that connections pass
	// wholeLimit is how long the known layout may take to load.
	wholeLimit = 2 * time.Minute
	// pieceSize is the number of Services in each piece of the known layout, if it does
	// not load as a whole.
	pieceSize = 100
)

// variants are the implementations of iptables.
var variants = []string{"legacy", "nft"}

// commands creates a folder in which iptables is the variant of t, with a lock of its
// own, so that other users of iptables do not delay it.
func (t task) commands() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "bench-iptables-"); err != nil {
		return "", fmt.Errorf("make temporary directory: %w", err)
	}
	for _, suffix := range []string{"", "-restore", "-save"} {
		program, err := exec.LookPath("iptables-" + t.Variant + suffix)
		if err != nil {
			return dir, err
		}
		if err := os.Symlink(program, filepath.Join(dir, "iptables"+suffix)); err != nil {
			return dir, err
		}
	}
	return dir, os.Setenv("XTABLES_LOCKFILE", filepath.Join(dir, "lock"))
}

// chains measures one layout of chains: how it is loaded and how a Service is changed in
// it.
type chains interface {
	load(ctx context.Context, t task, f *figures) error
	// change gives Service i the endpoints of the given numbers.
	change(ctx context.Context, i int, numbers []int) error
}

// withChains runs measure with a layout of t in a new network.
func (t task) withChains(measure func(*network, chains) error) error {
	n, err := newNetwork()
	if err != nil {
		return err
	}
	defer n.close()
	dir, err := t.commands()
	defer os.RemoveAll(dir)
	if err != nil {
		return err
	}
	if t.Role == roleKnown || t.Role == roleKnownPaths {
		return measure(n, &upstreamChains{network: n, dir: dir})
	}
	r := &pipeline{tracker: track.New(track.Options{
		NodeName: ownNode, NodePorts: service.AnyAddress(),
		Pods: service.LocalPods{Prefixes: []netip.Prefix{netip.MustParsePrefix(clusterCIDR)}},
	}), do: n.node.Do}
	err = n.node.Do(func() (err error) {
		r.backend, err = iptables.New(service.IPv4, iptables.Options{MasqueradeBit: masqueradeBy, DropInvalid: true, Dir: dir})
		return err
	})
	if err != nil {
		return err
	}
	return measure(n, &ownChains{pipeline: r})
}

// measureChains measures the first program and changes of one Service.
func measureChains(ctx context.Context, t task) (*figures, error) {
	f := newFigures()
	return f, t.withChains(func(_ *network, c chains) error {
		t.logf("iptables-%s: first program", t.Variant)
		if err := c.load(ctx, t, f); err != nil {
			return fmt.Errorf("first program: %w", err)
		}
		t.logf("iptables-%s: changes", t.Variant)
		return t.changes(ctx, f, c)
	})
}

// changes replaces one endpoint of one Service at a time, back and forth.
func (t task) changes(ctx context.Context, f *figures, c chains) error {
	var took []time.Duration
	var spent time.Duration
	to := changes()[0]
	rounds := t.pick(20, 2)
	for round := range rounds {
		numbers := to.a
		if round%2 == 1 {
			numbers = to.b
		}
		m := start()
		if err := c.change(ctx, serviceOfRound(round, t.Services), numbers); err != nil {
			return fmt.Errorf("change one Service: %w", err)
		}
		wall, cpu := m.stop()
		took, spent = append(took, wall), spent+cpu
	}
	f.set("change.p50", quantile(took, 0.5))
	f.seconds("change.cpu", spent/time.Duration(rounds))
	return nil
}

// measurePaths measures connections through many Services.
func measurePaths(ctx context.Context, t task) (*figures, error) {
	f := newFigures()
	return f, t.withChains(func(n *network, c chains) error {
		if err := c.load(ctx, t, newFigures()); err != nil {
			return fmt.Errorf("first program: %w", err)
		}
		return t.connections(f, n)
	})
}

// ownChains is our mode iptables.
type ownChains struct{ *pipeline }

func (c *ownChains) load(ctx context.Context, t task, f *figures) error {
	c.feed(t.Services)
	m := start()
	c.tracker.Synced()
	if _, err := c.apply(ctx); err != nil {
		return err
	}
	f.usage("first", m)
	return nil
}

func (c *ownChains) change(ctx context.Context, i int, numbers []int) error {
	c.tracker.SetSlice(newSlice(i, numbers))
	changed, err := c.apply(ctx)
	if err == nil && !changed {
		err = errors.New("nothing was changed")
	}
	return err
}

// measureWhole loads the known layout in one piece, up to wholeLimit.
func measureWhole(ctx context.Context, t task) (*figures, error) {
	t.Role = roleKnown
	f := newFigures()
	return f, t.withChains(func(_ *network, c chains) error {
		limit := wholeLimit
		if t.Quick {
			limit = time.Second
		}
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		t.logf("iptables-%s: the known layout in one piece, for %s at most", t.Variant, limit)
		m := start()
		err := c.(*upstreamChains).restore(ctx, upstreamWhole(t.Services))
		if err == nil {
			f.usage("first", m)
			return nil
		}
		_, cpu := m.stop()
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			f.note("The known layout was not loaded in one piece after %s and %.0f s of CPU.", limit, cpu.Seconds())
			return nil
		}
		return err
	})
}
