// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"kubeproxy/common/service"
)

// claims records which Service holds an address and which others claim it: a ClusterIP's owner
// first, as the API server assigned it to one alone, then a load balancer's, by a controller.
// External IPs come last, as every user can set them, and could divert and read others' traffic
// (kubernetes/kubernetes#97076, CVE-2020-8554). Among equals the older Service holds it, then by
// name.
type claims struct {
	holder map[service.Address]claim
	queue  map[service.Address]*queue // the others that claim it
	// external are the Services with external addresses, by what may take precedence: a
	// ClusterIP with all its ports, or a port of the node.
	external dependents
	// endpoints are the Services whose endpoints have addresses near ClusterIPs.
	endpoints dependents
	// was has the former holder of each address that changed it since the last update.
	was   map[service.Address]claim
	touch func(*serviceState) // queues a Service for the next update
}

// claim is one Service's claim to an address, with the kind of the address.
type claim struct {
	*serviceState
	kind service.Kind
}

func newClaims(touch func(*serviceState)) claims {
	return claims{map[service.Address]claim{}, map[service.Address]*queue{}, dependents{}, dependents{}, map[service.Address]claim{}, touch}
}

// rank is a claim's precedence, lower is better. NodePorts compete among themselves.
func (c claim) rank() int {
	switch c.kind {
	case service.LoadBalancerIP:
		return 1
	case service.ExternalIP:
		return 2
	}
	return 0
}

// compareClaims orders claims to one address, best first.
func compareClaims(a, b claim) int {
	return cmp.Or(
		cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.created, b.created),
		strings.Compare(a.name.Namespace, b.name.Namespace), strings.Compare(a.name.Name, b.name.Name),
	)
}

// reason returns why c holds the address and other does not. Manifests have no creation time.
func (c claim) reason(other claim) string {
	switch {
	case c.rank() != other.rank():
		return "which has it as its " + c.kind.String()
	case c.created != other.created:
		return "which was there first"
	}
	return "whose name sorts first, as both are of the same time"
}

// add adds a claim to a.
func (c *claims) add(a service.Address, s claim) {
	first, taken := c.holder[a]
	if !taken || compareClaims(s, first) < 0 {
		c.hold(a, first, s)
		first, s = s, first
	}
	if !taken {
		return
	}
	q := c.queue[a]
	if q == nil {
		q = &queue{}
		c.queue[a] = q
	}
	q.push(s)
}

func (c *claims) remove(a service.Address, s claim) {
	q := c.queue[a]
	switch {
	case q != nil && q.drop(s):
	case c.holder[a] != s:
		return
	case q == nil:
		c.hold(a, s, claim{})
	default:
		c.hold(a, s, q.pop())
	}
	if q != nil && len(q.list) == 0 {
		delete(c.queue, a)
	}
}

// hold makes now the holder of a instead of old. Either may be none; both are queued. Other
// claimants, and external addresses that it refuses, are affected by the holder at the next update
// alone, which may change as often as there are claims.
func (c *claims) hold(a service.Address, old, now claim) {
	if now.serviceState == nil {
		delete(c.holder, a)
	} else {
		c.holder[a] = now
	}
	for _, x := range []claim{old, now} {
		if x.serviceState != nil {
			c.touch(x.serviceState)
		}
	}
	if _, noted := c.was[a]; !noted && (c.queue[a] != nil || c.external[a] != nil || c.endpoints[a] != nil) {
		c.was[a] = old
	}
}

// resolve queues all Services that are affected by changes since it last ran.
func (c *claims) resolve() {
	if len(c.was) == 0 {
		return
	}
	for a, old := range c.was {
		if c.holder[a] == old {
			continue
		}
		if q := c.queue[a]; q != nil {
			for _, x := range q.list {
				c.touch(x.serviceState)
			}
		}
		for s := range c.external[a] {
			c.touch(s)
		}
		for s := range c.endpoints[a] {
			c.touch(s)
		}
	}
	c.was = map[service.Address]claim{} // clearing it would cost as much as its largest size
}

var (
	errSpecial   = errors.New("not an address of a pod or a Service: unspecified, loopback, multicast or broadcast")
	errLinkLocal = errors.New("link-local, which Kubernetes allows for ClusterIPs and load balancers alone")
	errScoped    = errors.New("has an IPv6 zone")
)

