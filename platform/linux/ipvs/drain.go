// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// drainingDests are the destinations that drain, by virtual server, and since when.
type drainingDests map[service.Address]map[netip.AddrPort]time.Time

func (d drainingDests) clone() drainingDests {
	c := make(drainingDests, len(d))
	for k, at := range d {
		c[k] = maps.Clone(at)
	}
	return c
}

func (d drainingDests) has(k service.Address, a netip.AddrPort) bool {
	_, found := d[k][a]
	return found
}

// add records that a drains, from now on unless it already does.
func (d drainingDests) add(k service.Address, a netip.AddrPort, now time.Time) {
	if d[k] == nil {
		d[k] = map[netip.AddrPort]time.Time{}
	}
	if !d.has(k, a) {
		d[k][a] = now
	}
}

func (d drainingDests) remove(k service.Address, a netip.AddrPort) {
	if delete(d[k], a); len(d[k]) == 0 {
		delete(d, k)
	}
}

// retain removes the destinations of k that others deleted, so that held has them no more.
func (d drainingDests) retain(k service.Address, held []dest) {
	for a := range d[k] {
		if !slices.ContainsFunc(held, func(x dest) bool { return x.addr == a }) {
			d.remove(k, a)
		}
	}
}

// finished reports whether x has no connections or has reached DrainTimeout.
func (d drainingDests) finished(k service.Address, x dest, now time.Time) bool {
	return x.conns == 0 || now.Sub(d[k][x.addr]) >= DrainTimeout
}

// drainPollInterval is the interval between two checks of draining destinations.
const drainPollInterval = 5 * time.Second

// setDraining stores the draining destinations.
func (b *Backend) setDraining(d drainingDests) {
	b.drainingDests = d
	b.draining.Store(len(d) > 0)
}

// logDraining logs which draining p begins and which connections it cuts off. The first
// begin is logged at level 0, later ones at level 2.
func (p *plan) logDraining(ctx context.Context) {
	begun, conns := 0, uint32(0)
	for k, at := range p.drainingDests {
		for a := range at {
			if !p.backend.drainingDests.has(k, a) {
				begun++
			}
		}
	}
	for _, o := range p.ops() {
		if o.verb == delDest && !connectionless(o.key) {
			conns += o.dest.conns
		}
	}
	log := klog.FromContext(ctx)
	if begun > 0 {
		level := 2
		if !p.backend.drainLogged {
			level, p.backend.drainLogged = 0, true
		}
		log.V(level).Info("Endpoints that left keep their connections until these end", "destinations", begun, "atMost", DrainTimeout)
	}
	if conns > 0 {
		log.Info("Endpoints that left a while ago lost the connections that they still had", "connections", conns, "after", DrainTimeout)
	}
}

// serversGainingDests returns the virtual servers that get a new destination.
func (p *plan) serversGainingDests() map[service.Address]bool {
	all := map[service.Address]bool{}
	for _, o := range p.ops() {
		if o.verb == addDest {
			all[o.key] = true
		}
	}
	return all
}

// removeDrained plans to delete destinations that have drained, or did for DrainTimeout.
func (p *plan) removeDrained(ctx context.Context) error {
	b := p.backend
	now := b.now()
	if len(b.drainingDests) == 0 || now.Sub(b.lastDrainCheck) < drainPollInterval/2 {
		return nil
	}
	b.lastDrainCheck = now
	var u unit
	arriving := p.serversGainingDests()
	for _, k := range sortedKeys(b.drainingDests) {
		if len(p.drainingDests[k]) == 0 || p.recheck.keys[k] { // with its Service, or checked
			continue
		}
		held, err := b.driver.Dests(ctx, k)
		if err != nil {
			return err
		}
		p.drainingDests.retain(k, held)
		left := len(held)
		for _, x := range held {
			if b.drainingDests.has(k, x.addr) && p.drainingDests.has(k, x.addr) && p.drainingDests.finished(k, x, now) {
				u.beforeRules = append(u.beforeRules, op{verb: delDest, key: k, dest: x})
				p.drainingDests.remove(k, x.addr)
				left--
			}
		}
		if left == 0 && len(held) > 0 && !arriving[k] {
			u.afterRules = append(u.afterRules, op{verb: delServer, key: k})
		}
	}
	p.add(u)
	return nil
}

