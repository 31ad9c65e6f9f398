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
	"strings"

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
	unattached   map[string]bool          // endpoints without a switch port
	heldPorts    map[service.Address]bool // ports that a program of the node listens on
	portBlocks   int                      // available blocks of dynamic ports, 0 for any number
	portsUnknown bool                     // the system does not report whether ports are left
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
	return &fake{version: v, networks: networks, endpoints: map[string]Endpoint{}, balancers: map[string]LoadBalancer{}, heldPorts: map[service.Address]bool{}, calls: map[string]int{}}
}

func codeError(op string, code uint32) error { return &Error{Op: op, Code: code} }

func (fa *fake) id(kind string) string {
	fa.next++
	return fmt.Sprintf("%s-%06d", kind, fa.next)
}

// begin counts a call and may fail it.
func (fa *fake) begin(op string) error {
	fa.calls[op]++
	if fa.down {
		return codeError(op, 0x6ba)
	}
	if fa.refuse != nil {
		return fa.refuse(op)
	}
	return nil
}

func (fa *fake) end(op string) error {
	if fa.after != nil {
		return fa.after(op)
	}
	return nil
}

// log records what was changed.
func (fa *fake) log(text func() string) {
	if !fa.silent {
		fa.done = append(fa.done, text())
	}
}

// writes counts the calls that change something.
func (fa *fake) writes() int {
	n := 0
	for op, times := range fa.calls {
		if op[:4] != "list" {
			n += times
		}
	}
	return n
}

func (fa *fake) List(_ context.Context, what ObjectKinds) (Listing, error) {
	for w, name := range map[ObjectKinds]string{Networks: "list networks", Endpoints: "list endpoints", LoadBalancers: "list load balancers"} {
		if what&w == 0 {
			continue
		}
		if err := fa.begin(name); err != nil {
			return Listing{}, err
		}
	}
	l := Listing{Version: fa.version, Networks: slices.Clone(fa.networks)}
	if what&Endpoints != 0 {
		for _, id := range slices.Sorted(maps.Keys(fa.endpoints)) {
			l.Endpoints = append(l.Endpoints, fa.endpoints[id])
		}
	}
	if what&LoadBalancers != 0 {
		for _, id := range slices.Sorted(maps.Keys(fa.balancers)) {
			l.LoadBalancers = append(l.LoadBalancers, fa.balancers[id])
		}
	}
	return l, nil
}

func (fa *fake) network(id string) *Network {
	for i := range fa.networks {
		if fa.networks[i].ID == id {
			return &fa.networks[i]
		}
	}
	return nil
}

func (fa *fake) CreateEndpoint(_ context.Context, e Endpoint) (Endpoint, error) {
	const op = "create endpoint"
	if err := fa.begin(op); err != nil {
		return Endpoint{}, err
	}
	n := fa.network(e.Network)
	switch {
	case n == nil:
		return Endpoint{}, codeError(op, 0x803b0001)
	case e.Remote && len(e.Addrs) == 0:
		return Endpoint{}, codeError(op, 0x80070057)
	case e.Remote && n.Kind == Overlay && (e.MAC == "" || !e.Provider.IsValid()):
		return Endpoint{}, codeError(op, 0x803b000d)
	}
	if len(e.Addrs) == 0 {
		e.Addrs = []netip.Addr{fa.freeAddr(n)}
	}
	for _, a := range e.Addrs {
		switch {
		case fa.hasAddr(n.ID, a, e.Remote) && e.Remote:
			return Endpoint{}, codeError(op, 0x80071392)
		case fa.hasAddr(n.ID, a, e.Remote), !e.Remote && slices.Contains(n.Gateways, a):
			return Endpoint{}, codeError(op, 0x803b002f)
		case !e.Remote && !n.contains(a):
			return Endpoint{}, codeError(op, 0x803b001e)
		}
	}
	e.ID = fa.id("endpoint")
	line := "+ endpoint " + e.describe()
	if e.Name == sourceVIPName {
		line = "+ endpoint " + e.Name
	}
	fa.done = append(fa.done, line)
	if e.MAC == "" {
		e.MAC = fmt.Sprintf("00-15-5d-00-%02x-%02x", fa.next>>8&0xff, fa.next&0xff)
	}
	fa.endpoints[e.ID] = e
	return e, fa.end(op)
}

func (fa *fake) freeAddr(n *Network) netip.Addr {
	a := n.Subnets[0].Masked().Addr().Next().Next()
	for fa.hasAddr(n.ID, a, false) {
		a = a.Next()
	}
	return a
}

func (fa *fake) hasAddr(network string, a netip.Addr, remote bool) bool {
	for _, e := range fa.endpoints {
		if e.Network == network && e.Remote == remote && e.HasAddr(a) {
			return true
		}
	}
	return false
}

func (fa *fake) HasEndpoint(_ context.Context, id string) (bool, error) {
	const op = "find endpoint"
	if err := fa.begin(op); err != nil {
		return false, err
	}
	_, ok := fa.endpoints[id]
	return ok, fa.end(op)
}

func (fa *fake) DeleteEndpoint(_ context.Context, id string) error {
	const op = "delete endpoint"
	if err := fa.begin(op); err != nil {
		return err
	}
	e, ok := fa.endpoints[id]
	if !ok {
		return codeError(op, 0x803b0002)
	}
	for _, lb := range fa.balancers {
		if slices.Contains(lb.Endpoints, id) {
			fa.warnings = append(fa.warnings, fmt.Sprintf("endpoint %s deleted while load balancer %s has it", id, lb.ID))
		}
	}
	fa.done = append(fa.done, "- endpoint "+e.describe())
	delete(fa.endpoints, id)
	return fa.end(op)
}