// parseAddr parses an address for traffic, not link-local, as the API's validation has it.
func parseAddr(s string) (netip.Addr, error) {
	a, err := parseAssigned(s)
	if err == nil && a.IsLinkLocalUnicast() {
		return netip.Addr{}, fmt.Errorf("%.80q: %w", s, errLinkLocal)
	}
	return a, err
}

// parseAssigned is parseAddr for an address that the API server or a load balancer's
// controller assigned. It may be link-local, because the range of ClusterIPs may be.
func parseAssigned(s string) (netip.Addr, error) {
	a, err := service.ParseAddr(s)
	switch {
	case err != nil:
		return netip.Addr{}, err
	case a.Zone() != "":
		return netip.Addr{}, fmt.Errorf("%.80q: %w", s, errScoped)
	case a.IsUnspecified(), a.IsLoopback(), a.IsMulticast(), a == broadcast():
		return netip.Addr{}, fmt.Errorf("%.80q: %w", s, errSpecial)
	}
	return a, nil
}

func broadcast() netip.Addr { return netip.AddrFrom4([4]byte{255, 255, 255, 255}) }

// parsePrefix parses a CIDR and clears its host bits.
func parsePrefix(s string) (netip.Prefix, error) {
	s = strings.TrimSpace(s)
	p, err := service.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, err
	}
	if p.Addr().Is4In6() {
		if p.Bits() < 96 {
			return netip.Prefix{}, fmt.Errorf("%.80q mixes IPv4 and IPv6", s)
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked(), nil
}

// collapse sorts prefixes without host bits, and drops those within another, in place.
func collapse(prefixes []netip.Prefix) []netip.Prefix {
	slices.SortFunc(prefixes, func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
	kept := prefixes[:0]
	for _, p := range prefixes {
		if n := len(kept); n == 0 || !kept[n-1].Contains(p.Addr()) {
			kept = append(kept, p)
		}
	}
	return slices.Clip(kept)
}

func containsAddr(prefixes []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Host is the network state that the node itself reports.
type Host struct {
	// Addrs are the addresses of its interfaces, with the lengths of their networks.
	Addrs []netip.Prefix
	// Listening are the sockets of programs. An unspecified IPv6 address is for both families.
	Listening []Socket
}

func (h *Host) has(a netip.Addr) bool {
	return slices.ContainsFunc(h.Addrs, func(p netip.Prefix) bool { return p.Addr() == a })
}

// Socket is a socket on which a program of the node listens.
type Socket struct {
	Protocol service.Protocol
	Addr     netip.AddrPort
}

// SetHost sets the state that the node reports. Both lists must be in a fixed order.
func (t *Tracker) SetHost(h Host) {
	t.change(func() bool {
		if slices.Equal(t.host.Addrs, h.Addrs) && slices.Equal(t.host.Listening, h.Listening) {
			return false
		}
		moved := !slices.Equal(t.host.Addrs, h.Addrs)
		t.host = h
		found := moved && len(t.cidrs) > 0 // ServiceCIDRs must not contain host addresses
		t.nodeDirty = t.nodeDirty || found
		for _, external := range t.claims.external {
			for s := range external {
				t.markDirty(s)
				found = true
			}
		}
		return found
	})
}

// clusterIPKey is the key of a ClusterIP with all its ports.
func clusterIPKey(a netip.Addr) service.Address {
	return service.AddressOf(0, netip.AddrPortFrom(a, 0))
}

func isExternalAddress(k service.Kind) bool {
	return k == service.ExternalIP || k == service.LoadBalancerIP
}

// dependents counts, by key, what Services have there that depends on its holder.
type dependents map[service.Address]map[*serviceState]int

func (d dependents) add(a service.Address, s *serviceState) {
	if d[a] == nil {
		d[a] = map[*serviceState]int{}
	}
	d[a][s]++
}

func (d dependents) remove(a service.Address, s *serviceState) {
	if d[a][s]--; d[a][s] <= 0 {
		delete(d[a], s)
	}
	if len(d[a]) == 0 {
		delete(d, a)
	}
}

// refused returns why an external address and port is not served, if so, and whether only this node
// refuses it: authors of Services do not own the addresses of nodes.
func (r *resolver) refused(p *service.Port, f service.Frontend) (why string, thisNode bool) {
	if !isExternalAddress(f.Kind) {
		return "", false
	}
	t := r.tracker
	if holder := t.claims.holder[clusterIPKey(f.Addr)]; holder.serviceState != nil && holder.serviceState != r.owner {
		return fmt.Sprintf("%s is refused: the address is the ClusterIP of service %s", describe(p, f), holder.name), false
	}
	named := slices.Contains(r.node.Addrs, f.Addr)
	// A controller may have assigned a load balancer's address to an interface.
	if !named && (f.Kind == service.LoadBalancerIP || !t.host.has(f.Addr)) {
		return "", false
	}
	if holder := t.claims.holder[p.Address(f).OnNode()]; holder.serviceState != nil && holder.serviceState != r.owner && r.node.AnswersNodePorts(f.Addr) {
		return fmt.Sprintf("%s is refused: the address is node %s's, and the port a NodePort or healthCheckNodePort of service %s",
			describe(p, f), r.node.Name, holder.name), true
	}
	for _, l := range t.host.Listening {
		if l.Protocol == p.Name.Protocol && l.Addr.Port() == f.Port && listensOn(l.Addr.Addr(), f.Addr) {
			return fmt.Sprintf("%s is refused: the address is node %s's, and a program of the node listens on %s/%s",
				describe(p, f), r.node.Name, l.Addr, l.Protocol), true
		}
	}
	return "", false
}

// listensOn reports whether a socket on own receives packets to addr.
func listensOn(own, addr netip.Addr) bool {
	return own == addr || own.IsUnspecified() && (own.Is6() || addr.Is4())
}

// healthCheckPort returns the healthCheckNodePort that s specifies, or 0.
func (s *serviceState) healthCheckPort() uint16 {
	for _, p := range s.want {
		if p.HealthCheck != 0 {
			return p.HealthCheck
		}
	}
	return 0
}

// checkKeys returns what a health check occupies: a TCP port of the node in both families.
func checkKeys(port uint16) []service.Address {
	var keys []service.Address
	for _, f := range service.Families {
		keys = append(keys, service.Address{Port: port, Protocol: service.TCP, Family: f})
	}
	return keys
}

// healthCheck returns the port for want's health check, or 0 if another Service holds it.
func (r *resolver) healthCheck(want *service.Port) uint16 {
	if want.HealthCheck == 0 {
		return 0
	}
	for _, k := range checkKeys(want.HealthCheck) {
		if holder := r.tracker.claims.holder[k]; holder.serviceState != r.owner {
			r.notes.refuse("spec.healthCheckNodePort", fmt.Sprintf("%d is not answered: the port belongs to service %s, %s",
				want.HealthCheck, holder.name, holder.reason(claim{r.owner, holder.kind})), false)
			return 0
		}
	}
	return want.HealthCheck
}

// serviceCIDR is what the Tracker keeps of a ServiceCIDR.
type serviceCIDR struct {
	prefixes []netip.Prefix
	fields   []int // their paths
	notes    []note
}

// SetServiceCIDR adds or replaces a ServiceCIDR. One that is being deleted counts until
// it is gone, because Services may still have its addresses.
func (t *Tracker) SetServiceCIDR(o *networkingv1.ServiceCIDR) {
	fresh := readServiceCIDR(o)
	t.change(func() bool {
		old := t.cidrs[o.Name]
		if old != nil && slices.Equal(old.prefixes, fresh.prefixes) && slices.Equal(old.fields, fresh.fields) && slices.Equal(old.notes, fresh.notes) {
			return false
		}
		t.cidrs[o.Name], t.nodeDirty, t.misplaced.stale = fresh, true, true
		return true
	})
}

// DeleteServiceCIDR removes a ServiceCIDR.
func (t *Tracker) DeleteServiceCIDR(name string) {
	t.change(func() bool {
		if t.cidrs[name] == nil {
			return false
		}
		delete(t.cidrs, name)
		t.nodeDirty, t.misplaced.stale = true, true
		return true
	})
}

// minPrefixBits is the least length of a range: shorter ones have more than Services. API servers
// take 2^20 addresses at most by flag: kubernetes: cmd/kube-apiserver/app/options/validation.go.
var minPrefixBits = [...]int{service.IPv4: 8, service.IPv6: 32}

func readServiceCIDR(o *networkingv1.ServiceCIDR) *serviceCIDR {
	var notes notes
	r := &serviceCIDR{}
	for i, s := range o.Spec.CIDRs {
		p, err := parsePrefix(s)
		if err == nil && p.Bits() == 0 {
			// It would cut the node off from every address.
			notes.add("servicecidr "+o.Name+" "+at("spec.cidrs", i), "%.80q holds every address; want a range for Services alone", s)
			continue
		}
		if err == nil && p.Bits() < minPrefixBits[service.FamilyOf(p.Addr())] {
			notes.add("servicecidr "+o.Name+" "+at("spec.cidrs", i), "%.80q is too wide to be a range for Services alone; want /%d or longer", s, minPrefixBits[service.FamilyOf(p.Addr())])
			continue
		}
		if err != nil {
			notes.add("servicecidr "+o.Name+" "+at("spec.cidrs", i), "%v", err)
			continue
		}
		r.prefixes, r.fields = append(r.prefixes, p), append(r.fields, i)
	}
	r.notes = notes.all()
	return r
}

// maxExempt bounds a range's addresses that are endpoints' and not dropped, by a rule each.
const maxExempt = 256

// serviceCIDRs sets the ranges of all ServiceCIDRs, which may overlap, without those that overlap
// the node's or the pods' networks, and the addresses of endpoints in them, which exempt no other
// address: any author of an EndpointSlice can write one. It returns notes about all faults.
func (t *Tracker) serviceCIDRs(node *service.Node) []note {
	var all []netip.Prefix
	var exempt []netip.Addr
	var notes []note
	for _, name := range slices.Sorted(maps.Keys(t.cidrs)) {
		r := t.cidrs[name]
		notes = append(notes, r.notes...)
		for i, p := range r.prefixes {
			add := func(why string) {
				field := "servicecidr " + name + " " + at("spec.cidrs", r.fields[i])
				notes = append(notes, note{field: field, message: fmt.Sprintf("%q %s", p, why)})
			}
			if conflict := t.overlap(p, node); conflict != "" {
				add(conflict + "; want a range for Services alone; nothing is dropped for it")
				continue
			}
			all = append(all, p)
			listed := t.unallocated(t.misplaced.in(p))
			if len(listed) > 0 {
				add(t.describeListed(listed))
			}
			exempt = append(exempt, listed[:min(len(listed), maxExempt)]...)
		}
	}
	slices.SortFunc(exempt, netip.Addr.Compare)
	node.ServiceCIDRs, node.EndpointsInServiceCIDRs = collapse(all), slices.Compact(exempt)
	return notes
}

// unallocated returns those of addrs that are no ClusterIP, one more than maxExempt at most.
func (t *Tracker) unallocated(addrs []netip.Addr) []netip.Addr {
	var free []netip.Addr
	for _, a := range addrs {
		if len(free) > maxExempt {
			break
		}
		if t.claims.holder[clusterIPKey(a)].serviceState == nil {
			free = append(free, a)
		}
	}
	return free
}

// describeListed describes what unallocated returned for the endpoints of a range.
func (t *Tracker) describeListed(listed []netip.Addr) string {
	first := slices.MinFunc(slices.Collect(maps.Keys(t.claims.endpoints[clusterIPKey(listed[0])])), func(a, b *serviceState) int {
		return strings.Compare(a.name.String(), b.name.String())
	})
	number, exempt := strconv.Itoa(len(listed)), "them"
	if len(listed) > maxExempt {
		number, exempt = fmt.Sprintf("more than %d", maxExempt), fmt.Sprintf("the first %d", maxExempt)
	}
	return fmt.Sprintf("holds addresses of endpoints (%s): %s of service %s; want a range for Services alone; packets to %s are not dropped",
		number, listed[0], first.name, exempt)
}

// overlap returns what p shares with the node and with pods, empty if it shares nothing.
// Pods get addresses from all of their range, so a range of pods that contains p overlaps
// as much as one within p. An interface may have single addresses of Services: node-local
// DNS binds the ClusterIP of the cluster's DNS, other proxies all of them.
func (t *Tracker) overlap(p netip.Prefix, node *service.Node) string {
	for _, a := range node.Addrs {
		if p.Contains(a) {
			return "holds the node's address " + a.String()
		}
	}
	for _, a := range t.host.Addrs {
		if p.Contains(a.Addr()) && !a.IsSingleIP() && t.claims.holder[clusterIPKey(a.Addr())].serviceState == nil {
			return "holds the node's address " + a.String()
		}
	}
	for _, q := range slices.Concat(node.Pods.Prefixes, t.nodeInfo.pods) {
		switch {
		case !p.Overlaps(q):
		case p.Bits() <= q.Bits():
			return "holds the pods' range " + q.String()
		default:
			return "lies in the pods' range " + q.String()
		}
	}
	return ""
}
