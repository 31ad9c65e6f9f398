// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// pass applies work to a model, through a driver. A dry pass uses a fork of the model and
// a driver without effects. Its result is the plan.
type pass struct {
	ctx    context.Context
	host   *Host
	driver Driver
	model  *model
	site   *Site
	family service.Family
	dry    bool

	outcome
	attempts
}

// outcome is what a pass did, and what it found on the way.
type outcome struct {
	changes   reconcile.Changes        // those of a dry pass
	creates   map[Key]service.PortName // load balancers that a dry pass would create
	adoptions []adoption               // load balancers that a dry pass would keep unchanged
	owned     map[Key]bool             // load balancers that are certainly ours now
	failed    map[service.PortName][]error
	fatal     error // ends the pass
	// waiting means that a local endpoint is missing. moved means that it is in another
	// network, and the network of the model has no local endpoints any more. stale means
	// that an answer did not match the model. stateUnknown means that a call failed, so
	// that what HNS holds is unknown. relistEndpoints means that a failure may disappear
	// after a new listing of endpoints.
	waiting, moved, stale, stateUnknown, relistEndpoints bool
	// missingByPool counts load balancers that are missing due to a lack of dynamic
	// ports.
	missingByPool map[portPool]int
}

// attempts is what the steps of a pass have to know of earlier ones.
type attempts struct {
	// released holds endpoints that a load balancer no longer uses, and its Service port.
	released   map[string]service.PortName
	createErrs map[netip.Addr]error // endpoints that could not be created
	// uncertain holds endpoints that a load balancer may use: HNS reported an error for
	// it, but may have created it.
	uncertain map[string]bool
	// refusedServices holds Services for which HNS rejected a replacement in this pass.
	// Their other load balancers are not replaced.
	refusedServices map[serviceName]bool
}

func newPass(ctx context.Context, h *Host, s *Site, f service.Family, m *model) *pass {
	return &pass{
		ctx: ctx, host: h, driver: h.driver, model: m, site: s, family: f,
		outcome: outcome{
			creates: map[Key]service.PortName{}, owned: map[Key]bool{}, failed: map[service.PortName][]error{}, missingByPool: map[portPool]int{},
		},
		attempts: attempts{
			released: map[string]service.PortName{}, createErrs: map[netip.Addr]error{}, uncertain: map[string]bool{}, refusedServices: map[serviceName]bool{},
		},
	}
}

// newDryPass returns a pass without effects.
func newDryPass(ctx context.Context, h *Host, s *Site, f service.Family, m *model) *pass {
	p := newPass(ctx, h, s, f, m.fork())
	p.dry, p.driver = true, dryRun(Listing{})
	return p
}

// unit is the work for one Service port: its desired state, and the objects that it no
// longer needs.
type unit struct {
	name          service.PortName
	desired       []DesiredLoadBalancer
	vips          []Target
	deletes       []*LoadBalancer
	releasedAddrs []netip.Addr // addresses whose remote endpoints may be unused
}

// work is the input of a pass.
type work struct {
	units []unit
	// misrouted are our remote endpoints with a wrong route.
	misrouted []*Endpoint
	// unused are endpoints that may be unused.
	unused []*Endpoint
	// inUse reports whether an endpoint is needed other than by load balancers.
	inUse func(netip.Addr) bool
	// listed reports whether an EndpointSlice lists an address of another node.
	listed func(netip.Addr) bool
}

// do applies w in an order that interrupts no Service for long. Urgent Services come
// first. An endpoint is created before the load balancers that use it. It is deleted
// after them, when no load balancer of any owner uses it. Unneeded load balancers are
// deleted before others are created, because they occupy ports.
func (p *pass) do(w *work) {
	slices.SortStableFunc(w.units, func(a, b unit) int {
		return cmp.Or(priority(a.name)-priority(b.name), a.name.Compare(b.name))
	})
	p.detach(w.misrouted)
	for _, u := range w.units {
		if urgent(u.name) {
			p.ensureAll(u)
		}
	}
	for _, u := range w.units {
		for _, lb := range u.deletes {
			p.drop(lb, u.name)
		}
	}
	for _, u := range w.units {
		if !urgent(u.name) {
			p.ensureAll(u)
		}
	}
	p.deleteUnused(w)
}

