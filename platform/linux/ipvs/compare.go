// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipset"
)

// errForeign means that a foreign virtual server exists where a Service needs one.
var errForeign = errors.New("another program has a virtual server there")

// compareAll fills p with the change from the kernel state to p.next. Differences that
// do not come from changes since h are drift.
func (p *plan) compareAll(ctx context.Context, h *installed) error {
	b := p.backend
	start := time.Now()
	defer func() { b.poller.polled(start) }()
	b.installed = nil // until p has been applied
	b.lookAtMarks(ctx)
	if b.prepared {
		for _, s := range p.settings {
			p.alteredSettings = append(p.alteredSettings, "altered: setting "+s)
		}
	}
	s, err := b.driver.Read(ctx)
	var oneTimeCost time.Duration
	if err == nil {
		oneTimeCost, err = b.completeOwned(ctx, s)
	}
	if err != nil {
		return fmt.Errorf("list what IPVS has: %w", err)
	}
	b.updateOwned(s)
	start = start.Add(oneTimeCost + s.oneTimeCost) // the next Read takes less time
	b.poller.requested.Store(false)
	p.next.readAt, p.next.localNode = b.now(), newLocalNode(p.next.view, b.family)
	if h != nil {
		before := &plan{backend: b, drainingDests: p.drainingDests.clone(), next: &installed{view: h.view, localNode: h.localNode}}
		before.compare(s)
		p.knownToRules = map[service.Address]bool{}
		for port := range h.view.Ports(b.family) {
			p.markKnown(port, h.localNode)
		}
		p.unmarkFailed(h)
		p.drift = before.describeDrift(h.failedPorts)
		p.previousAddrs = h.addrRefs
	}
	p.compare(s)
	return nil
}

// markKnown records that installed rules cover the servers of port, maybe nil, see planServer.
func (p *plan) markKnown(port *service.Port, at localNode) {
	if port == nil {
		return
	}
	for _, w := range p.backend.options.servers(port, at) {
		if !w.refused {
			p.knownToRules[w.key] = true
		}
	}
}

// compare plans the change from s to p.next.
func (p *plan) compare(s *state) {
	b, view := p.backend, p.next.view
	if !s.device {
		p.setup = []op{{verb: addDevice}}
	}
	p.compareSets(s)
	p.next.addrRefs = map[netip.Addr]int{}
	routed := map[netip.Addr]netip.Addr{}
	for _, r := range s.routes {
		routed[r.addr] = r.source
	}
	seen := map[service.Address]bool{}
	hasRoute := func(a netip.Addr) bool {
		_, found := routed[a]
		return found
	}
	for port := range view.Ports(b.family) {
		p.comparePort(port, s, hasRoute, seen)
		countAddrs(p.next.addrRefs, port, view.Node, 1)
	}
	p.compareRoutes(routed)
	maps.DeleteFunc(p.drainingDests, func(k service.Address, _ map[netip.AddrPort]time.Time) bool { return !seen[k] })
	p.removeLeftovers(s, seen)
}

// compareSets plans the changes of two sets. The set of virtual servers must contain all
// of them, including foreign ones, because chains reject what is not in it. The set of
// node addresses must contain those that exist after the change.
func (p *plan) compareSets(s *state) {
	if !s.hasSets {
		p.setup = append(p.setup, op{verb: addSets})
	}
	own := ownAddrs(p.next.view.Node, p.backend.family)
	for _, a := range sortedAddrs(s.addrSet) {
		if !slices.Contains(own, a) {
			p.setup = append(p.setup, op{verb: delAddrFromSet, route: localRoute{addr: a}})
		}
	}
	for _, a := range own {
		if !s.addrSet[a] {
			p.addrSetOps = append(p.addrSetOps, op{verb: addAddrToSet, route: localRoute{addr: a}})
		}
	}
	for _, k := range sortedKeys(s.servers) {
		if !s.serverSet[k] {
			p.setup = append(p.setup, op{verb: addServerToSet, key: k})
		}
	}
	for _, k := range sortedKeys(s.serverSet) {
		if s.servers[k] == nil {
			p.setup = append(p.setup, op{verb: delServerFromSet, key: k})
		}
	}
}

