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

	changes   reconcile.Changes
	creates   map[Key]service.PortName // load balancers that a dry pass would create
	adoptions []adoption               // load balancers that a dry pass would keep unchanged
	owned     map[Key]bool             // load balancers that are certainly ours now
	failed    map[service.PortName][]error
	// released holds endpoints that a load balancer no longer uses, and its Service port.
	released   map[string]service.PortName
	createErrs map[netip.Addr]error // endpoints that could not be created
	// uncertain holds endpoints that a load balancer may use: HNS reported an error for
	// it, but may have created it.
	uncertain map[string]bool
	// refusedServices holds Services for which HNS rejected a replacement in this pass.
	// Their other load balancers are not replaced.
	refusedServices map[serviceName]bool
	// missingByPool counts load balancers that are missing due to a lack of dynamic
	// ports.
	missingByPool map[portPool]int
	// waiting means that a local endpoint is missing. moved means that it is in another
	// network, and the network of the model has no local endpoints any more. stale means that an answer did not
	// match the model. stateUnknown means that a call failed, so that what HNS holds is
	// unknown.
	waiting, moved, stale, stateUnknown bool
	// relistEndpoints means that a failure may disappear after a new listing of
	// endpoints.
	relistEndpoints bool
	fatal           error // ends the pass
}

func newPass(ctx context.Context, h *Host, s *Site, f service.Family, m *model) *pass {
	return &pass{
		ctx: ctx, host: h, driver: h.driver, model: m, site: s, family: f,
		creates: map[Key]service.PortName{}, owned: map[Key]bool{}, failed: map[service.PortName][]error{},
		released: map[string]service.PortName{}, createErrs: map[netip.Addr]error{}, uncertain: map[string]bool{}, refusedServices: map[serviceName]bool{}, missingByPool: map[portPool]int{},
	}
}

// newDryPass returns a pass without effects.
func newDryPass(ctx context.Context, h *Host, s *Site, f service.Family, m *model) *pass {
	p := newPass(ctx, h, s, f, m.fork())
	p.dry, p.driver = true, &dryRunDriver{}
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
	case !p.owns(have):
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

// owns reports whether have, which has a desired key, may be changed. Load balancers have
// no names, so the key decides. A load balancer with further keys, or with endpoints in
// another network, belongs to another owner.
func (p *pass) owns(have *LoadBalancer) bool {
	if p.host.owns(have.ID) {
		return true
	}
	if len(have.ExtraKeys) > 0 {
		return false
	}
	return !slices.ContainsFunc(have.Endpoints, func(id string) bool {
		e := p.model.endpoint(id)
		return e != nil && e.Network != p.model.network
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