// IPVS forwards a connection while its virtual server and the route to the node exist.
// Without them it drops the packets or forgets the connection (expire_nodest_conn in
// docs.kernel.org/networking/ipvs-sysctl.html). So leftovers of an earlier process drain:
// they accept no new connections and are removed when they have none.

// ownedServers are the virtual servers of one owner.
type ownedServers struct {
	servers []service.Address
	// addrOps are the ops that remove the route or interface address of an address.
	addrOps map[netip.Addr]op
}

// ownedServers returns what in s is ours and may be removed.
func (o Options) ownedServers(s *state) ownedServers {
	e := ownedServers{servers: o.ownedKeys(s), addrOps: map[netip.Addr]op{}}
	for _, r := range s.routes {
		e.addrOps[r.addr] = op{verb: delRoute, route: r}
	}
	return e
}

// drainResult is what remains because of open connections.
type drainResult struct {
	servers int
	conns   uint64
	// cut are the virtual servers that were deleted in spite of their connections.
	cut []service.Address
}

func (r drainResult) String() string {
	if r.servers == 0 {
		return ""
	}
	return fmt.Sprintf("virtual servers: %d, open connections: %d", r.servers, r.conns)
}

// drainOwned sets the weight of all destinations of the owned servers to 0, and deletes servers
// without connections, all of them after DrainTimeout, and addresses that nothing needs any more.
func drainOwned(ctx context.Context, d Driver, of func(*state) ownedServers, elapsed time.Duration) (drainResult, error) {
	s, err := d.Read(ctx)
	if err != nil {
		return drainResult{}, err
	}
	var stop []op
	for _, k := range of(s).servers {
		for _, x := range s.servers[k].dests {
			if x.weight > 0 {
				stop = append(stop, op{verb: setDest, key: k, dest: dest{addr: x.addr}})
			}
		}
	}
	if len(stop) > 0 {
		if err := joinFailures(stop, d.Commit(ctx, stop)); err != nil {
			return drainResult{}, err
		}
		if s, err = d.Read(ctx); err != nil { // with all connections that began before
			return drainResult{}, err
		}
	}
	r, gone := of(s).split(s, elapsed >= DrainTimeout)
	return r, joinFailures(gone, d.Commit(ctx, gone))
}

// split separates what remains of o from what is removed. over removes everything.
func (o ownedServers) split(s *state, over bool) (drainResult, []op) {
	var r drainResult
	var servers, ops []op
	needed := map[netip.Addr]bool{}
	for _, k := range o.servers {
		n := s.servers[k].conns()
		if n > 0 && !over {
			r.servers++
			r.conns += n
			needed[k.Addr] = true
			continue
		}
		if n > 0 {
			r.cut = append(r.cut, k)
		}
		servers = append(servers, op{verb: delServer, key: k})
	}
	for _, a := range sortedAddrs(o.addrOps) {
		if !needed[a] {
			ops = append(ops, o.addrOps[a])
		}
	}
	return r, append(ops, servers...)
}

// conns returns the number of connections of o.
func (o *observedServer) conns() uint64 {
	var n uint64
	for _, x := range o.dests {
		n += uint64(x.conns)
	}
	return n
}

// Another process may change a virtual server of ours so that its flags no longer
// identify it. A foreign one may already exist where a Service needs one. Only a server
// that we made, or that was seen with our flags, counts as ours later.