// comparePort plans the change from s to the virtual servers of port, and adds them to
// seen. hasRoute reports whether an address has a route.
func (p *plan) comparePort(port *service.Port, s *state, hasRoute func(netip.Addr) bool, seen map[service.Address]bool) {
	b, u := p.backend, unit{port: port}
	for _, w := range b.options.servers(port, p.next.localNode) {
		_, owned := b.owned[w.key]
		p.compareServer(&u, s.servers[w.key], w, hasRoute(w.key.Addr) && owned)
		seen[w.key] = true
		if owned {
			b.owned[w.key] = true
		}
	}
	p.add(u)
}

// compareRoutes plans a route with the right source for each address.
func (p *plan) compareRoutes(routed map[netip.Addr]netip.Addr) {
	source := nodeView{node: p.next.view.Node}.source(p.backend.family)
	for _, a := range sortedAddrs(p.next.addrRefs) {
		if from, found := routed[a]; !found || from != source {
			p.addRoutes = append(p.addRoutes, op{verb: addRoute, route: localRoute{a, source}})
		}
	}
	for _, a := range sortedAddrs(routed) {
		if p.next.addrRefs[a] == 0 && (p.previousAddrs[a] > 0 || !p.next.view.Incomplete) {
			p.deleteRoutes = append(p.deleteRoutes, op{verb: delRoute, route: localRoute{addr: a}})
		}
	}
}

// compareServer plans the change from l, nil if it does not exist, to w. owned means that
// the node has w's address for Services only and that we made the server: then l is ours,
// even if it was changed. A virtual server of kube-proxy is adopted with its connections.
func (p *plan) compareServer(u *unit, l *observedServer, w desiredServer, owned bool) {
	k := w.key
	foreign := l != nil && !l.owned()
	switch {
	case foreign && p.backend.options.excludes(k.Addr), foreign && !owned && !l.upstream:
		if len(w.endpoints) > 0 {
			u.err = errors.Join(u.err, fmt.Errorf("%s: %w", nameOf(k), errForeign))
		}
		return
	case l == nil:
		delete(p.drainingDests, k)
		p.planServer(u, desiredServer{}, w, p.knownToRules[k])
		return
	case l.server.normalized() != w.server.normalized():
		u.beforeRules = append(u.beforeRules, op{verb: setServer, key: k, server: w.server})
	}
	stay := p.compareDests(u, l, w)
	if len(w.endpoints) == 0 && stay == 0 {
		// Deleting the server deletes its destinations.
		u.beforeRules = slices.DeleteFunc(u.beforeRules, func(o op) bool { return o.key == k })
		u.afterRules = slices.DeleteFunc(u.afterRules, func(o op) bool { return o.key == k })
		u.deleteServer(w)
		delete(p.drainingDests, k)
		if p.drainedServers == nil {
			p.drainedServers = map[service.Address]bool{}
		}
		p.drainedServers[k] = !slices.ContainsFunc(l.dests, func(x dest) bool { return x.weight > 0 })
	}
}

// compareDests plans the change from l's destinations to w's, and returns how many others stay.
func (p *plan) compareDests(u *unit, l *observedServer, w desiredServer) (stay int) {
	k, now := w.key, p.backend.now()
	held := map[netip.AddrPort]dest{}
	for _, x := range l.dests {
		held[x.addr] = x
	}
	m := destChanges{preservesClientIP: w.preservesClientIP, emptied: len(w.endpoints) == 0, refused: w.refused}
	for _, e := range w.endpoints {
		x, found := held[e.Addr]
		delete(held, e.Addr)
		p.drainingDests.remove(k, e.Addr)
		set := op{verb: setDest, key: k, dest: dest{addr: e.Addr, weight: 1}}
		switch {
		case !found:
			set.verb = addDest
			m.add = append(m.add, set)
		case x.weight == 0:
			m.add = append(m.add, set)
		case x.weight != 1 || x.wrongMode:
			u.beforeRules = append(u.beforeRules, set)
		}
		m.keepsDest = m.keepsDest || found && x.weight > 0
	}
	p.drainingDests.retain(k, l.dests)
	for _, x := range l.dests {
		if _, extraneous := held[x.addr]; !extraneous {
			continue
		}
		switch {
		case connectionless(k):
			m.del = append(m.del, p.removeDest(k, x))
			continue
		case x.weight > 0:
			m.del = append(m.del, p.removeDest(k, x))
		default:
			p.drainingDests.add(k, x.addr, now)
		}
		if x.weight == 0 && p.drainingDests.finished(k, x, now) {
			u.beforeRules = append(u.beforeRules, op{verb: delDest, key: k, dest: x})
			p.drainingDests.remove(k, x.addr)
			continue
		}
		stay++
	}
	// After a failed sync, the rules may admit clients to a server without destinations.
	m.knownToRules = p.knownToRules[k] || len(m.del) > 0
	u.schedule(m)
	return stay
}

