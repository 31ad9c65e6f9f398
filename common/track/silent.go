// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"kubeproxy/common/service"
)

// AnnotationSilent of a Service overrides Options.SilentEndpoints.
const AnnotationSilent = "kubeproxy.io/silent-endpoints"

// Silent is what becomes of ready endpoints that do not answer. Empty is SilentOff.
type Silent string

// The choices.
const (
	SilentOff     Silent = "off"     // they are not looked for
	SilentObserve Silent = "observe" // they are named, and stay in use
	SilentOn      Silent = "on"      // they get no new connections while others answer
)

// silents are the choices of a Service, by the number that is kept of it.
var silents = [...]Silent{"", SilentOff, SilentObserve, SilentOn}

// silentPolicy returns what holds for the endpoints of s.
func (t *Tracker) silentPolicy(s *serviceState) Silent {
	return cmp.Or(silents[s.choices%4], t.options.SilentEndpoints, SilentOff)
}

// SilentPolicy returns what becomes of the endpoints of a Service that do not answer.
func (t *Tracker) SilentPolicy(name types.NamespacedName) Silent {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.services[name]
	if s == nil || s.want == nil {
		return SilentOff
	}
	return t.silentPolicy(s)
}

// SetSilent sets all endpoints that do not answer, and since when. Services with SilentOn
// leave them out, those that are silent for longest first: at most
// half of the endpoints that a port would have, and none if it would have no others.
func (t *Tracker) SetSilent(all map[service.Address]time.Time) {
	t.change(func() bool {
		changed := map[service.Address]bool{}
		for a, since := range all {
			if old, known := t.silent[a]; !known || !old.Equal(since) {
				changed[a] = true
			}
		}
		for a := range t.silent {
			if _, still := all[a]; !still {
				changed[a] = true
			}
		}
		t.silent = maps.Clone(all)
		return len(changed) > 0 && t.markSilent(changed)
	})
}

// SilentUse is a Service port with an endpoint that does not answer.
type SilentUse struct {
	Endpoint service.Address
	Port     service.PortName
	LeftOut  bool // it gets no new connections of this port, or not all
}

// SilentUses returns the Service ports with endpoints that do not answer, if that is looked for.
func (t *Tracker) SilentUses() []SilentUse {
	t.mu.Lock()
	defer t.mu.Unlock()
	addrs, silent := map[netip.Addr]bool{}, map[service.Address]bool{}
	for a := range t.silent {
		addrs[a.Addr], silent[a] = true, true
	}
	var all []SilentUse
	seen := map[*serviceState]bool{}
	for _, s := range t.slices {
		if len(silent) > 0 && !seen[s.owner] && t.silentPolicy(s.owner) != SilentOff && s.lists(addrs, silent) {
			seen[s.owner] = true
			all = t.addSilent(all, s.owner)
		}
	}
	return all
}

func (t *Tracker) addSilent(all []SilentUse, s *serviceState) []SilentUse {
	index := indexOf(s)
	c := chooser{zone: t.nodeInfo.zone, silent: t.silent, policy: t.silentPolicy(s)}
	for _, p := range s.want {
		c.gather(index.of(p))
		c.choose(p)
		for _, e := range c.candidates {
			a := service.AddressOf(p.Name.Protocol, e.addr)
			if _, silent := t.silent[a]; !silent {
				continue
			}
			cluster, local := e.state.has(c.wantCluster), c.wantLocal != 0 && e.state.has(c.wantLocal)
			if cluster || local {
				all = append(all, SilentUse{a, p.Name, cluster && !service.Lists(c.cluster, e.addr) || local && !service.Lists(c.local, e.addr)})
			}
		}
	}
	return all
}

// markSilent marks the Services that leave out one of changed, by all slices: that is rare.
func (t *Tracker) markSilent(changed map[service.Address]bool) bool {
	addrs := map[netip.Addr]bool{}
	for a := range changed {
		addrs[a.Addr] = true
	}
	marked := false
	for _, s := range t.slices {
		if t.silentPolicy(s.owner) != SilentOn || !s.lists(addrs, changed) {
			continue
		}
		t.markDirty(s.owner)
		marked = true
	}
	return marked
}

// lists reports whether s has an endpoint in all, whose addresses are in addrs.
func (s *slice) lists(addrs map[netip.Addr]bool, all map[service.Address]bool) bool {
	for i := range s.endpoints {
		a := s.addr(i)
		if addrs[a] && slices.ContainsFunc(s.ports, func(p targetPort) bool { return all[p.at(a)] }) {
			return true
		}
	}
	return false
}

// at returns the Address of an endpoint with this port.
func (p targetPort) at(a netip.Addr) service.Address {
	return service.AddressOf(p.proto, netip.AddrPortFrom(a, p.port))
}

// setSilentDefault changes the operator's choice, and reports whether that may matter.
func (t *Tracker) setSilentDefault(to Silent) bool {
	if t.options.SilentEndpoints == to {
		return false
	}
	t.options.SilentEndpoints = to
	marked := false
	for _, s := range t.services {
		if s.choices%4 == 0 && len(t.silent) > 0 {
			t.markDirty(s)
			marked = true
		}
	}
	return marked
}

// maxPeers and maxSameNode bound what Peers and SameNode return.
const maxPeers, maxSameNode = 16, 512

