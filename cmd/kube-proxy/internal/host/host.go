// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package host reads and prepares the node, apart from the objects of a mode: system
// settings, addresses, listeners and other service proxies, and the transport by which
// proxies of one node find each other. It changes system settings only.
package host

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"kubeproxy/common/health"
	"kubeproxy/common/lease"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
)

// Preparation is what the preparation of a node needs of a running proxy.
type Preparation struct {
	Config   func() *config.Config // in force
	Requests <-chan struct{}       // receives a value when system settings in it have changed
	Mode     mode.Descriptor
	Tracker  *track.Tracker
	Health   *health.Monitor
}

// LeaseHolder returns what asks which proxy programs the node, see lease.QueryHolder.
func LeaseHolder(proxyName string) func(context.Context) (lease.Identity, error) {
	transport, _ := LeaseTransport(proxyName)
	return func(ctx context.Context) (lease.Identity, error) {
		if transport == nil {
			return lease.Identity{}, mode.ErrNoSystem
		}
		return lease.QueryHolder(ctx, transport)
	}
}

// hostPollInterval is how often the addresses and listeners of the node are read.
const hostPollInterval = 10 * time.Second

// Watch reads the node's addresses and listeners into t: once, then in group until ctx ends.
func Watch(ctx context.Context, group *errgroup.Group, t *track.Tracker, log klog.Logger) {
	w := newHostWatch()
	poll := func() {
		h, err := w.poll()
		if err != nil { // keep the last known values
			log.V(2).Info("The node's addresses and programs are not known", "err", err)
			return
		}
		t.SetHost(h)
	}
	poll()
	group.Go(func() error { return reconcile.Every(ctx, hostPollInterval, poll) })
}

// ReadOnce reads the node's addresses and listeners into t, which has the Node's otherwise.
func ReadOnce(t *track.Tracker) {
	if h, err := newHostWatch().poll(); err == nil {
		t.SetHost(h)
	}
}

// hostWatch reads addresses and listening sockets of the node.
type hostWatch struct {
	addrs   func() ([]netip.Prefix, error)
	sockets func() ([]track.Socket, error)
	polls   int
	seen    map[track.Socket]*socketSeen
}

func newHostWatch() *hostWatch {
	return &hostWatch{addrs: interfacePrefixes, sockets: listeningSockets, seen: map[track.Socket]*socketSeen{}}
}

// socketSeen counts the polls that saw a socket, and holds the number of the last one.
type socketSeen struct{ polls, lastPoll int }

// A listener that restarts keeps its port for maxMissedPolls polls. A UDP socket may
// belong to a short-lived client, so it counts only when minPolls polls saw it.
const maxMissedPolls, minPolls = 6, 2

// poll returns the present addresses and listeners.
func (w *hostWatch) poll() (track.Host, error) {
	addrs, err := w.addrs()
	if err != nil {
		return track.Host{}, err
	}
	sockets, err := w.sockets()
	if err != nil {
		return track.Host{}, err
	}
	w.polls++
	for _, s := range sockets {
		if s.Addr.Addr().IsLoopback() {
			continue
		}
		x := w.seen[s]
		if x == nil {
			x = &socketSeen{}
			w.seen[s] = x
		}
		if x.lastPoll != w.polls { // several sockets may share a port
			x.polls, x.lastPoll = x.polls+1, w.polls
		}
	}
	h := track.Host{Addrs: addrs}
	for s, x := range w.seen {
		if w.polls-x.lastPoll > maxMissedPolls {
			delete(w.seen, s)
			continue
		}
		if s.Protocol != service.UDP || x.polls >= minPolls || x.polls == w.polls {
			h.Listening = append(h.Listening, s)
		}
	}
	slices.SortFunc(h.Addrs, netip.Prefix.Compare)
	slices.SortFunc(h.Listening, func(a, b track.Socket) int {
		if c := a.Addr.Compare(b.Addr); c != 0 {
			return c
		}
		return int(a.Protocol) - int(b.Protocol)
	})
	return h, nil
}

// ipvsDevice is the dummy interface of kube-proxy in mode ipvs. It holds addresses of
// Services, and none of the node. See
// https://kubernetes.io/docs/reference/networking/virtual-ips/
const ipvsDevice = "kube-ipvs0"

// InterfaceAddrs lists the addresses of the node.
func InterfaceAddrs() ([]netip.Addr, error) {
	all, err := interfacePrefixes()
	var addrs []netip.Addr
	for _, p := range all {
		addrs = append(addrs, p.Addr())
	}
	return addrs, err
}

// interfacePrefixes lists the addresses of the node with the lengths of their networks.
func interfacePrefixes() ([]netip.Prefix, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var found []netip.Prefix
	for _, i := range all {
		addrs, err := i.Addrs()
		if i.Name == ipvsDevice || err != nil { // the interface may have disappeared
			continue
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && !p.Addr().IsLoopback() {
				found = append(found, p)
			}
		}
	}
	return found, nil
}