// completeOwned adds our virtual servers that are missing in s, and returns how long that took. The
// kernel continues a dump at an index that counts the servers of both families (kernel:
// net/netfilter/ipvs/ip_vs_ctl.c, ip_vs_genl_dump_services), so it skips some if the other family
// deletes servers meanwhile.
func (b *Backend) completeOwned(ctx context.Context, s *state) (time.Duration, error) {
	start := time.Now()
	for k := range b.owned {
		if s.servers[k] != nil {
			continue
		}
		l, err := b.driver.Server(ctx, k)
		if err != nil {
			return 0, err
		}
		if l != nil {
			s.servers[k] = l
		}
	}
	return time.Since(start), nil
}

// updateOwned records which virtual servers in s are ours, or were and others changed them.
func (b *Backend) updateOwned(s *state) {
	if b.owned == nil {
		b.owned = map[service.Address]bool{}
	}
	maps.DeleteFunc(b.owned, func(k service.Address, _ bool) bool { return s.servers[k] == nil })
	b.recordOwned(s)
}

// recordOwned records which virtual servers in s are ours, and removes none.
func (b *Backend) recordOwned(s *state) {
	for k, l := range s.servers {
		if _, known := b.owned[k]; !known && l.owned() {
			b.owned[k] = false
		}
	}
}

// recordOp records that o succeeded.
func (b *Backend) recordOp(o op) {
	switch o.verb {
	case addServer, setServer:
		b.owned[o.key] = true
	case delServer:
		delete(b.owned, o.key)
	}
}

// The kernel may refuse to delete a virtual server. It then continues to serve, so its
// rules stay: without them, answers would not return through this node.

// currentRules returns the plan for the rules, and its snapshot. That is the snapshot of
// p, with the rules that undeleted virtual servers need.
func (a *applier) currentRules() (reconcile.Plan, *service.Snapshot, error) {
	p := a.plan
	if len(a.undeleted) == 0 {
		return p.rules, p.next.view, nil
	}
	view := p.viewWith(a.undeleted)
	rules, err := p.backend.rules.Plan(a.ctx, view)
	if err != nil {
		return nil, nil, fmt.Errorf("keep the rules of virtual servers that could not be deleted: %w", err)
	}
	return rules, view, nil
}

// viewWith returns the view of p with the frontends of undeleted, as installed rules have them.
func (p *plan) viewWith(undeleted map[service.Address]bool) *service.Snapshot {
	b, view := p.backend, p.next.view
	n := neededPorts{plan: p, undeleted: undeleted, found: map[service.Address]bool{}, wanted: map[service.Address]bool{}}
	for port := range view.Ports(b.family) {
		for _, at := range p.serverKeys(port) {
			n.wanted[at] = true
		}
	}
	var changes []service.Change
	if b.rulesView != nil {
		n.localNode = newLocalNode(b.rulesView, b.family)
		for old := range b.rulesView.Ports(b.family) {
			if c := (service.Change{Old: view.Port(b.family, old.Name), New: n.keep(old)}); c.New != nil {
				changes = append(changes, c)
			}
		}
	}
	view = view.With(view.Generation, view.Node, changes)
	if len(n.found) < len(undeleted) { // an earlier process left them, and their rules are unknown
		view.Incomplete = true
	}
	return view
}

// neededPorts finds the Ports that virtual servers need.
type neededPorts struct {
	plan      *plan
	undeleted map[service.Address]bool
	found     map[service.Address]bool // those of undeleted that a Port of the installed rules has
	wanted    map[service.Address]bool // what Ports of the next snapshot have
	localNode localNode                // of the installed rules
}