// check validates a load balancer that is to have the given ID.
func (fa *fake) check(op string, lb LoadBalancer) error {
	network := ""
	for _, id := range lb.Endpoints {
		e, ok := fa.endpoints[id]
		switch {
		case !ok:
			return codeError(op, 0x803b0002)
		case network != "" && network != e.Network:
			return codeError(op, 0x80070057)
		case fa.unattached[id]:
			return codeError(op, 0x803b0007)
		}
		network = e.Network
	}
	f := fa.version.Features()
	v6 := lb.Family == service.IPv6
	switch {
	case len(lb.Endpoints) == 0, lb.TargetPort == 0, lb.Port == 0,
		lb.DSR && !f.DSR, v6 && !f.DualStack, lb.Distribution == DistributionSourceIP && !f.Affinity,
		!slices.IsSorted(lb.Endpoints), len(slices.Compact(slices.Clone(lb.Endpoints))) != len(lb.Endpoints):
		return codeError(op, 0x80070057)
	case lb.Addr.IsValid() && lb.Addr.Is6() != v6, lb.SourceVIP.IsValid() && lb.SourceVIP.Is6() != v6:
		return codeError(op, 0x803b001e)
	case fa.heldPorts[lb.Address]:
		return codeError(op, 0x803b0013)
	}
	for _, other := range fa.balancers {
		if other.ID != lb.ID && (other.Address == lb.Address || slices.Contains(other.ExtraKeys, lb.Address)) {
			return codeError(op, 0x803b0013)
		}
	}
	return nil
}

func (fa *fake) CreateLoadBalancer(_ context.Context, lb LoadBalancer) (LoadBalancer, error) {
	const op = "create load balancer"
	if err := fa.begin(op); err != nil {
		return LoadBalancer{}, err
	}
	lb.ID = ""
	if err := fa.check(op, lb); err != nil {
		return LoadBalancer{}, err
	}
	if fa.portBlocks > 0 && !lb.DSR && fa.usedBlocks(lb.Address) >= fa.portBlocks {
		return LoadBalancer{}, codeError(op, 0x803b0013)
	}
	lb.ID = fa.id("balancer")
	fa.log(func() string { return fa.balancerText("+ loadbalancer ", &lb) })
	fa.balancers[lb.ID] = lb
	return lb, fa.end(op)
}

// usedBlocks counts the blocks of dynamic ports that load balancers hold.
func (fa *fake) usedBlocks(like service.Address) int {
	n := 0
	for _, lb := range fa.balancers {
		if !lb.DSR && lb.Family == like.Family && lb.Protocol == like.Protocol {
			n++
		}
	}
	return n
}

func (fa *fake) PortsLeft(_ context.Context, like service.Address) (bool, error) {
	if fa.portsUnknown {
		return false, errors.ErrUnsupported
	}
	return fa.portBlocks == 0 || fa.usedBlocks(like) < fa.portBlocks, nil
}

func (fa *fake) UpdateLoadBalancer(_ context.Context, lb LoadBalancer) (LoadBalancer, error) {
	const op = "update load balancer"
	if err := fa.begin(op); err != nil {
		return LoadBalancer{}, err
	}
	have, ok := fa.balancers[lb.ID]
	switch {
	case !fa.version.atLeast(15, 4):
		return LoadBalancer{}, codeError(op, notImplemented)
	case !ok:
		return LoadBalancer{}, codeError(op, 0x80070490)
	}
	if err := fa.check(op, lb); err != nil {
		return LoadBalancer{}, err
	}
	if !fa.version.atLeast(15, 5) {
		return have, nil
	}
	fa.log(func() string {
		return fmt.Sprintf("~ loadbalancer %s %s %s", lb.Address, lb.describe(), fa.pass(lb.Family).formatDiff(have.Endpoints, lb.Endpoints))
	})
	fa.balancers[lb.ID] = lb
	return lb, fa.end(op)
}

func (fa *fake) DeleteLoadBalancer(_ context.Context, lb LoadBalancer) error {
	const op = "delete load balancer"
	id := lb.ID
	if err := fa.begin(op); err != nil {
		return err
	}
	if _, ok := fa.balancers[id]; !ok {
		return codeError(op, 0x80070490)
	}
	fa.done = append(fa.done, "- loadbalancer "+fa.balancers[id].Address.String())
	delete(fa.balancers, id)
	return fa.end(op)
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

// writes reports whether r is to change what HNS holds.
func (r request) writes() bool {
	return !slices.Contains([]string{"", opList, opListEndpoints, opFindEndpoint}, r.operation)
}

// onWrites returns a Driver that leaves the writing calls of d to by, with the name of the
// call. If by does not do one, HNS says that it did.
func onWrites(d Driver, by func(op string, do func())) Driver {
	without := dryRun(Listing{}).(*intercepted)
	return intercept(d, func(ctx context.Context, r request, do func() (any, error)) (answer any, err error) {
		if !r.writes() {
			return do()
		}
		answer, err = without.by(ctx, r, nil)
		by(strings.ReplaceAll(r.operation, "_", " "), func() { answer, err = do() })
		return answer, err
	})
}

// onLists returns a Driver that calls before before each listing of d.
func onLists(d Driver, before func()) Driver {
	return intercept(d, func(_ context.Context, r request, do func() (any, error)) (any, error) {
		if _, lists := r.of.(ObjectKinds); lists {
			before()
		}
		return do()
	})
}

// altered returns a Driver whose answers other has altered.
func altered(d Driver, other func(r request, answer any) any) Driver {
	return intercept(d, func(_ context.Context, r request, do func() (any, error)) (any, error) {
		answer, err := do()
		return other(r, answer), err
	})
}
