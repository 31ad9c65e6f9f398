// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	library "github.com/moby/ipvs"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/platform/linux/ipvs"
)

const (
	virtualServices = 1000  // that are programmed beside the library
	changedServices = 10000 // among which one changes
	virtualRounds   = 400   // of changes of one kind
)

// measureIPVS measures everything about mode ipvs, each part in a process of its own, on
// the machine of this process.
func measureIPVS(ctx context.Context, t task) (*figures, error) {
	b := &bench{options: options{quick: t.Quick}, out: io.Discard}
	f := newFigures()
	few, many := task{Services: fewServices}, task{Services: t.pick(changedServices, 100)}
	turns, err := b.alternate(ctx, task{Services: t.pick(virtualServices, 50)}, roleLibrary, roleVirtual)
	if err != nil {
		return nil, err
	}
	for r, got := range turns {
		f.merge(string(r)+".", got)
	}
	for _, x := range []struct {
		prefix string
		role   role
		task   task
	}{
		{"few.", roleVirtualPaths, few}, {"few.nftables.", roleFew, few},
		{"many.", roleVirtualChanges, many}, {"many.nftables.", roleFew, many},
	} {
		x.task.Role = x.role
		got, err := b.child(ctx, x.task)
		if err != nil {
			return nil, err
		}
		f.merge(x.prefix, got)
	}
	return f, nil
}

// merge adds other figures under names that begin with prefix.
func (f *figures) merge(prefix string, other *figures) {
	for metric, v := range other.Values {
		f.set(prefix+metric, v)
	}
	f.Notes = append(f.Notes, other.Notes...)
}

// newVirtual returns a pipeline to the virtual servers of n's node. It compares the
// observed with the desired state once in a period, or in each round if period is 0.
func newVirtual(n *network, period time.Duration) (*pipeline, error) {
	r := &pipeline{tracker: track.New(track.Options{
		NodeName: ownNode, NodePorts: service.AnyAddress(),
		Pods: service.LocalPods{Prefixes: []netip.Prefix{netip.MustParsePrefix(clusterCIDR)}},
	}), do: n.node.Do}
	err := n.node.Do(func() (err error) {
		r.backend, err = ipvs.New(service.IPv4, ipvs.Options{MasqueradeBit: masqueradeBy, SyncPeriod: period})
		return err
	})
	return r, err
}

// withVirtual runs measure with t's Services in a new network, of which nothing is
// programmed yet.
func (t task) withVirtual(measure func(*network, *pipeline) error) error {
	n, err := newNetwork()
	if err != nil {
		return err
	}
	defer n.close()
	r, err := newVirtual(n, time.Hour)
	if err != nil {
		return err
	}
	r.feed(t.Services)
	r.tracker.Synced()
	return measure(n, r)
}

// measureVirtual measures the first program of a whole backend.
func measureVirtual(ctx context.Context, t task) (*figures, error) {
	f := newFigures()
	return f, t.withVirtual(func(n *network, r *pipeline) error {
		t.logf("first program")
		m := start()
		if _, err := r.apply(ctx); err != nil {
			return err
		}
		f.usage("first", m)
		return t.checkProgrammed(n)
	})
}

// measureLibrary creates the same virtual servers with the library.
func measureLibrary(_ context.Context, t task) (*figures, error) {
	f := newFigures()
	return f, t.withVirtual(func(n *network, _ *pipeline) error {
		t.logf("one by one")
		err := n.node.Do(func() error {
			h, err := library.New("")
			if err != nil {
				return err
			}
			defer h.Close()
			m := start()
			for i := range t.Services {
				if err := makeVirtual(h, i); err != nil {
					return err
				}
			}
			f.usage("first", m)
			return nil
		})
		return errors.Join(err, t.checkProgrammed(n))
	})
}

// virtualOf is Service i as a value of the library.
func virtualOf(i int) *library.Service {
	return &library.Service{
		Address: net.IP(clusterIP(i).AsSlice()), Port: servicePort, Protocol: unix.IPPROTO_TCP,
		AddressFamily: unix.AF_INET, SchedName: "rr", Netmask: 0xffffffff,
	}
}

func makeVirtual(h *library.Handle, i int) error {
	s := virtualOf(i)
	err := h.NewService(s)
	for j := range perService {
		d := &library.Destination{
			Address: net.IP(endpointIP(i, j).AsSlice()), Port: targetPort, Weight: 1, AddressFamily: unix.AF_INET,
		}
		err = errors.Join(err, h.NewDestination(s, d))
	}
	return err
}

// checkProgrammed requires every Service in n's node, and all endpoints of the last one.
func (t task) checkProgrammed(n *network) error {
	return n.node.Do(func() error {
		h, err := library.New("")
		if err != nil {
			return err
		}
		defer h.Close()
		all, err := h.GetServices()
		if err != nil {
			return fmt.Errorf("list virtual servers: %w", err)
		}
		dests, err := h.GetDestinations(virtualOf(t.Services - 1))
		if err != nil {
			return fmt.Errorf("list destinations: %w", err)
		}
		if len(all) != t.Services || len(dests) != perService {
			return fmt.Errorf("there are %d virtual servers, the last with %d destinations; want %d with %d each",
				len(all), len(dests), t.Services, perService)
		}
		return nil
	})
}
