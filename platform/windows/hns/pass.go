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

// pass does work on a model, through a driver. A dry one works on a fork
// through a driver that only pretends: what it would do is the plan.
type pass struct {
	ctx    context.Context
	host   *Host
	driver Driver
	model  *model
	site   *Site
	family service.Family
	dry    bool

	lines   []string
	creates map[Key]service.PortName // load balancers that a dry pass would make
	adopts  []adoption               // and those it would leave as they are
	owned   map[Key]bool             // load balancers that are certainly ours now
	failed  map[service.PortName][]error
	// released are endpoints that lost a load balancer, and who let go.
	released map[string]service.PortName
	broken   map[netip.Addr]error // endpoints that could not be made
	// doubtful are endpoints that a load balancer may have: HNS said that it
	// failed to make it, but who knows.
	doubtful map[string]bool
	// refusing are Services with a load balancer that HNS refused in this pass to
	// put in the place of another. One is enough: the others stay as they are.
	refusing map[owner]bool
	// lacked counts load balancers that are missing for want of dynamic ports.
	lacked map[pool]int
	// waiting means that a local endpoint is missing. stale means that an
	// answer did not fit the model. unsure means that something failed, so
	// that nobody knows what HNS holds.
	waiting, stale, unsure bool
	// relist means that something failed that another listing of endpoints may cure.
	relist bool
	fatal  error // ends the pass
}

func newPass(ctx context.Context, h *Host, s *Site, f service.Family, m *model) *pass {
	return &pass{
		ctx: ctx, host: h, driver: h.driver, model: m, site: s, family: f,
		creates: map[Key]service.PortName{}, owned: map[Key]bool{}, failed: map[service.PortName][]error{},
		released: map[string]service.PortName{}, broken: map[netip.Addr]error{}, doubtful: map[string]bool{}, refusing: map[owner]bool{}, lacked: map[pool]int{},
	}
}

// dryPass returns a pass that touches nothing.
func dryPass(ctx context.Context, h *Host, s *Site, f service.Family, m *model) *pass {
	p := newPass(ctx, h, s, f, m.fork())
	p.dry, p.driver = true, &pretence{}
	return p
}

// unit is the work for one Service port: what it wants, and what it wanted
// and nobody wants now.
type unit struct {
	name    service.PortName
	wishes  []Wish
	vips    []Target
	drops   []*LoadBalancer
	unneeds []netip.Addr // whose remote endpoints may have no use
}

// work is what a pass is to do.
type work struct {
	units []unit
	// misled are our remote endpoints that lead to the wrong node.
	misled []*Endpoint
	// spare are endpoints that may have no use.
	spare []*Endpoint
	// keep reports that an endpoint has a use besides load balancers.
	keep func(netip.Addr) bool
	// listed reports that some EndpointSlice lists an address of another node.
	listed func(netip.Addr) bool
}

// do works in the order that leaves no Service out for long. Urgent Services
// come first. An endpoint comes before the load balancers that lead to it, and
// goes after them, when no load balancer of anybody has it. What is not wanted
// any more goes before the rest comes, for it holds ports.
func (p *pass) do(w *work) {
	slices.SortStableFunc(w.units, func(a, b unit) int {
		return cmp.Or(rank(a.name)-rank(b.name), a.name.Compare(b.name))
	})
	p.detach(w.misled)
	for _, u := range w.units {
		if urgent(u.name) {
			p.ensureAll(u)
		}
	}
	for _, u := range w.units {
		for _, lb := range u.drops {
			p.drop(lb, u.name)
		}
	}
	for _, u := range w.units {
		if !urgent(u.name) {
			p.ensureAll(u)
		}
	}
	p.sweep(w)
}

func rank(n service.PortName) int {
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
		if _, err := p.endpointOf(t); err != nil {
			p.fail(u.name, err)
		}
	}
	for i := range u.wishes {
		if p.fatal != nil {
			return
		}
		if err := p.ensure(&u.wishes[i]); err != nil {
			p.fail(u.name, err)
		}
	}
}

// fail notes an error that concerns one port. An HNS that does not run fails
// everybody alike, as does the end of the context, so that ends the pass.
func (p *pass) fail(n service.PortName, err error) {
	if p.fatal != nil {
		return
	}
	if errors.Is(err, ErrNotRunning) || errors.Is(err, ErrMissing) || p.ctx.Err() != nil {
		p.fatal = err
		return
	}
	p.unsure = p.unsure || !onlyPending(err)
	p.relist = p.relist || !onlyPostponed(err)
	if errors.Is(err, ErrExists) || errors.Is(err, ErrNotFound) {
		p.stale = true
	}
	p.failed[n] = appendNew(p.failed[n], err)
}

func (p *pass) say(format string, args ...any) {
	if p.dry {
		p.lines = append(p.lines, fmt.Sprintf(format, args...))
	}
}

// ensure makes HNS hold w. With some endpoints missing it makes do with the
// others; with none at all it leaves what is there.
func (p *pass) ensure(w *Wish) error {
	lb := w.LoadBalancer
	var missing []error
	for _, t := range w.Targets {
		id, err := p.endpointOf(t)
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
		missing[i] = &reconcile.Lacking{Err: err}
	}
	if len(lb.Endpoints) > 0 {
		missing = append(missing, p.hold(&lb, w.For))
	}
	return errors.Join(missing...)
}