func priority(n service.PortName) int {
	if urgent(n) {
		return 0
	}
	return 1
}

func (p *pass) ensureAll(u unit) {
	for _, t := range u.vips {
		if p.fatal != nil {
			return
		}
		if _, err := p.ensureEndpoint(t); err != nil {
			p.fail(u.name, err)
		}
	}
	for i := range u.desired {
		if p.fatal != nil {
			return
		}
		if err := p.ensure(&u.desired[i]); err != nil {
			p.fail(u.name, err)
		}
	}
}

// fail records an error of one Service port. If HNS is not running, or the context ended,
// all ports would fail, so that ends the pass.
func (p *pass) fail(n service.PortName, err error) {
	if p.fatal != nil {
		return
	}
	if errors.Is(err, ErrNotRunning) || errors.Is(err, ErrNotInstalled) || p.ctx.Err() != nil {
		p.fatal = err
		return
	}
	p.stateUnknown = p.stateUnknown || !onlyPending(err)
	p.relistEndpoints = p.relistEndpoints || !onlyPostponed(err)
	if errors.Is(err, ErrExists) || errors.Is(err, ErrNotFound) {
		p.stale = true
	}
	p.failed[n] = appendUnique(p.failed[n], err)
}

// ensure makes HNS hold w. If some endpoints are missing, it uses the others. If all are
// missing, it changes nothing.
func (p *pass) ensure(w *DesiredLoadBalancer) error {
	lb := w.LoadBalancer
	lb.Endpoints = make([]string, 0, len(w.Targets))
	var missing []error
	for _, t := range w.Targets {
		id, err := p.ensureEndpoint(t)
		if p.fatal != nil {
			return nil
		}
		if err != nil {
			missing = append(missing, err)
			continue
		}
		lb.Endpoints = append(lb.Endpoints, id)
	}
	slices.Sort(lb.Endpoints)
	lb.Endpoints = slices.Compact(lb.Endpoints)
	if len(lb.Endpoints) == 0 && !w.Shared {
		return errors.Join(missing...)
	}
	for i, err := range missing {
		missing[i] = &reconcile.DegradedError{Err: err}
	}
	if len(lb.Endpoints) > 0 {
		missing = append(missing, p.ensureBalancer(&lb, w.PortName))
	}
	return errors.Join(missing...)
}

// ensureBalancer makes HNS hold lb, whose ID is not set.
func (p *pass) ensureBalancer(lb *LoadBalancer, n service.PortName) error {
	have := p.model.balancer(lb.Key)
	if have != nil {
		p.host.clearPortTaken(lb.Key)
	}
	switch {
	case have == nil:
		if text, recently := p.host.recentRefusal(lb); recently {
			return postponedError(text + "; it is tried again in a while")
		}
		if p.host.portsShort(lb) {
			return p.portShortageError(lb)
		}
		return p.create(lb, n, nil)
	case !p.host.mayChange(have, p.model):
		return fmt.Errorf("%s belongs to load balancer %s, which is not ours", lb.Key, have.ID)
	case have.equal(lb):
		have.Kind = lb.Kind
		p.recordOwned(have, n)
		return nil
	case have.equal(lb.withEndpoints(have.Endpoints)) && p.host.supportsInPlace(p.site.Version):
		return p.update(have, lb, n)
	}
	return p.replaceSkippingBackoff(have, lb, n)
}

// withEndpoints returns lb with other endpoints. As far as is known, HNS can change
// nothing else in place.
func (lb *LoadBalancer) withEndpoints(endpoints []string) *LoadBalancer {
	x := *lb
	x.Endpoints = endpoints
	return &x
}

// mayChange reports whether have, which has a desired key, may be changed. Load balancers
// have no names, so the key decides. A load balancer with further keys, or with endpoints in
// another network than that of m, belongs to another owner.
func (h *Host) mayChange(have *LoadBalancer, m *model) bool {
	if h.owns(have.ID) {
		return true
	}
	if len(have.ExtraKeys) > 0 {
		return false
	}
	return !slices.ContainsFunc(have.Endpoints, func(id string) bool {
		e := m.endpoint(id)
		return e != nil && e.Network != m.network
	})
}