// keep returns the Port that replaces old's successor, nil if that needs no change. A
// Port without endpoints keeps its former ones.
func (n *neededPorts) keep(old *service.Port) *service.Port {
	next := n.plan.next.view.Port(old.Family, old.Name)
	served := false
	var left []service.Frontend // what only the virtual servers need
	for _, f := range old.Frontends {
		held, free := n.about(old, f)
		served = served || held
		if free && (held || f.Kind == service.ClusterIP) { // others are redirected to the latter
			left = append(left, f)
		}
	}
	if !served {
		return nil
	}
	kept := *old
	kept.Frontends = left
	switch {
	case next == nil:
		kept.HealthCheck = 0
		return &kept
	case next.HasEndpoints():
		kept = *next
	}
	kept.HealthCheck, kept.Frontends = next.HealthCheck, slices.Concat(next.Frontends, left)
	return &kept
}

// about reports whether a server of f could not be deleted, and whether no Port has it now.
func (n *neededPorts) about(old *service.Port, f service.Frontend) (held, free bool) {
	one := *old
	one.Frontends, free = []service.Frontend{f}, true
	for _, w := range n.plan.backend.options.servers(&one, n.localNode) {
		if n.undeleted[w.key] {
			held, n.found[w.key] = true, true
		}
		free = free && !n.wanted[w.key]
	}
	return held, free
}

// A Port may fail for a long time, for example if there is a foreign virtual server on
// its address. Each sync then reads the kernel state of this Port, and of nothing else.

// failedPorts are the Ports that a sync failed for, with the servers that it tried to change.
type failedPorts map[service.PortName][]service.Address

// maxFailedPorts limits them. Reading more servers one by one takes longer than a list.
const maxFailedPorts = 64

func (p *plan) findFailedPorts(errs []error) failedPorts {
	if len(errs) == 0 {
		return nil
	}
	d := failedPorts{}
	for _, e := range reconcile.PortErrors(errors.Join(errs...)) {
		d[e.Name] = nil
	}
	for _, u := range p.units {
		if u.port == nil {
			continue
		}
		if _, failed := d[u.port.Name]; !failed {
			continue
		}
		for _, o := range slices.Concat(u.beforeRules, u.afterRules) {
			d[u.port.Name] = append(d[u.port.Name], o.key)
		}
	}
	return d
}

// excludeFrom returns units without what concerns f.
func (f failedPorts) excludeFrom(units []unit) []unit {
	in := map[service.Address]bool{}
	for _, keys := range f {
		for _, k := range keys {
			in[k] = true
		}
	}
	var rest []unit
	for _, u := range units {
		if u.port == nil {
			u.beforeRules = slices.DeleteFunc(u.beforeRules, func(o op) bool { return in[o.key] })
		} else if _, found := f[u.port.Name]; found {
			continue
		}
		rest = append(rest, u)
	}
	return rest
}

// unmarkFailed removes from knownToRules the virtual servers of h that may have no
// destinations although the rules admit clients.
func (p *plan) unmarkFailed(h *installed) {
	for name := range h.failedPorts {
		port := h.view.Port(p.backend.family, name)
		if port == nil {
			continue
		}
		for _, w := range p.backend.options.servers(port, h.localNode) {
			if len(w.endpoints) > 0 {
				delete(p.knownToRules, w.key)
			}
		}
	}
}

// recheckSet is what a sync compares with the kernel that compares nothing else.
type recheckSet struct {
	ports map[service.PortName]bool
	keys  map[service.Address]bool
}

// portsToRecheck returns the failed Ports of h, and those of cs that share servers with them.
func (p *plan) portsToRecheck(h *installed, cs []service.Change) recheckSet {
	d := recheckSet{map[service.PortName]bool{}, map[service.Address]bool{}}
	take := func(name service.PortName) {
		d.ports[name] = true
		for _, s := range []*service.Snapshot{h.view, p.next.view} {
			for _, k := range p.serverKeys(s.Port(p.backend.family, name)) {
				d.keys[k] = true
			}
		}
	}
	for name, keys := range h.failedPorts {
		take(name)
		for _, k := range keys {
			d.keys[k] = true
		}
	}
	for more := len(d.ports) > 0; more; {
		more = false
		for _, c := range cs {
			if !d.ports[c.Name()] && p.affects(c, d.keys) {
				take(c.Name())
				more = true
			}
		}
	}
	return d
}

