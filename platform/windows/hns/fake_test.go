// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"kubeproxy/common/service"
)

// fake is an HNS that checks existence, use and consistency as strictly as the real one.
// It counts calls.
type fake struct {
	version      Version
	networks     []Network
	endpoints    map[string]Endpoint
	balancers    map[string]LoadBalancer
	next         int
	down         bool
	unattached   map[string]bool // endpoints without a switch port
	heldPorts    map[Key]bool    // ports that a program of the node listens on
	portBlocks   int             // available blocks of dynamic ports, 0 for any number
	portsUnknown bool            // the system does not report whether ports are left
	// refuse, if not nil, may fail a call before it has an effect. after may fail one
	// that had its effect.
	refuse func(op string) error
	after  func(op string) error

	calls    map[string]int
	silent   bool     // done stays empty
	done     []string // what was changed, as a plan prints it
	warnings []string // requests that real HNS accepts and that break Services
}

func newFake(v Version, networks ...Network) *fake {
	return &fake{version: v, networks: networks, endpoints: map[string]Endpoint{}, balancers: map[string]LoadBalancer{}, heldPorts: map[Key]bool{}, calls: map[string]int{}}
}

func codeError(op string, code uint32) error { return &Error{Op: op, Code: code} }

func (k *fake) id(kind string) string {
	k.next++
	return fmt.Sprintf("%s-%06d", kind, k.next)
}

// begin counts a call and may fail it.
func (k *fake) begin(op string) error {
	k.calls[op]++
	if k.down {
		return codeError(op, 0x6ba)
	}
	if k.refuse != nil {
		return k.refuse(op)
	}
	return nil
}

func (k *fake) end(op string) error {
	if k.after != nil {
		return k.after(op)
	}
	return nil
}

// log records what was changed.
func (k *fake) log(text func() string) {
	if !k.silent {
		k.done = append(k.done, text())
	}
}

// writes counts the calls that change something.
func (k *fake) writes() int {
	n := 0
	for op, times := range k.calls {
		if op[:4] != "list" {
			n += times
		}
	}
	return n
}

func (k *fake) List(_ context.Context, what ObjectKinds) (Listing, error) {
	for w, name := range map[ObjectKinds]string{Networks: "list networks", Endpoints: "list endpoints", LoadBalancers: "list load balancers"} {
		if what&w == 0 {
			continue
		}
		if err := k.begin(name); err != nil {
			return Listing{}, err
		}
	}
	l := Listing{Version: k.version, Networks: slices.Clone(k.networks)}
	if what&Endpoints != 0 {
		for _, id := range slices.Sorted(maps.Keys(k.endpoints)) {
			l.Endpoints = append(l.Endpoints, k.endpoints[id])
		}
	}
	if what&LoadBalancers != 0 {
		for _, id := range slices.Sorted(maps.Keys(k.balancers)) {
			l.LoadBalancers = append(l.LoadBalancers, k.balancers[id])
		}
	}
	return l, nil
}

func (k *fake) network(id string) *Network {
	for i := range k.networks {
		if k.networks[i].ID == id {
			return &k.networks[i]
		}
	}
	return nil
}

func (k *fake) CreateEndpoint(_ context.Context, e Endpoint) (Endpoint, error) {
	const op = "create endpoint"
	if err := k.begin(op); err != nil {
		return Endpoint{}, err
	}
	n := k.network(e.Network)
	switch {
	case n == nil:
		return Endpoint{}, codeError(op, 0x803b0001)
	case e.Remote && len(e.Addrs) == 0:
		return Endpoint{}, codeError(op, 0x80070057)
	case e.Remote && n.Kind == Overlay && (e.MAC == "" || !e.Provider.IsValid()):
		return Endpoint{}, codeError(op, 0x803b000d)
	}
	if len(e.Addrs) == 0 {
		e.Addrs = []netip.Addr{k.freeAddr(n)}
	}
	for _, a := range e.Addrs {
		switch {
		case k.hasAddr(n.ID, a, e.Remote) && e.Remote:
			return Endpoint{}, codeError(op, 0x80071392)
		case k.hasAddr(n.ID, a, e.Remote), !e.Remote && slices.Contains(n.Gateways, a):
			return Endpoint{}, codeError(op, 0x803b002f)
		case !e.Remote && !n.contains(a):
			return Endpoint{}, codeError(op, 0x803b001e)
		}
	}
	e.ID = k.id("endpoint")
	line := "+ endpoint " + e.describe()
	if e.Name == sourceVIPName {
		line = "+ endpoint " + e.Name
	}
	k.done = append(k.done, line)
	if e.MAC == "" {
		e.MAC = fmt.Sprintf("00-15-5d-00-%02x-%02x", k.next>>8&0xff, k.next&0xff)
	}
	k.endpoints[e.ID] = e
	return e, k.end(op)
}

func (k *fake) freeAddr(n *Network) netip.Addr {
	a := n.Subnets[0].Masked().Addr().Next().Next()
	for k.hasAddr(n.ID, a, false) {
		a = a.Next()
	}
	return a
}

func (k *fake) hasAddr(network string, a netip.Addr, remote bool) bool {
	for _, e := range k.endpoints {
		if e.Network == network && e.Remote == remote && e.HasAddr(a) {
			return true
		}
	}
	return false
}