// hold makes HNS hold lb, whose ID is not set.
func (p *pass) hold(lb *LoadBalancer, n service.PortName) error {
	have := p.model.balancer(lb.Key)
	if have != nil {
		p.host.found(lb.Key)
	}
	switch {
	case have == nil:
		if text, recently := p.host.refused(lb); recently {
			return postponed(text + "; it is tried again in a while")
		}
		if p.host.short(lb) {
			return p.wantPorts(lb)
		}
		return p.create(lb, n, nil)
	case !p.ours(have):
		return fmt.Errorf("%s belongs to load balancer %s, which is not ours", lb.Key, have.ID)
	case have.same(lb):
		have.Kind = lb.Kind
		p.own(have, n)
		return nil
	case have.same(lb.with(have.Endpoints)) && p.host.changesInPlace(p.site.Version):
		return p.change(have, lb, n)
	}
	return p.spare(have, lb, n)
}

// with returns lb with other endpoints. Only they can be changed in place for
// all that is known of HNS.
func (lb *LoadBalancer) with(endpoints []string) *LoadBalancer {
	x := *lb
	x.Endpoints = endpoints
	return &x
}

// ours reports that have, which has the key we want, is ours to change. Load
// balancers have no names, so the key decides; but one that holds others'
// keys as well, or leads into another network, has another owner.
func (p *pass) ours(have *LoadBalancer) bool {
	if p.host.owns(have.ID) {
		return true
	}
	if len(have.More) > 0 {
		return false
	}
	return !slices.ContainsFunc(have.Endpoints, func(id string) bool {
		e := p.model.endpoint(id)
		return e != nil && e.Network != p.model.network
	})
}

func (p *pass) create(lb *LoadBalancer, n service.PortName, before []string) error {
	if !p.dry { // the plan may not have seen it coming
		p.host.intend(map[Key]service.PortName{lb.Key: n})
	}
	made, id, without, err := p.createBalancer(lb, before)
	if err != nil {
		p.doubt(lb)
		return p.taken(err, lb)
	}
	p.say("+ loadbalancer %s %s %s", made.Key, made.words(), p.names(made.Endpoints))
	p.creates[made.Key] = n
	p.put(id, made, n)
	if !p.dry {
		p.host.awaken(made.Endpoints)
		p.host.accepted(made, ownerOf(n))
	}
	return lacking(without)
}

func (p *pass) doubt(lb *LoadBalancer) {
	delete(p.owned, lb.Key)
	for _, id := range lb.Endpoints {
		p.doubtful[id] = true
	}
}

func (p *pass) put(id string, lb *LoadBalancer, n service.PortName) {
	made := *lb
	made.ID = id
	p.model.putBalancer(&made)
	p.own(&made, n)
}

// own notes that lb is ours. A dry pass notes what a later process would have
// to recognise without anything being done.
func (p *pass) own(lb *LoadBalancer, n service.PortName) {
	p.owned[lb.Key] = true
	if !p.dry {
		p.host.own(lb, n.String())
	} else if !p.host.owns(lb.ID) {
		p.adopts = append(p.adopts, adoption{lb, n})
	}
}

// adoption is a load balancer that is as it should be, and who it is for.
type adoption struct {
	lb   *LoadBalancer
	name service.PortName
}

// change changes have in place and looks whether it really was.
func (p *pass) change(have, lb *LoadBalancer, n service.PortName) error {
	request := *lb
	request.ID = have.ID
	made, got, without, err := p.updateBalancer(request, have.Endpoints)
	var e *Error
	switch {
	case errors.Is(err, ErrNotFound) && missingBalancer(err):
		p.forget(have, n)
		return p.create(lb, n, nil)
	case errors.As(err, &e) && e.Code == notImplemented, err == nil && !got.same(&made):
		p.host.neverInPlace(p.site.Version)
		return p.replace(have, lb, n)
	case err != nil:
		p.doubt(lb)
		return err
	}
	p.say("~ loadbalancer %s %s %s", lb.Key, lb.words(), p.difference(have.Endpoints, lb.Endpoints))
	p.model.removeBalancer(have)
	p.release(have, n)
	p.put(have.ID, &made, n)
	return lacking(without)
}

// missingBalancer tells a load balancer that is gone from an endpoint of it
// that is.
func missingBalancer(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Code != 0x803b0002
}

// replace deletes have and makes lb at once, the shortest gap there is. If HNS
// refuses lb, have is made again.
func (p *pass) replace(have, lb *LoadBalancer, n service.PortName) error {
	if err := p.postpone(have, lb, n); err != nil {
		have.Kind = lb.Kind
		p.own(have, n)
		return err
	}
	if err := p.deleteBalancer(have); err != nil {
		return err
	}
	p.say("- loadbalancer %s", have.Key)
	p.forget(have, n)
	err := p.create(lb, n, have.Endpoints)
	if err == nil || p.model.balancer(lb.Key) != nil {
		return err
	}
	return p.restore(have, lb, n, err)
}

// forget takes a load balancer that should be gone out of the model. In the
// record it stays until a listing is without it: HNS may say that it has deleted
// what it has not, and whose would it be then?
func (p *pass) forget(lb *LoadBalancer, n service.PortName) {
	p.model.removeBalancer(lb)
	p.release(lb, n)
}

func (p *pass) release(lb *LoadBalancer, n service.PortName) {
	for _, id := range lb.Endpoints {
		p.released[id] = n
	}
}

// drop deletes a load balancer that nobody wants.
func (p *pass) drop(lb *LoadBalancer, n service.PortName) {
	// By now it may have been made again, without an endpoint that was misled.
	if lb = p.model.balancer(lb.Key); lb == nil || p.fatal != nil {
		return
	}
	if err := p.deleteBalancer(lb); err != nil {
		p.fail(n, err)
		return
	}
	p.say("- loadbalancer %s", lb.Key)
	p.forget(lb, n)
}

// deleteBalancer tries twice: Windows Server 2019 fails now and then. What is
// gone already is as good as deleted.
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