// removeLeftovers deletes virtual servers that an earlier process left, if that is
// allowed, and those that Services of this process no longer have.
func (p *plan) removeLeftovers(s *state, seen map[service.Address]bool) {
	var u unit
	for _, k := range sortedKeys(s.servers) {
		stays := p.next.view.Incomplete || p.backend.options.excludes(k.Addr)
		if seen[k] || !s.servers[k].owned() || stays && !p.backend.owned[k] {
			continue
		}
		u.beforeRules = append(u.beforeRules, op{verb: delServer, key: k})
		p.removed = append(p.removed, &service.Port{
			Name: service.PortName{Protocol: k.Protocol}, Family: p.backend.family,
			Frontends: []service.Frontend{{Kind: service.ExternalIP, Addr: k.Addr, Port: k.Port}},
		})
	}
	p.add(u)
}

// describeDrift describes the foreign changes that make p necessary. Drained
// destinations are not drift, and neither is what an earlier sync could not do.
func (p *plan) describeDrift(d failedPorts) []string {
	p.units = d.excludeFrom(p.units)
	var r reconcile.DriftReport
	for _, o := range p.ops() {
		if o.verb == delDest && o.dest.weight == 0 || o.verb == delServer && p.drainedServers[o.key] || p.causedByOthers(o) {
			continue
		}
		r.Add(func() string { return o.driftText() })
	}
	return r.Lines()
}

// causedByOthers reports whether another process may have made o necessary.
func (p *plan) causedByOthers(o op) bool {
	_, owned := p.backend.owned[o.key]
	return o.verb == delServerFromSet || o.verb == addServerToSet && !owned
}

func (u *unit) portError(err error) error {
	if u.port == nil {
		return err
	}
	return &reconcile.PortError{Family: u.port.Family, Name: u.port.Name, Err: err}
}

// addressAt returns the address of a virtual server.
func addressAt(a netip.Addr, port uint16, p service.Protocol) service.Address {
	return service.AddressOf(p, netip.AddrPortFrom(a, port))
}

// nameOf names a virtual server.
func nameOf(k service.Address) string {
	return fmt.Sprintf("%s %s", netip.AddrPortFrom(k.Addr, k.Port), k.Protocol)
}

// server is a virtual server without its destinations. Equal values need no change.
type server struct {
	scheduler string
	flags     uint32
	timeout   uint32 // of persistence, in seconds
}

// Flags of a virtual server (kernel: include/uapi/linux/ip_vs.h).
const (
	flagPersistent = 1 << 0
	flagHashed     = 1 << 1 // set by the kernel
	flagSched1     = 1 << 3 // the meaning depends on the scheduler:
	flagSched2     = 1 << 4 // fall back to another server; use ports, too

	// The kernel keeps bits that it does not define (kernel: net/netfilter/ipvs/ip_vs_ctl.c,
	// ip_vs_add_service). These identify our virtual servers, even after a restart.
	flagOwned     = 0x6b700000
	flagOwnedMask = 0xffff0000
)

func (s server) owned() bool { return s.flags&flagOwnedMask == flagOwned }

// normalized returns s without what the kernel adds.
func (s server) normalized() server {
	s.flags &^= flagHashed
	if s.flags&flagPersistent == 0 {
		s.timeout = 0
	}
	return s
}

// schedulerFlags are the flags for schedulers that select by client address. With them,
// the scheduler includes ports where it can, and selects again if the selected endpoint
// accepts no new connections, for example because it drains.
var schedulerFlags = map[string]uint32{"mh": flagSched1 | flagSched2, "sh": flagSched1}

// dest is a destination of a virtual server.
type dest struct {
	addr      netip.AddrPort
	weight    uint16
	conns     uint32 // number of connections, if it was read
	wrongMode bool   // its forwarding method is not masquerading
}

// desiredServer is a virtual server that a Port needs.
type desiredServer struct {
	key service.Address
	server
	endpoints         []service.Endpoint // sorted; empty if the virtual server may be deleted
	preservesClientIP bool               // see preservesClientIP
	refused           bool               // the rules reject, as the Port has no endpoints
}

