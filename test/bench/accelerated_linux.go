// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/platform/linux/socketlb"
)

// stage is a number of Services in networks that handle them in different ways. Each has
// its own node.
type stage struct {
	task
	name string
	// alone has socket acceleration and no rules. layered has it above the rules of mode
	// nftables. chains has the rules of mode iptables, and known another proxy.
	alone, layered, chains, known *network
	rules                         *pipeline // of layered
	layers                        map[*network]*layer
	close                         []func()
}

// layer is socket acceleration of one node.
type layer struct {
	node    *network
	options socketlb.Options
	backend *socketlb.Backend
}

// open opens the layer like a new process.
func (l *layer) open() error {
	return l.node.node.Do(func() error {
		l.backend = socketlb.New(service.IPv4, socketlb.NewDriver(service.IPv4, l.options), l.options)
		l.backend.SetResync(time.Hour)
		return nil
	})
}

// apply brings the layer up to date.
func (l *layer) apply(ctx context.Context, s *service.Snapshot) error {
	p, err := l.backend.Plan(ctx, s)
	if err != nil || p.Empty() {
		return err
	}
	o := p.Apply(ctx)
	if o.Err == nil && o.Degraded != "" {
		return errors.New(o.Degraded)
	}
	return o.Err
}

// clients is the cgroup of a container of a pod. Processes in it are taken by the layer.
func (l *layer) clients() string { return filepath.Join(l.options.Cgroup, "kubepods", "pod1", "c1") }

// plainCgroup is the name of the cgroup of which no layer takes processes.
const plainCgroup = "plain"

// mountPins mounts a BPF file system, in the mount namespace of this process.
func mountPins() (dir string, remove func(), err error) {
	if dir, err = os.MkdirTemp("", "bench-pins-"); err != nil {
		return "", nil, fmt.Errorf("make temporary directory: %w", err)
	}
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		os.Remove(dir)
		return "", nil, fmt.Errorf("mount a BPF file system: %w", err)
	}
	return dir, func() {
		_ = unix.Unmount(dir, unix.MNT_DETACH)
		os.Remove(dir)
	}, nil
}

// newStage makes the networks for t's Services. Nothing is programmed, except by another
// proxy.
func (t task) newStage(ctx context.Context, name, pins string) (*stage, error) {
	t.logf("networks")
	s := &stage{task: t, name: name, layers: map[*network]*layer{}}
	for _, n := range []**network{&s.alone, &s.layered, &s.chains} {
		if err := s.network(n); err != nil {
			return s, err
		}
	}
	var err error
	if s.rules, err = newPipeline(s.layered); err != nil {
		return s, err
	}
	s.rules.feed(t.Services)
	s.rules.tracker.Synced()
	for part, n := range map[string]*network{"alone": s.alone, "layered": s.layered} {
		l := &layer{node: n, options: socketlb.Options{Cgroup: filepath.Join(t.Cgroup, name+"-"+part), Pins: pins}}
		s.layers[n] = l
		if err := errors.Join(os.MkdirAll(l.clients(), 0o755), l.open()); err != nil {
			return s, err
		}
	}
	if t.Peer == "" || name != fewName {
		return s, nil
	}
	return s, errors.Join(s.network(&s.known), s.startKnown(ctx))
}

func (s *stage) network(to **network) error {
	n, err := newNetwork()
	if err != nil {
		return err
	}
	*to = n
	s.close = append(s.close, func() { _ = n.close() })
	return errors.Join(n.shortenConntrackTimeouts(), n.echo())
}

func (s *stage) end() {
	for i := len(s.close) - 1; i >= 0; i-- {
		s.close[i]()
	}
}

// startKnown starts another proxy, and waits until connections pass through it.
func (s *stage) startKnown(ctx context.Context) error {
	p := &peer{task: s.task, network: s.known}
	var err error
	if p.dir, err = os.MkdirTemp("", "bench-peer-"); err != nil {
		return fmt.Errorf("make temporary directory: %w", err)
	}
	s.close = append(s.close, func() { os.RemoveAll(p.dir) })
	if err := p.serve(ctx); err != nil {
		return err
	}
	running, err := p.start()
	if err != nil {
		return err
	}
	s.close = append(s.close, func() { _, _ = running.stop() })
	for now := range ticks(ctx, 50*time.Millisecond) {
		switch {
		case p.answers():
			return nil
		case running.ended():
			return fmt.Errorf("the peer has ended: %w", running.logTail())
		case now.Sub(running.began) > peerStart:
			return errSlow
		}
	}
	return ctx.Err()
}

// programChains programs mode iptables.
func (s *stage) programChains(ctx context.Context) error {
	s.Variant = "legacy"
	dir, err := s.commands()
	if dir != "" {
		s.close = append(s.close, func() { os.RemoveAll(dir) })
	}
	if err != nil {
		return err
	}
	var b reconcile.Backend
	err = s.chains.node.Do(func() (err error) {
		b, err = iptables.New(service.IPv4, iptables.Options{MasqueradeBit: masqueradeBy, DropInvalid: true, Dir: dir})
		return err
	})
	if err != nil {
		return err
	}
	_, err = (&pipeline{tracker: s.rules.tracker, backend: b, do: s.chains.node.Do}).apply(ctx)
	return err
}

// paths are the ways that connections are measured on. They lead to all Services in turn;
// the direct ones to as many other addresses.
func (s *stage) paths(bare *network) []target {
	plain := filepath.Join(s.Cgroup, plainCgroup)
	to := netip.AddrPortFrom(clusterIP(0), servicePort)
	services := func(i int) netip.Addr { return clusterIP(i * 7919 % s.Services) }
	direct := func(i int) netip.Addr { return endpointIP(i*7919%s.Services, perService+i%perService) }
	all := []target{
		{name: directName, from: bare, among: direct, cgroup: plain},
		{name: "alone", from: s.alone, among: services, cgroup: s.layers[s.alone].clients()},
		{name: "beside", from: s.layered, among: direct, cgroup: plain},
		{name: "layer", from: s.layered, among: services, cgroup: s.layers[s.layered].clients()},
		{name: "nftables", from: s.layered, among: services, cgroup: plain},
		{name: "iptables", from: s.chains, among: services, cgroup: plain},
	}
	if s.known != nil {
		all = append(all, target{name: "known", from: s.known, among: services, cgroup: plain})
	}
	for i := range all {
		x := &all[i]
		x.to = to
		if x.name == directName || x.name == "beside" {
			x.to = netip.AddrPortFrom(direct(0), targetPort)
		}
		x.name = s.name + "." + x.name
	}
	return all
}
