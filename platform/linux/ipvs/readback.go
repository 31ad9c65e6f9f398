// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"bufio"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipset"
	"kubeproxy/platform/linux/ipvs/companion"
)

// ReadBack returns what the kernel holds, and what it would hold for want, in the text and
// order of Render. Destinations that drain are left out, because they get no connections.
func (b *Backend) ReadBack(ctx context.Context, want *service.Snapshot) (held, wanted string, err error) {
	view, err := b.view(ctx, want)
	if err != nil {
		return "", "", err
	}
	s, err := b.driver.Read(ctx)
	if err != nil {
		return "", "", fmt.Errorf("list what IPVS has: %w", err)
	}
	would := NewDocument(b.family, view, b.options)
	have := Document{Family: would.Family, Device: Device, family: b.family, lacksDevice: !s.device}
	for _, r := range s.routes {
		have.Addresses = append(have.Addresses, Address{r.addr, r.source})
	}
	slices.SortFunc(have.Addresses, func(x, y Address) int { return x.Addr.Compare(y.Addr) })
	if have.Servers, err = b.readServers(ctx, s, would.Servers); err != nil {
		return "", "", err
	}
	have.Document, would.Document, err = b.rules.ReadBack(ctx, view, b.serverElements(view, s))
	return have.text(), would.text(), err
}

// serverElements returns the elements of the sets that depend on virtual servers. The
// set of these has those of others, too.
func (b *Backend) serverElements(view *service.Snapshot, s *state) companion.Servers {
	var all companion.Servers
	at := newLocalNode(view, b.family)
	seen := map[key]bool{}
	add := func(k key) {
		if !seen[k] {
			seen[k] = true
			all.Served = append(all.Served, ipset.Member{Entry: k.entry()})
		}
	}
	for p := range view.Ports(b.family) {
		for _, w := range b.options.servers(p, at) {
			if len(w.endpoints) > 0 {
				add(w.key)
			}
		}
	}
	for k, l := range s.servers {
		if !l.owned() || b.options.excludes(k.addr) {
			add(k)
		}
	}
	for _, a := range ownAddrs(view.Node, b.family) {
		all.Addrs = append(all.Addrs, ipset.Member{Entry: ipset.Entry{Addr: a}})
	}
	return all
}

// readServers returns our virtual servers, those that are wanted first and in their order.
func (b *Backend) readServers(ctx context.Context, s *state, wanted []VirtualServer) ([]VirtualServer, error) {
	var all []VirtualServer
	seen := map[key]bool{}
	add := func(k key, of string) error {
		l := s.servers[k]
		if l == nil || seen[k] {
			return nil
		}
		seen[k] = true
		dests := l.dests
		if !l.destsKnown {
			var err error
			if dests, err = b.driver.Dests(ctx, k); err != nil {
				return fmt.Errorf("list the endpoints of virtual server %s: %w", k, err)
			}
		}
		all = append(all, observedVirtualServer(k, l, of, dests))
		return nil
	}
	for _, w := range wanted {
		if err := add(w.key(), w.Service); err != nil {
			return nil, err
		}
	}
	for _, k := range sortedKeys(s.servers) {
		if !s.servers[k].owned() {
			continue
		}
		if err := add(k, "of no Service"); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func observedVirtualServer(k key, l *observedServer, of string, dests []dest) VirtualServer {
	o := l.server.normalized()
	v := VirtualServer{
		Service: of, Protocol: k.proto.String(), Address: netip.AddrPortFrom(k.addr, k.port),
		Scheduler: o.scheduler, Flags: flagWords(o), Persistent: o.timeout,
	}
	if !l.owned() {
		v.Service += ", made by another program"
	}
	for _, d := range dests {
		switch {
		case d.wrongMode:
			v.remarks = append(v.remarks, fmt.Sprintf("# %s is not masqueraded", d.addr))
		case d.weight > 0:
			v.Destinations = append(v.Destinations, d.addr)
		}
	}
	return v
}

func (s VirtualServer) key() key {
	k := key{addr: s.Address.Addr(), port: s.Address.Port()}
	for _, p := range []service.Protocol{service.TCP, service.UDP, service.SCTP} {
		if p.String() == s.Protocol {
			k.proto = p
		}
	}
	return k
}

func (d Document) text() string {
	var b strings.Builder
	w := bufio.NewWriter(&b)
	d.writeText(w)
	_ = w.Flush() // into memory
	return b.String()
}