// Peers returns other endpoints of a Service port that should answer, some of them if there
// are many. It returns none if a is no endpoint of the port, or is not to be looked at.
// Alike means that a policy which lets this node connect to them lets it connect to a: those
// for pods often admit the own node.
func (t *Tracker) Peers(a service.Address, name service.PortName) (peers []service.Address, alike bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.services[types.NamespacedName{Namespace: name.Namespace, Name: name.Name}]
	if s == nil || t.silentPolicy(s) == SilentOff || name.Protocol != a.Protocol {
		return nil, false
	}
	i := slices.IndexFunc(s.want, func(p *service.Port) bool { return p.Family == a.Family && p.Name == name })
	if i < 0 {
		return nil, false
	}
	c := chooser{}
	index := indexOf(s)
	c.gather(index.of(s.want[i]))
	own := slices.IndexFunc(c.candidates, func(e candidate) bool { return e.addr == netip.AddrPortFrom(a.Addr, a.Port) })
	if own < 0 {
		return nil, false
	}
	here := c.candidates[own].state.has(local)
	c.candidates = slices.DeleteFunc(slices.Delete(c.candidates, own, own+1), func(e candidate) bool { return !e.state.has(ready) && !e.state.has(serving) })
	elsewhere := func(e candidate) bool { return !e.state.has(local) }
	if alike = here || slices.ContainsFunc(c.candidates, elsewhere); alike && !here {
		c.candidates = slices.DeleteFunc(c.candidates, func(e candidate) bool { return !elsewhere(e) })
	}
	n := len(c.candidates)
	if n == 0 {
		return nil, false
	}
	for i, first := 0, rand.N(n); i < min(n, maxPeers); i++ {
		e := c.candidates[(first+i*max(1, n/maxPeers))%n]
		peers = append(peers, service.AddressOf(a.Protocol, e.addr))
	}
	return peers, alike
}

// SameNode returns endpoints at the address of a and on its node, with a Service port that
// they serve: many of them, if there are too many.
func (t *Tracker) SameNode(a service.Address) map[service.Address]service.PortName {
	t.mu.Lock()
	defer t.mu.Unlock()
	node := t.nodeOf(a)
	all := map[service.Address]service.PortName{}
	here := make([]bool, len(t.interner.places))
	for i, p := range t.interner.places {
		here[i] = p.node == node && node != ""
	}
	for _, s := range t.slices {
		if len(all) >= maxSameNode {
			break
		}
		if t.silentPolicy(s.owner) != SilentOff {
			s.addPlaced(all, a.Addr, here)
		}
	}
	delete(all, a)
	return all
}

// nodeOf returns the node of an endpoint, as slices say.
func (t *Tracker) nodeOf(a service.Address) string {
	one, addr := map[service.Address]bool{a: true}, map[netip.Addr]bool{a.Addr: true}
	for _, s := range t.slices {
		if s.family != a.Family || !s.lists(addr, one) {
			continue
		}
		for i, e := range s.endpoints {
			if node := t.interner.places[e.place].node; s.addr(i) == a.Addr && node != "" {
				return node
			}
		}
	}
	return ""
}

// addPlaced adds the endpoints of s that are at an address or some places.
func (s *slice) addPlaced(all map[service.Address]service.PortName, at netip.Addr, here []bool) {
	for _, p := range s.owner.want {
		k := slices.IndexFunc(s.ports, func(t targetPort) bool { return t.name == p.Name.Port && t.proto == p.Name.Protocol })
		if k < 0 || p.Family != s.family {
			continue
		}
		for i, e := range s.endpoints {
			if (here[e.place] || s.addr(i) == at) && (e.state.has(ready) || e.state.has(serving)) {
				all[s.ports[k].at(s.addr(i))] = p.Name
			}
		}
	}
}

// leavesOut reports whether endpoints may be left out because they are silent.
func (c *chooser) leavesOut() bool { return c.policy == SilentOn && len(c.silent) > 0 }

// leaveOut removes silent endpoints from list, the endpoints of p. See SetSilent.
func (c *chooser) leaveOut(p *service.Port, list []service.Endpoint) []service.Endpoint {
	if !c.leavesOut() {
		return list
	}
	type quiet struct {
		since time.Time
		addr  netip.AddrPort
	}
	var all []quiet
	for _, e := range list {
		if since, silent := c.silent[service.AddressOf(p.Name.Protocol, e.Addr)]; silent {
			all = append(all, quiet{since, e.Addr})
		}
	}
	if len(all) == len(list) {
		return list
	}
	slices.SortFunc(all, func(a, b quiet) int { return cmp.Or(a.since.Compare(b.since), a.addr.Compare(b.addr)) })
	all = all[:min(len(all), len(list)/2)]
	slices.SortFunc(all, func(a, b quiet) int { return a.addr.Compare(b.addr) })
	return slices.DeleteFunc(list, func(e service.Endpoint) bool {
		_, found := slices.BinarySearchFunc(all, e.Addr, func(q quiet, a netip.AddrPort) int { return q.addr.Compare(a) })
		return found
	})
}

// silence says since when a candidate does not answer, as the end of a reason, else "".
func (c *chooser) silence(e candidate, used bool) string {
	since, silent := c.silent[service.AddressOf(c.protocol, e.addr)]
	if !silent || c.policy == SilentOff {
		return ""
	}
	text := fmt.Sprintf("has not answered since %s", since.UTC().Format(time.RFC3339))
	switch {
	case c.policy == SilentObserve && used:
		return ", but " + text + "; only observed"
	case used:
		return ", but " + text + "; not left out, because at most half are, and none if all are silent"
	}
	return text + "; left out"
}
