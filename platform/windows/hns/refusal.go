// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"errors"
	"fmt"
	"time"

	"kubeproxy/common/service"
)

// refusal is a load balancer that HNS refused to make.
type refusal struct {
	rest
	want LoadBalancer
	text string // what HNS said
}

// owner names a Service.
type owner struct{ namespace, name string }

func ownerOf(n service.PortName) owner { return owner{n.Namespace, n.Name} }

// firstHalt is how long the load balancers of a Service are not replaced after
// HNS refused to make one that it had before. The pause doubles as others do.
const firstHalt = time.Minute

// postponed is an error for what is not tried now, because HNS refused it a short
// time ago.
type postponed string

func (p postponed) Error() string { return string(p) }

// longer returns r for one more failure at the time now.
func (r rest) longer(now time.Time, first time.Duration) rest {
	switch {
	case r.pause == 0:
		r.pause = first
	case now.Before(r.until):
		return r
	default:
		r.pause = min(2*r.pause, longestRest)
	}
	r.until = now.Add(r.pause)
	return r
}

// refuse notes that HNS refused to make lb.
func (h *Host) refuse(lb *LoadBalancer, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.refusals) >= 1024 { // of Services that have gone, most of them
		clear(h.refusals)
	}
	r := h.refusals[lb.Key]
	if !r.want.same(lb) {
		r = refusal{want: *lb}
	}
	r.rest, r.text = r.longer(h.now(), firstRest), err.Error()
	h.refusals[lb.Key] = r
}

// refused returns what HNS said of lb if that was so recently that asking again
// is no use.
func (h *Host) refused(lb *LoadBalancer) (text string, recently bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r, known := h.refusals[lb.Key]
	return r.text, known && r.want.same(lb) && h.now().Before(r.until)
}

// halt notes that HNS refuses a load balancer of Service o that it had before.
func (h *Host) halt(o owner) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.halts) >= 1024 {
		clear(h.halts)
	}
	h.halts[o] = h.halts[o].longer(h.now(), firstHalt)
}

func (h *Host) halted(o owner) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now().Before(h.halts[o].until)
}

// accepted notes that HNS made a load balancer with key k for Service o.
func (h *Host) accepted(k Key, o owner) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.refusals, k)
	delete(h.halts, o)
}

// postpone returns an error if have is not to be replaced by lb now. Each attempt
// costs the frontend a moment without a load balancer, or all of its traffic if
// HNS then refuses both lb and have.
func (p *pass) postpone(have, lb *LoadBalancer, n service.PortName) error {
	if text, recently := p.host.refused(lb); recently {
		return postponed(fmt.Sprintf("%s; %s leads to %s as before, and is tried again in a while", text, have.Key, p.names(have.Endpoints)))
	}
	if p.refusing[ownerOf(n)] || p.host.halted(ownerOf(n)) {
		return postponed(fmt.Sprintf("HNS refuses another load balancer of the Service: %s leads to %s as before, and is tried again in a while", have.Key, p.names(have.Endpoints)))
	}
	return nil
}

// restore makes have again after HNS refused to make lb in its place, with err.
func (p *pass) restore(have, lb *LoadBalancer, n service.PortName, err error) error {
	if p.dry || errors.Is(err, ErrNotRunning) || errors.Is(err, ErrMissing) || p.ctx.Err() != nil {
		return err
	}
	p.refusing[ownerOf(n)] = true
	p.host.refuse(lb, err)
	old := have.with(have.Endpoints)
	old.ID = ""
	made, id, _, again := p.createBalancer(old, have.Endpoints)
	if again != nil {
		p.doubt(old)
		if !errors.Is(again, ErrExists) { // else the port is what HNS refuses, not the Service
			p.host.halt(ownerOf(n))
		}
		return fmt.Errorf("%w; what was there before is refused as well: %w", err, again)
	}
	p.put(id, made, n)
	return fmt.Errorf("%w; it leads to %s as before", err, p.names(made.Endpoints))
}