// serverKeys returns the virtual servers of port, which may be nil.
func (p *plan) serverKeys(port *service.Port) []service.Address {
	if port == nil {
		return nil
	}
	var keys []service.Address
	for _, w := range p.backend.options.servers(port, p.next.localNode) {
		keys = append(keys, w.key)
	}
	return keys
}

func (p *plan) affects(c service.Change, keys map[service.Address]bool) bool {
	return slices.ContainsFunc(slices.Concat(p.serverKeys(c.Old), p.serverKeys(c.New)), func(k service.Address) bool { return keys[k] })
}

// recheckFailed reads the kernel state of p.recheck and plans the change to p.next.
func (p *plan) recheckFailed(ctx context.Context, h *installed) error {
	b, d := p.backend, p.recheck
	if len(d.ports) == 0 {
		return nil
	}
	s := &state{servers: map[service.Address]*observedServer{}}
	for _, k := range sortedKeys(d.keys) {
		l, err := b.driver.Server(ctx, k)
		if err != nil {
			return err
		}
		if l == nil {
			delete(b.owned, k)
			continue
		}
		s.servers[k] = l
	}
	b.recordOwned(s)
	p.knownToRules = map[service.Address]bool{}
	for name := range d.ports {
		p.markKnown(h.view.Port(b.family, name), p.next.localNode)
	}
	p.unmarkFailed(h)
	seen := map[service.Address]bool{}
	for _, name := range slices.SortedFunc(maps.Keys(d.ports), service.PortName.Compare) {
		if port := p.next.view.Port(b.family, name); port != nil {
			p.comparePort(port, s, func(a netip.Addr) bool { return h.addrRefs[a] > 0 }, seen)
		}
	}
	for k := range d.keys {
		if !seen[k] {
			delete(p.drainingDests, k)
		}
	}
	p.removeLeftovers(s, seen)
	return nil
}

// pendingNodePorts are the addresses that answer NodePorts while those of the node are
// not known yet: the addresses that answered when the first snapshot arrived.
type pendingNodePorts struct {
	read     bool
	prefixes []netip.Prefix
}

// fillNodePorts sets the NodePort addresses of v, whose addresses are the real ones. It
// reads the kernel state once.
func (b *Backend) fillNodePorts(ctx context.Context, want *service.Snapshot, v *service.Node) error {
	if !v.NodePortsPending[b.family] {
		b.pending = pendingNodePorts{read: true}
		return nil
	}
	if !b.pending.read {
		s, err := b.driver.Read(ctx)
		if err != nil {
			return fmt.Errorf("list virtual servers: %w", err)
		}
		b.pending = pendingNodePorts{true, b.nodePortPrefixes(s, want, v.Addrs)}
	}
	v.NodePorts = append(slices.Clone(v.NodePorts), b.pending.prefixes...)
	v.NodePortsPending[b.family] = false
	return nil
}

// nodePortPrefixes returns those of addrs that have a server in s for a NodePort of want.
func (b *Backend) nodePortPrefixes(s *state, want *service.Snapshot, addrs []netip.Addr) []netip.Prefix {
	var found []netip.Prefix
	ports, others := map[service.Address]bool{}, map[service.Address]bool{}
	for p := range want.Ports(b.family) {
		for _, f := range p.Frontends {
			k := p.Address(f)
			if f.Kind == service.NodePort {
				ports[k] = true
			} else {
				others[k] = true
			}
		}
	}
	for _, k := range sortedKeys(s.servers) {
		one := netip.PrefixFrom(k.Addr, k.Addr.BitLen())
		managed := s.servers[k].owned() || s.servers[k].upstream
		if managed && ports[k.OnNode()] && !others[k] && slices.Contains(addrs, k.Addr) && !slices.Contains(found, one) {
			found = append(found, one)
		}
	}
	return found
}