func (p *pass) create(lb *LoadBalancer, n service.PortName, before []string) error {
	if !p.dry { // the plan may not contain it
		p.host.recordPending(map[Key]service.PortName{lb.Key: n})
	}
	created, id, partialErr, err := p.createBalancer(lb, before)
	if err != nil {
		p.markUncertain(lb)
		return p.explainPortTaken(err, lb)
	}
	if p.dry {
		p.addChange(n, "+ loadbalancer %s %s %s", created.Key, created.describe(), p.formatEndpoints(created.Endpoints))
	}
	p.creates[created.Key] = n
	p.recordCreated(id, created, n)
	if !p.dry {
		p.host.resetBackoff(created.Endpoints)
		p.host.clearRefusal(created, serviceNameOf(n))
	}
	return degraded(partialErr)
}

func (p *pass) markUncertain(lb *LoadBalancer) {
	delete(p.owned, lb.Key)
	for _, id := range lb.Endpoints {
		p.uncertain[id] = true
	}
}

func (p *pass) recordCreated(id string, lb *LoadBalancer, n service.PortName) {
	created := *lb
	created.ID = id
	p.model.putBalancer(&created)
	p.recordOwned(&created, n)
}

// recordOwned records that lb is ours. A dry pass collects it, for the case that the plan
// changes nothing and a later process must recognise it.
func (p *pass) recordOwned(lb *LoadBalancer, n service.PortName) {
	p.owned[lb.Key] = true
	if !p.dry {
		p.host.recordBalancer(lb, n.String())
	} else if !p.host.owns(lb.ID) {
		p.adoptions = append(p.adoptions, adoption{lb, n})
	}
}

// adoption is a load balancer that needs no change, and its Service port.
type adoption struct {
	lb   *LoadBalancer
	name service.PortName
}

// update changes have in place and checks the result.
func (p *pass) update(have, lb *LoadBalancer, n service.PortName) error {
	request := *lb
	request.ID = have.ID
	sent, got, partialErr, err := p.updateBalancer(request, have.Endpoints)
	var e *Error
	switch {
	case errors.Is(err, ErrNotFound) && isBalancerMissing(err):
		p.forget(have, n)
		return p.create(lb, n, nil)
	case errors.As(err, &e) && e.Code == notImplemented, err == nil && !got.equal(&sent):
		p.host.disableInPlace(p.site.Version)
		return p.replace(have, lb, n)
	case err != nil:
		p.markUncertain(lb)
		return err
	}
	if p.dry { // a load balancer may have a thousand endpoints
		p.addChange(n, "~ loadbalancer %s %s %s", lb.Key, lb.describe(), p.formatDiff(have.Endpoints, lb.Endpoints))
	}
	p.release(notIn(have.Endpoints, sent.Endpoints), n)
	sent.ID = have.ID
	p.model.changeBalancer(have, &sent)
	p.recordOwned(&sent, n)
	return degraded(partialErr)
}

// isBalancerMissing reports whether the load balancer is missing, and not one of its
// endpoints.
func isBalancerMissing(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Code != 0x803b0002
}

// replace deletes have and creates lb immediately, which keeps the gap as short as
// possible. If HNS rejects lb, it creates have again.
func (p *pass) replace(have, lb *LoadBalancer, n service.PortName) error {
	if err := p.checkBackoff(have, lb, n); err != nil {
		have.Kind = lb.Kind
		p.recordOwned(have, n)
		return err
	}
	if err := p.deleteBalancer(have); err != nil {
		return err
	}
	p.addChange(n, "- loadbalancer %s", have.Key)
	p.forget(have, n)
	if !p.dry {
		p.host.noteRepair(have, lb)
	}
	err := p.create(lb, n, have.Endpoints)
	if err == nil || p.model.balancer(lb.Key) != nil {
		return err
	}
	return p.restore(have, lb, n, err)
}

// forget removes a load balancer that should be deleted from the model. The record keeps
// it until a listing shows that it is gone. HNS may keep what it should delete
// (kubernetes/kubernetes#113524), and then its owner would be unknown.
func (p *pass) forget(lb *LoadBalancer, n service.PortName) {
	p.model.removeBalancer(lb)
	p.release(lb.Endpoints, n)
}

