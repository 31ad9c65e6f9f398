// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/iptables"
)

// directory has the listeners of a Backend, for goroutines other than that of the loop.
type directory struct {
	mu        sync.RWMutex
	listeners map[service.Address]user
}

// user is the Service port and policy of a listener.
type user struct {
	key
	target *target
}

func (d *directory) add(l service.Address, r user) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.listeners[l] = r
}

// remove removes k from l, unless another listener is there now.
func (d *directory) remove(l service.Address, k key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.listeners[l].key == k {
		delete(d.listeners, l)
	}
}

func (d *directory) find(l service.Address) (user, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	r, found := d.listeners[l]
	return r, found
}

// TraceWith reads the tables with d, and returns what they and the listeners do with the
// first packet of c. want is what should be in force. local reports whether an address
// belongs to the node. It may be called from any goroutine. d must not be the driver of
// b, which only the loop uses.
func (b *Backend) TraceWith(ctx context.Context, d iptables.Driver, want *service.Snapshot, c route.Conn, local func(netip.Addr) bool) (*explain.Walk, error) {
	return b.traceWith(ctx, iptables.NewWith(b.family, b.options.rules(), d), want, c, local)
}

// traceWith is TraceWith for what reads the tables.
func (b *Backend) traceWith(ctx context.Context, rules *iptables.Backend, want *service.Snapshot, c route.Conn, local func(netip.Addr) bool) (*explain.Walk, error) {
	redirected := b.redirected.Load()
	if redirected == nil {
		return &explain.Walk{Faults: []string{errNotProgrammed.Error()}}, nil
	}
	w, err := rules.Follow(ctx, iptables.Question{Want: redirected, Conn: c, Local: local})
	if err != nil {
		return nil, err
	}
	there, err := b.address.Has()
	if err != nil {
		return nil, fmt.Errorf("look for address %s: %w", b.addr(), err)
	}
	if !there {
		w.Faults = append(w.Faults, fmt.Sprintf("no interface has the address %s, where the listeners are", b.addr()))
	}
	b.resolveListeners(w, c)
	if c.Protocol == service.SCTP && route.Decide(want, c).Port != nil {
		w.ByDesign = onlyTCPAndUDP
	}
	return w, nil
}

// resolveListeners replaces each listener among the targets of w by the endpoints that it
// may choose.
func (b *Backend) resolveListeners(w *explain.Walk, c route.Conn) {
	if w.Action != route.Forward {
		return
	}
	listening := w.Targets
	w.Targets = map[netip.AddrPort]bool{}
	for to, masqueraded := range listening {
		if to.Addr() != b.addr() {
			w.Targets[to] = masqueraded
			continue
		}
		object := fmt.Sprintf("listener %s %s", to, c.Protocol)
		r, found := b.directory.find(service.AddressOf(c.Protocol, to))
		if !found {
			w.Faults = append(w.Faults, fmt.Sprintf("kube-proxy has no listener at %s, where rules lead", to))
			continue
		}
		w.Via = append(w.Via, to)
		endpoints, before := r.target.candidates(r.policy, c.From)
		w.Hops = append(w.Hops, explain.Hop{Object: object, Does: fmt.Sprintf("relay it for %s, policy %s: %s", r.name, r.policy, listed(endpoints))})
		if before.IsValid() {
			w.Remembered, endpoints = before, []netip.AddrPort{before}
			w.Hops = append(w.Hops, explain.Hop{Object: object, Does: fmt.Sprintf("the client had %s before", before)})
		}
		for _, e := range endpoints {
			w.Targets[e] = true // the relay opens a connection of its own
		}
	}
	if len(w.Targets) == 0 {
		w.Action, w.Targets = route.Reject, nil
	}
}

// listed says where connections go, on one line.
func listed(all []netip.AddrPort) string {
	if len(all) == 0 {
		return "it has no endpoint"
	}
	return explain.OneOf("endpoints", all)
}

// candidates returns the endpoints for policy, and the one that client had before, if
// session affinity leads there.
func (t *target) candidates(policy service.Policy, client netip.Addr) (all []netip.AddrPort, before netip.AddrPort) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := &t.lists[policy]
	if e, known := t.clients.peek(client, time.Now(), t.affinity); known && t.affinity > 0 && l.has(e) {
		before = e
	}
	return slices.Clone(l.endpoints), before
}