func (k *fake) HasEndpoint(_ context.Context, id string) (bool, error) {
	const op = "find endpoint"
	if err := k.begin(op); err != nil {
		return false, err
	}
	_, ok := k.endpoints[id]
	return ok, k.end(op)
}

func (k *fake) DeleteEndpoint(_ context.Context, id string) error {
	const op = "delete endpoint"
	if err := k.begin(op); err != nil {
		return err
	}
	e, ok := k.endpoints[id]
	if !ok {
		return codeError(op, 0x803b0002)
	}
	for _, lb := range k.balancers {
		if slices.Contains(lb.Endpoints, id) {
			k.warnings = append(k.warnings, fmt.Sprintf("endpoint %s deleted while load balancer %s has it", id, lb.ID))
		}
	}
	k.done = append(k.done, "- endpoint "+e.describe())
	delete(k.endpoints, id)
	return k.end(op)
}

// check validates a load balancer that is to have the given ID.
func (k *fake) check(op string, lb LoadBalancer) error {
	network := ""
	for _, id := range lb.Endpoints {
		e, ok := k.endpoints[id]
		switch {
		case !ok:
			return codeError(op, 0x803b0002)
		case network != "" && network != e.Network:
			return codeError(op, 0x80070057)
		case k.unattached[id]:
			return codeError(op, 0x803b0007)
		}
		network = e.Network
	}
	f := k.version.Features()
	v6 := lb.Family == service.IPv6
	switch {
	case len(lb.Endpoints) == 0, lb.TargetPort == 0, lb.Port == 0,
		lb.DSR && !f.DSR, v6 && !f.DualStack, lb.Distribution == DistributionSourceIP && !f.Affinity,
		!slices.IsSorted(lb.Endpoints), len(slices.Compact(slices.Clone(lb.Endpoints))) != len(lb.Endpoints):
		return codeError(op, 0x80070057)
	case lb.VIP.IsValid() && lb.VIP.Is6() != v6, lb.SourceVIP.IsValid() && lb.SourceVIP.Is6() != v6:
		return codeError(op, 0x803b001e)
	case k.heldPorts[lb.Key]:
		return codeError(op, 0x803b0013)
	}
	for _, other := range k.balancers {
		if other.ID != lb.ID && (other.Key == lb.Key || slices.Contains(other.ExtraKeys, lb.Key)) {
			return codeError(op, 0x803b0013)
		}
	}
	return nil
}

func (k *fake) CreateLoadBalancer(_ context.Context, lb LoadBalancer) (LoadBalancer, error) {
	const op = "create load balancer"
	if err := k.begin(op); err != nil {
		return LoadBalancer{}, err
	}
	lb.ID = ""
	if err := k.check(op, lb); err != nil {
		return LoadBalancer{}, err
	}
	if k.portBlocks > 0 && !lb.DSR && k.usedBlocks(lb.Key) >= k.portBlocks {
		return LoadBalancer{}, codeError(op, 0x803b0013)
	}
	lb.ID = k.id("balancer")
	k.log(func() string { return k.balancerText("+ loadbalancer ", &lb) })
	k.balancers[lb.ID] = lb
	return lb, k.end(op)
}

// usedBlocks counts the blocks of dynamic ports that load balancers hold.
func (k *fake) usedBlocks(like Key) int {
	n := 0
	for _, lb := range k.balancers {
		if !lb.DSR && lb.Family == like.Family && lb.Protocol == like.Protocol {
			n++
		}
	}
	return n
}

func (k *fake) PortsLeft(_ context.Context, like Key) (bool, error) {
	if k.portsUnknown {
		return false, errors.ErrUnsupported
	}
	return k.portBlocks == 0 || k.usedBlocks(like) < k.portBlocks, nil
}

func (k *fake) UpdateLoadBalancer(_ context.Context, lb LoadBalancer) (LoadBalancer, error) {
	const op = "update load balancer"
	if err := k.begin(op); err != nil {
		return LoadBalancer{}, err
	}
	have, ok := k.balancers[lb.ID]
	switch {
	case !k.version.atLeast(15, 4):
		return LoadBalancer{}, codeError(op, notImplemented)
	case !ok:
		return LoadBalancer{}, codeError(op, 0x80070490)
	}
	if err := k.check(op, lb); err != nil {
		return LoadBalancer{}, err
	}
	if !k.version.atLeast(15, 5) {
		return have, nil
	}
	k.log(func() string {
		return fmt.Sprintf("~ loadbalancer %s %s %s", lb.Key, lb.describe(), k.pass(lb.Family).formatDiff(have.Endpoints, lb.Endpoints))
	})
	k.balancers[lb.ID] = lb
	return lb, k.end(op)
}

func (k *fake) DeleteLoadBalancer(_ context.Context, lb LoadBalancer) error {
	const op = "delete load balancer"
	id := lb.ID
	if err := k.begin(op); err != nil {
		return err
	}
	if _, ok := k.balancers[id]; !ok {
		return codeError(op, 0x80070490)
	}
	k.done = append(k.done, "- loadbalancer "+k.balancers[id].Key.String())
	delete(k.balancers, id)
	return k.end(op)
}

// memoryStore is a Store in memory.
type memoryStore struct {
	document []byte
	err      error
	saves    int
}

func (m *memoryStore) Load() ([]byte, error) { return m.document, m.err }

func (m *memoryStore) Save(b []byte) error {
	if m.err != nil {
		return m.err
	}
	m.document = b
	m.saves++
	return nil
}