func (p *pass) release(endpoints []string, n service.PortName) {
	for _, id := range endpoints {
		p.released[id] = n
	}
}

// drop deletes a load balancer that is not desired.
func (p *pass) drop(lb *LoadBalancer, n service.PortName) {
	// It may have been created again, without an endpoint with a wrong route.
	if lb = p.model.balancer(lb.Key); lb == nil || p.fatal != nil {
		return
	}
	if err := p.deleteBalancer(lb); err != nil {
		p.fail(n, err)
		return
	}
	p.addChange(n, "- loadbalancer %s", lb.Key)
	p.forget(lb, n)
	if !p.dry {
		p.host.forgetForm(lb.Key)
	}
}

// deleteBalancer tries twice, because Windows Server 2019 fails occasionally
// (kubernetes/kubernetes#137530). A missing load balancer counts as deleted.
func (p *pass) deleteBalancer(lb *LoadBalancer) error {
	err := p.driver.DeleteLoadBalancer(p.ctx, *lb)
	if errors.Is(err, ErrBusy) {
		err = p.driver.DeleteLoadBalancer(p.ctx, *lb)
	}
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// The names of our endpoints, which identify them.
const (
	remotePrefix  = "kube-proxy-remote-"
	sourceVIPName = "kube-proxy-source-vip"
)

// remoteName has dashes for colons: nothing public says that a name of HNS may have them.
func remoteName(a netip.Addr) string { return remotePrefix + strings.ReplaceAll(a.String(), ":", "-") }

// ownsEndpoint reports whether this proxy created e.
func ownsEndpoint(e *Endpoint) bool {
	return e.Name == sourceVIPName || strings.HasPrefix(e.Name, remotePrefix)
}

// ensureEndpoint returns the ID of the endpoint for t. It creates remote endpoints.
func (p *pass) ensureEndpoint(t Target) (string, error) {
	if t.Location == Root {
		return p.rootEndpoint()
	}
	remote := p.model.endpointAt(t.Addr, Remote)
	if t.Location != Remote {
		if pod := p.model.endpointAt(t.Addr, Local); pod != nil {
			p.releaseUnnamed(remote) // it is of a pod that had the address before
			return pod.ID, nil
		}
	}
	switch {
	case t.Location == Local:
		return "", p.waitForPod(t.Addr)
	case remote == nil:
		return p.createEndpoint(t)
	case misrouted(remote, t) && !ownsEndpoint(remote):
		return "", fmt.Errorf("endpoint %s leads elsewhere, and is not ours: %s, want %s", remote.ID, remote.describe(), t.describe())
	}
	return remote.ID, nil
}

// rootEndpoint returns the ID of the node's own endpoint, which the network plugin makes.
func (p *pass) rootEndpoint() (string, error) {
	e := p.model.endpointNamed(p.site.Options.RootEndpoint)
	switch {
	case e == nil:
		p.waiting = true
		return "", pendingError(fmt.Sprintf("health checks of the load balancer cannot reach the node: network %q has no endpoint %q: want --root-hnsendpoint-name", p.site.Network.Name, p.site.Options.RootEndpoint))
	case !e.inFamily(p.family):
		p.waiting = true
		return "", pendingError(fmt.Sprintf("health checks of the load balancer cannot reach the node over %s: endpoint %q has no such address", p.family, e.Name))
	}
	return e.ID, nil
}

// waitForPod records that a pod of this node has no endpoint yet, and returns the reason.
func (p *pass) waitForPod(a netip.Addr) error {
	p.waiting = true
	p.moved = p.moved || p.dry && p.model.moved(a)
	if other := p.model.elsewhere(a); other != "" {
		return pendingError(fmt.Sprintf("endpoint %s is in network %q, not in %q, which is for Services: see the network plugin and the CNI configuration of the container runtime", a, other, p.site.Network.Name))
	}
	return pendingError(fmt.Sprintf("endpoint %s is of this node, but network %q does not have it yet: the network plugin makes it", a, p.site.Network.Name))
}

// releaseUnnamed releases e, if there is one, for no Service port in particular.
func (p *pass) releaseUnnamed(e *Endpoint) {
	if e != nil {
		p.released[e.ID] = leftoverName("", Key{})
	}
}

// misrouted reports whether e does not lead to t. A MAC that is not known, of the node in a dump, fits all.
func misrouted(e *Endpoint, t Target) bool {
	return t.MAC != "" && !equalMAC(e.MAC, t.MAC) || t.Provider.IsValid() && e.Provider.IsValid() && e.Provider != t.Provider
}

func (p *pass) createEndpoint(t Target) (string, error) {
	if err := p.createErrs[t.Addr]; err != nil {
		return "", err // one attempt is enough, but each Service reports the error
	}
	request := Endpoint{
		Name: remoteName(t.Addr), Network: p.site.Network.ID, Addrs: []netip.Addr{t.Addr},
		MAC: t.MAC, Provider: t.Provider, Remote: true,
	}
	e, err := p.driver.CreateEndpoint(p.ctx, request)
	if err != nil {
		p.createErrs[t.Addr] = err
		return "", err
	}
	p.addChange(service.PortName{}, "+ endpoint %s", e.describe())
	p.model.putEndpoint(&e)
	if !p.dry {
		p.host.recordEndpoint(&e)
	}
	return e.ID, nil
}

// describe returns a text about e for plans and errors.
func (e *Endpoint) describe() string {
	var addrs []string
	for _, a := range e.Addrs {
		addrs = append(addrs, a.String())
	}
	s := strings.Join(addrs, ",")
	if !e.Remote {
		return s + " local"
	}
	s += " remote " + cmp.Or(e.MAC, "the node's MAC")
	if e.Provider.IsValid() {
		s += " via " + e.Provider.String()
	}
	return s
}

// describe returns a text about the remote endpoint for t.
func (t *Target) describe() string {
	e := Endpoint{Addrs: []netip.Addr{t.Addr}, MAC: t.MAC, Provider: t.Provider, Remote: true}
	return e.describe()
}

// detach removes endpoints with a wrong route from our load balancers and deletes them,
// so that correct ones can be created.
func (p *pass) detach(misrouted []*Endpoint) {
	if len(misrouted) == 0 {
		return
	}
	wrong := map[string]bool{}
	for _, e := range misrouted {
		wrong[e.ID] = true
	}
	for _, lb := range p.model.balancersUsing(wrong) {
		if p.fatal != nil {
			return
		}
		remaining := *lb
		remaining.ID = ""
		remaining.Endpoints = slices.DeleteFunc(slices.Clone(lb.Endpoints), func(id string) bool { return wrong[id] })
		n := leftoverName(p.host.purposeOf(lb.ID), lb.Key)
		if !p.host.mayChange(lb, p.model) {
			p.fail(n, fmt.Errorf("load balancer %s, which is not ours, has an endpoint of ours that leads to the wrong node", lb.ID))
		} else if len(remaining.Endpoints) == 0 {
			p.drop(lb, n)
		} else if err := p.ensureBalancer(&remaining, n); err != nil {
			p.fail(n, err)
		}
	}
	for _, e := range misrouted {
		p.removeEndpoint(e, leftoverName("", Key{}))
	}
}

// deleteUnused deletes our endpoints that are no longer needed.
func (p *pass) deleteUnused(w *work) {
	for _, e := range w.unused {
		if _, known := p.released[e.ID]; !known {
			p.releaseUnnamed(e)
		}
	}
	for _, u := range w.units {
		for _, a := range u.releasedAddrs {
			if e := p.model.endpointAt(a, Remote); e != nil {
				p.released[e.ID] = u.name
			}
		}
	}
	var unused []*Endpoint
	for id := range p.released {
		e := p.model.endpoint(id)
		if e != nil && p.isUnused(e, w) {
			unused = append(unused, e)
		}
	}
	slices.SortFunc(unused, func(a, b *Endpoint) int { return a.Addrs[0].Compare(b.Addrs[0]) })
	for _, e := range unused {
		p.removeEndpoint(e, p.released[e.ID])
	}
}

// isUnused reports whether e is ours and only load balancers may still need it.
func (p *pass) isUnused(e *Endpoint, w *work) bool {
	switch {
	case len(e.Addrs) == 0 || !ownsEndpoint(e):
		return false
	case !e.Remote: // a source VIP, which load balancers refer to by its address
		return slices.Contains(w.unused, e) && !p.usedAsSourceVIP(e)
	}
	return e.Network != p.model.network || !slices.ContainsFunc(e.Addrs, func(a netip.Addr) bool { return p.retains(a, w) }) || slices.Contains(w.unused, e)
}

// retains reports whether the remote endpoint with address a stays although no load
// balancer has it. Connections to a terminating or unready pod need it
// (microsoft/Windows-Containers#631). If a pod of this node received the address, the
// remote endpoint must be deleted (kubernetes/kubernetes#130963).
func (p *pass) retains(a netip.Addr, w *work) bool {
	return w.inUse(a) || w.listed(a) && p.model.endpointAt(a, Local) == nil
}

// usedAsSourceVIP reports whether a load balancer of any owner uses e as its source VIP.
func (p *pass) usedAsSourceVIP(e *Endpoint) bool {
	return len(p.model.sortedBalancers(func(lb *LoadBalancer) bool { return e.HasAddr(lb.SourceVIP) })) > 0
}

// removeEndpoint deletes e unless a load balancer of any owner has it.
func (p *pass) removeEndpoint(e *Endpoint, n service.PortName) {
	if p.fatal != nil || p.model.refCount(e.ID) > 0 || p.uncertain[e.ID] {
		return
	}
	if err := p.driver.DeleteEndpoint(p.ctx, e.ID); err != nil && !errors.Is(err, ErrNotFound) {
		p.fail(n, err)
		return
	}
	p.addChange(service.PortName{}, "- endpoint %s", e.describe())
	p.model.removeEndpoint(e)
	if !p.dry {
		p.host.release(e.ID)
	}
}

// leftoverName returns a name for an object that belongs to no Service of the snapshot.
func leftoverName(purpose string, k Key) service.PortName {
	if n := service.ParsePortName(purpose); n != (service.PortName{}) {
		n.Protocol = k.Protocol
		return n
	}
	return service.PortName{Namespace: unknownNamespace, Name: "leftover"}
}

// unknownNamespace is the namespace in a name that stands for no known Service.
const unknownNamespace = "-"

// formatEndpoints formats the addresses of endpoints.
func (p *pass) formatEndpoints(ids []string) string {
	return "[" + strings.Join(p.endpointTexts(ids), " ") + "]"
}

func (p *pass) endpointTexts(ids []string) []string {
	var all []netip.Addr
	var odd []string
	for _, id := range ids {
		e := p.model.endpoint(id)
		switch {
		case e == nil:
			odd = append(odd, "missing:"+id)
		case len(e.Addrs) == 0:
			odd = append(odd, e.Name)
		default:
			all = append(all, e.addrIn(p.family))
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	var texts []string
	for _, a := range all {
		texts = append(texts, a.String())
	}
	return append(texts, odd...)
}

// addrIn returns the address of e in family f, otherwise its first one.
func (e *Endpoint) addrIn(f service.Family) netip.Addr {
	for _, a := range e.Addrs {
		if service.FamilyOf(a) == f {
			return a
		}
	}
	return e.Addrs[0]
}

// formatDiff formats the difference between two sorted lists of endpoints, by address:
// before Apply, endpoints have other IDs.
func (p *pass) formatDiff(from, to []string) string {
	var parts []string
	for _, text := range p.endpointTexts(notIn(from, to)) {
		parts = append(parts, "-"+text)
	}
	for _, text := range p.endpointTexts(notIn(to, from)) {
		parts = append(parts, "+"+text)
	}
	return "[" + strings.Join(parts, " ") + "]"
}

// has reports whether the sorted list all has x.
func has(all []string, x string) bool {
	_, found := slices.BinarySearch(all, x)
	return found
}

// notIn returns the elements of all that others lacks. Both are sorted.
func notIn(all, others []string) []string {
	var rest []string
	for _, x := range all {
		for len(others) > 0 && others[0] < x {
			others = others[1:]
		}
		if len(others) == 0 || others[0] != x {
			rest = append(rest, x)
		}
	}
	return rest
}
