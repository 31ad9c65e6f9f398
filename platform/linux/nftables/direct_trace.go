// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/packet"
)

// DirectPath is what the table of direct return does with the first packet of a connection.
type DirectPath struct {
	Hops []explain.Hop
	// Slots are how many slots of the table have the mark of a node, by mark.
	Slots map[uint32]int
	// Here are the endpoints to which this node translates it: as it comes in, or through the tunnel.
	Here   []netip.AddrPort
	Faults []string
}

// TraceDirect follows the first packet of c through the table of a Backend with Options.Table as DirectTableOf has it. name
// is the port of its destination. arriving is what it meets if another node sends it through the tunnel.
func (b *Backend) TraceDirect(ctx context.Context, want *DirectRules, name service.PortName, c route.Conn, local func(netip.Addr) bool) (coming, arriving DirectPath, err error) {
	t, err := b.driver.ReadChains(ctx)
	switch {
	case err != nil:
		return coming, arriving, fmt.Errorf("read table %s: %w", b.name(), err)
	case t == nil:
		coming.Faults = []string{fmt.Sprintf("there is no table %s", b.name())}
		return coming, arriving, nil
	case t.dormant:
		coming.Faults = []string{fmt.Sprintf("table %s has the flag dormant, so the kernel runs none of its chains", b.name())}
		return coming, arriving, nil
	}
	k := known{b, map[string]*chain{}, map[string]*set{}, map[string]*compiled{}}
	r := &observedRuleset{known: k, table: t, asked: map[string]*element{}}
	e := &expectedRuleset{known: k, elements: map[string]map[string]element{}}
	for _, s := range directSets {
		k.sets[s.name], e.elements[s.name] = s, map[string]element{}
	}
	for _, x := range want.Ports[name].elements() {
		e.elements[x.in.name][elementKey(x)] = x
	}
	for _, x := range want.chains(b.family) {
		k.chains[x.name] = x
	}
	for _, x := range want.chains(b.family) {
		r.rules(x.name) // also those that other packets meet
	}
	p := packet.New(localNode(local), c)
	p.In = packet.Link{Name: c.Interface}
	coming = directPath(r, b.family, *p)
	directPath(e, b.family, *p)
	if p.In.Name = want.Tunnel.Device; len(e.elements[serves.name]) > 0 {
		arriving = directPath(r, b.family, *p)
		directPath(e, b.family, *p)
	}
	for _, x := range e.met {
		r.checkElement(x)
	}
	const most = 3 // of slots
	if n := len(r.faults) - most; n > 1 {
		r.faults = append(r.faults[:most:most], fmt.Sprintf("and %d more such faults", n))
	}
	coming.Faults = r.faults
	return coming, arriving, r.err
}

// directPath follows p until it is translated or marked.
func directPath(r ruleset, f service.Family, p packet.Packet) DirectPath {
	t := &tracer{ruleset: r, family: f, out: &explain.Walk{}}
	d := DirectPath{Slots: map[uint32]int{}}
	found := t.run(&p, "prerouting")
	for _, x := range t.values {
		d.Slots[binary.NativeEndian.Uint32(x)]++
	}
	if found.Does == explain.Drops {
		t.end(found, "drop")
	} else if !p.Untracked {
		p.Seen = true
		d.Here = t.run(&p, "translate").Targets
	}
	d.Hops = t.out.Hops
	return d
}
