// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
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
	changes   reconcile.Changes                    // those of a dry pass
	creates   map[service.Address]service.PortName // load balancers that a dry pass would create
	adoptions []adoption                           // load balancers that a dry pass would keep unchanged
	owned     map[service.Address]bool             // load balancers that are certainly ours now
	failed    map[service.PortName][]error
	fatal     error // ends the pass
	// waiting means that a local endpoint is missing, moved that it is in another network and the
	// model's has none any more, stale that an answer did not match the model, stateUnknown that a
	// call failed, and relistEndpoints that listing endpoints may help.
	waiting, moved, stale, stateUnknown, relistEndpoints bool
	// missingByPool counts load balancers that are missing for want of dynamic ports.
	missingByPool map[service.Address]int
}

// attempts is what the steps of a pass have to know of earlier ones.
type attempts struct {
	// released holds endpoints that a load balancer no longer uses, and its Service port.
	released   map[string]service.PortName
	createErrs map[netip.Addr]error // endpoints that could not be created
	// uncertain has endpoints of a load balancer that HNS may have made despite an error.
	uncertain map[string]bool
	// refusedServices holds Services for which HNS rejected a replacement in this pass.
	// Their other load balancers are not replaced.
	refusedServices map[serviceName]bool
}

func newPass(ctx context.Context, h *Host, s *Site, f service.Family, m *model) *pass {
	return &pass{
		ctx: ctx, host: h, driver: h.driver, model: m, site: s, family: f,
		outcome: outcome{
			creates: map[service.Address]service.PortName{}, owned: map[service.Address]bool{}, failed: map[service.PortName][]error{}, missingByPool: map[service.Address]int{},
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

// fail records an error of a Service port. One that all ports would have ends the pass.
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

// ensureBalancer makes HNS hold lb, whose ID is not set.
func (p *pass) ensureBalancer(lb *LoadBalancer, n service.PortName) error {
	have := p.model.balancer(lb.Address)
	if have != nil {
		p.host.clearPortTaken(lb.Address)
	}
	switch {
	case have == nil:
		if text, recently := p.host.recentRefusal(lb); recently {
			return postponedError(text + "; it is tried again in a while")
		}
		if !lb.DSR && p.host.inBackoff(portPoolOf(lb.Address)) {
			return p.portShortageError(lb)
		}
		return p.create(lb, n, nil)
	case !p.host.mayChange(have, p.model):
		return fmt.Errorf("%s belongs to load balancer %s, which is not ours", lb.Address, have.ID)
	case have.equal(lb):
		have.Kind = lb.Kind
		p.recordOwned(have, n)
		return nil
	case have.equal(lb.withEndpoints(have.Endpoints)) && p.host.supportsInPlace(p.site.Version):
		return p.update(have, lb, n)
	}
	return p.replaceSkippingBackoff(have, lb, n)
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
		p.host.recordPending(map[service.Address]service.PortName{lb.Address: n})
	}
	created, id, partialErr, err := p.createBalancer(lb, before)
	if err != nil {
		p.markUncertain(lb)
		return p.explainPortTaken(err, lb)
	}
	if p.dry {
		p.addChange(n, "+ loadbalancer %s %s %s", created.Address, created.describe(), p.formatEndpoints(created.Endpoints))
	}
	p.creates[created.Address] = n
	p.recordCreated(id, created, n)
	if !p.dry {
		p.host.accepted(created, serviceNameOf(n))
	}
	return degraded(partialErr)
}

func (p *pass) markUncertain(lb *LoadBalancer) {
	delete(p.owned, lb.Address)
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
	p.owned[lb.Address] = true
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
		p.addChange(n, "~ loadbalancer %s %s %s", lb.Address, lb.describe(), p.formatDiff(have.Endpoints, lb.Endpoints))
	}
	p.release(notIn(have.Endpoints, sent.Endpoints), n)
	sent.ID = have.ID
	p.model.changeBalancer(have, &sent)
	p.recordOwned(&sent, n)
	return degraded(partialErr)
}

// isBalancerMissing reports whether the load balancer is missing, and no endpoint of it.
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
	p.addChange(n, "- loadbalancer %s", have.Address)
	p.forget(have, n)
	if !p.dry {
		p.host.noteRepair(have, lb)
	}
	err := p.create(lb, n, have.Endpoints)
	if err == nil || p.model.balancer(lb.Address) != nil {
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
	if lb = p.model.balancer(lb.Address); lb == nil || p.fatal != nil {
		return
	}
	if err := p.deleteBalancer(lb); err != nil {
		p.fail(n, err)
		return
	}
	p.addChange(n, "- loadbalancer %s", lb.Address)
	p.forget(lb, n)
	if !p.dry {
		p.host.forgetForm(lb.Address)
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

// createBalancer creates lb, without endpoints of local pods that are gone or have no switch port
// yet, and returns what it created. partialErr is why some are missing. before has the endpoints of
// the load balancer that lb replaces.
func (p *pass) createBalancer(lb *LoadBalancer, before []string) (created *LoadBalancer, id string, partialErr, err error) {
	made, err := p.driver.CreateLoadBalancer(p.ctx, *lb)
	var left []string
	switch {
	case errors.Is(err, ErrNotFound):
		left = p.existingEndpoints(lb.Endpoints)
	case isSwitchPortMissing(err):
		left, partialErr = p.attachedEndpoints(lb.Endpoints, before), err
	}
	if len(left) == 0 || len(left) == len(lb.Endpoints) {
		return lb, made.ID, nil, err
	}
	if partialErr != nil {
		for _, id := range notIn(lb.Endpoints, left) {
			p.host.startBackoff(id, minBackoff)
		}
	}
	lb = lb.withEndpoints(left)
	made, err = p.driver.CreateLoadBalancer(p.ctx, *lb)
	return lb, made.ID, partialErr, err
}

// updateBalancer does the same as createBalancer for a change in place.
func (p *pass) updateBalancer(lb LoadBalancer, before []string) (sent, got LoadBalancer, partialErr, err error) {
	got, err = p.driver.UpdateLoadBalancer(p.ctx, lb)
	if !isSwitchPortMissing(err) {
		return lb, got, nil, err
	}
	left := p.attachedEndpoints(lb.Endpoints, before)
	if len(left) == 0 || len(left) == len(lb.Endpoints) {
		return lb, got, nil, err
	}
	lb.Endpoints, partialErr = left, err
	got, err = p.driver.UpdateLoadBalancer(p.ctx, lb)
	return lb, got, partialErr, err
}

// isSwitchPortMissing reports whether some endpoint, HNS does not say which, has no switch port yet
// (HCN_E_PORT_NOT_FOUND, see microsoft/hcsshim#1043).
func isSwitchPortMissing(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == 0x803b0007
}

// attachedEndpoints returns the endpoints that are certainly on the switch: remote ones
// need no port there, and others are in load balancers already.
func (p *pass) attachedEndpoints(ids, before []string) []string {
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool {
		e := p.model.endpoint(id)
		return (e == nil || !e.Remote) && !has(before, id) && p.model.refCount(id) == 0
	})
}

// existingEndpoints returns ids without local endpoints that no longer exist, of which the network
// plugin does not tell. Until the next listing the Service uses the others.
func (p *pass) existingEndpoints(ids []string) []string {
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool {
		e := p.model.endpoint(id)
		if e == nil || e.Remote {
			return false
		}
		has, err := p.driver.HasEndpoint(p.ctx, id)
		if has || err != nil {
			return false
		}
		p.model.removeEndpoint(e)
		p.stale = true
		return true
	})
}

// replaceSkippingBackoff replaces have with lb, without the endpoints in backoff: each attempt to
// add one removes the Service's load balancer for a moment.
func (p *pass) replaceSkippingBackoff(have, lb *LoadBalancer, n service.PortName) error {
	less := lb.withEndpoints(slices.DeleteFunc(slices.Clone(lb.Endpoints), func(id string) bool {
		return !has(have.Endpoints, id) && p.host.inBackoff(id)
	}))
	if len(less.Endpoints) == 0 || len(less.Endpoints) == len(lb.Endpoints) {
		return p.replace(have, lb, n)
	}
	err := error(&reconcile.DegradedError{Err: pendingError(fmt.Sprintf("HNS refused load balancer %s with %s, whose switch port is not there yet; it is tried again in a while", lb.Address, p.formatDiff(less.Endpoints, lb.Endpoints)))})
	if have.equal(less) {
		have.Kind = lb.Kind
		p.recordOwned(have, n)
		return err
	}
	return errors.Join(p.replace(have, less, n), err)
}

// checkBackoff returns an error if have must not be replaced by lb now. An attempt leaves the
// frontend without any for a moment, or for long if HNS then rejects both.
func (p *pass) checkBackoff(have, lb *LoadBalancer, n service.PortName) error {
	if text, recently := p.host.recentRefusal(lb); recently {
		return postponedError(fmt.Sprintf("%s; %s leads to %s as before, and is tried again in a while", text, have.Address, p.formatEndpoints(have.Endpoints)))
	}
	if p.refusedServices[serviceNameOf(n)] || p.host.inBackoff(serviceNameOf(n)) {
		return postponedError(fmt.Sprintf("HNS refuses another load balancer of the Service: %s leads to %s as before, and is tried again in a while", have.Address, p.formatEndpoints(have.Endpoints)))
	}
	return nil
}

// restore creates have again after HNS rejected lb with err.
func (p *pass) restore(have, lb *LoadBalancer, n service.PortName, err error) error {
	if p.dry || errors.Is(err, ErrNotRunning) || errors.Is(err, ErrNotInstalled) || p.ctx.Err() != nil {
		return err
	}
	p.refusedServices[serviceNameOf(n)] = true
	p.host.recordRefusal(lb, err.Error(), false)
	old := have.withEndpoints(have.Endpoints)
	old.ID = ""
	created, id, _, restoreErr := p.createBalancer(old, have.Endpoints)
	if restoreErr != nil {
		p.markUncertain(old)
		if !errors.Is(restoreErr, ErrExists) { // otherwise HNS rejects the port, not the Service
			p.host.startBackoff(serviceNameOf(n), minServiceBackoff)
		}
		return fmt.Errorf("%w; what was there before is refused as well: %w", err, restoreErr)
	}
	p.recordCreated(id, created, n)
	return fmt.Errorf("%w; it leads to %s as before", err, p.formatEndpoints(created.Endpoints))
}

// explainPortTaken explains an error without a cause. The first time, HNS is listed to find who has
// that port. If nobody does, it retries at growing intervals without listing.
func (p *pass) explainPortTaken(err error, lb *LoadBalancer) error {
	var e *Error
	if !errors.As(err, &e) || e.Code != 0x803b0013 || p.dry {
		return err
	}
	if lack := p.checkPortShortage(lb); lack != nil {
		return lack
	}
	err = fmt.Errorf("%w; if no load balancer has %s, a program of this node listens there: %s", err, lb.Address, p.site.listenerHint(lb))
	if p.host.recordRefusal(lb, err.Error(), true) {
		return err
	}
	return postponedError(err.Error() + "; it is tried again in a while")
}

// checkPortShortage returns an error if HNS called a port taken for want of dynamic ports.
func (p *pass) checkPortShortage(lb *LoadBalancer) error {
	if lb.DSR || !p.portsExhausted(lb.Address) {
		return nil
	}
	p.host.startBackoff(portPoolOf(lb.Address), minBackoff)
	return p.portShortageError(lb)
}

// portsExhausted reports whether no block of ports is left. If the system does not report
// that, it counts the load balancers that need one, as if each had a block of its own.
func (p *pass) portsExhausted(k service.Address) bool {
	left, err := p.driver.PortsLeft(p.ctx, k)
	if err == nil {
		return !left
	}
	holders := p.model.sortedBalancers(func(lb *LoadBalancer) bool { return !lb.DSR && portPoolOf(lb.Address) == portPoolOf(k) })
	return (len(holders)+1)*PortBlockSize > UsualDynamicPorts
}

// portShortageError returns the error for lb, which is not created now.
func (p *pass) portShortageError(lb *LoadBalancer) error {
	p.missingByPool[portPoolOf(lb.Address)]++
	return postponedError(fmt.Sprintf("HNS refuses load balancer %s: no %d dynamic %s ports of the node are left; %s; it is tried again in a while",
		lb.Address, PortBlockSize, strings.ToUpper(lb.Protocol.String()), p.site.portShortageHint(lb.Address)))
}

// shortageText describes the pass's lack of ports without names of Services, "" for nil.
func (p *pass) shortageText() string {
	if p == nil {
		return ""
	}
	var all []string
	for _, protocol := range []service.Protocol{service.TCP, service.UDP} {
		k := service.Address{Family: p.family, Protocol: protocol}
		if n := p.missingByPool[portPoolOf(k)]; n > 0 {
			all = append(all, fmt.Sprintf("%d load balancers over %s and %s are missing: each one without direct server return takes %d dynamic ports of the node, and so many are not left; %s",
				n, p.family, strings.ToUpper(protocol.String()), PortBlockSize, p.site.portShortageHint(k)))
		}
	}
	return strings.Join(all, "; ")
}

// leftoverName returns a name for an object that belongs to no Service of the snapshot.
func leftoverName(purpose string, k service.Address) service.PortName {
	if n := service.ParsePortName(purpose); n != (service.PortName{}) {
		n.Protocol = k.Protocol
		return n
	}
	return service.PortName{Namespace: unknownNamespace, Name: "leftover"}
}

// unknownNamespace is the namespace in a name that stands for no known Service.
const unknownNamespace = "-"

// addChange adds a change to a dry pass's plan. n is the Service port of a load balancer.
func (p *pass) addChange(n service.PortName, format string, args ...any) {
	if !p.dry {
		return
	}
	c := reconcile.Change{Text: fmt.Sprintf(format, args...), Port: n}
	if n.Namespace == unknownNamespace {
		c = reconcile.Change{Text: c.String()}
	}
	p.changes = append(p.changes, c)
}

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

// formatDiff formats the difference of two sorted lists by address: IDs differ before Apply.
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