// servers returns the desired virtual servers of p's frontends on node at.
func (o Options) servers(p *service.Port, at localNode) []desiredServer {
	var all []desiredServer
	for i := range p.Frontends {
		f := &p.Frontends[i]
		for _, a := range at.addresses(p, f) {
			all = append(all, desiredServer{a, o.server(p), serverEndpoints(p, f.Kind), preservesClientIP(p, f.Kind), !p.HasEndpoints()})
		}
	}
	return all
}

func (o Options) server(p *service.Port) server {
	s := server{scheduler: o.scheduler(), flags: flagOwned | schedulerFlags[o.scheduler()]}
	if p.Affinity > 0 {
		s.flags |= flagPersistent
		s.timeout = uint32(p.Affinity / time.Second)
	}
	return s
}

func ownAddrs(node *service.Node, f service.Family) []netip.Addr {
	var own []netip.Addr
	for _, a := range node.Addrs {
		if service.FamilyOf(a) == f {
			own = append(own, a)
		}
	}
	return own
}

// virtualAddrs returns the addresses of p that the node has for Services only.
func virtualAddrs(p *service.Port, node *service.Node) []netip.Addr {
	var all []netip.Addr
	for _, f := range p.Frontends {
		if f.Kind != service.NodePort && !slices.Contains(node.Addrs, f.Addr) && !slices.Contains(all, f.Addr) {
			all = append(all, f.Addr)
		}
	}
	return all
}

// entryOf returns a as an element of a set.
func entryOf(a service.Address) ipset.Entry {
	return ipset.Entry{Addr: a.Addr, Protocol: a.Protocol, Port: a.Port}
}

// fillDests adds the destinations that /proc/net/ip_vs lists to servers, by one read where netlink
// needs a request per server. If other network namespaces have virtual servers, a kernel without
// https://git.kernel.org/torvalds/c/74455a5b4326 may leave some out: it counts those of all
// namespaces while it writes, and of this one where it continues (kernel:
// net/netfilter/ipvs/ip_vs_ctl.c, ip_vs_info_seq_next and ip_vs_info_array). Their destsKnown stays
// false.
func fillDests(servers map[service.Address]*observedServer, text io.Reader) error {
	lines := bufio.NewScanner(text)
	var now *observedServer
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		switch {
		case len(words) < 2:
		case words[0] == "->" && words[1] == "RemoteAddress:Port":
		case words[0] == "->":
			if now == nil || len(words) < 6 {
				continue
			}
			x, err := parseDest(words)
			if err != nil {
				return fmt.Errorf("%q: %w", lines.Text(), err)
			}
			now.dests = append(now.dests, x)
		default:
			now = nil
			if k, ok := parseKey(words); ok {
				now = servers[k]
			}
			if now != nil {
				now.destsKnown, now.dests = true, nil
			}
		}
	}
	for _, l := range servers {
		slices.SortFunc(l.dests, func(a, b dest) int { return a.addr.Compare(b.addr) })
		l.dests = slices.CompactFunc(l.dests, func(a, b dest) bool { return a.addr == b.addr })
	}
	return lines.Err()
}

func parseKey(words []string) (service.Address, bool) {
	protocols := map[string]service.Protocol{"TCP": service.TCP, "UDP": service.UDP, "SCTP": service.SCTP}
	p, found := protocols[words[0]]
	a, err := parseHex(words[1])
	return addressAt(a.Addr(), a.Port(), p), found && err == nil
}

// parseDest parses "-> 0AF40102:1F90 Masq 1 0 0".
func parseDest(words []string) (dest, error) {
	a, err := parseHex(words[1])
	if err != nil {
		return dest{}, err
	}
	var numbers [3]uint64
	for i := range numbers {
		if numbers[i], err = strconv.ParseUint(words[3+i], 10, 32); err != nil {
			return dest{}, err
		}
	}
	return dest{a, uint16(numbers[0]), uint32(numbers[1] + numbers[2]), words[2] != "Masq"}, nil
}

// parseHex parses an address and port such as 0AF40102:1F90 or
// [fd00:0010:0000:0000:0000:0000:0000:0001]:1F90.
func parseHex(s string) (netip.AddrPort, error) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return netip.AddrPort{}, fmt.Errorf("%q has no port", s)
	}
	port, err := strconv.ParseUint(s[i+1:], 16, 16)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if v6, found := strings.CutPrefix(s[:i], "["); found {
		a, err := netip.ParseAddr(strings.TrimSuffix(v6, "]"))
		return netip.AddrPortFrom(a, uint16(port)), err
	}
	n, err := strconv.ParseUint(s[:i], 16, 32)
	a := netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
	return netip.AddrPortFrom(a, uint16(port)), err
}
