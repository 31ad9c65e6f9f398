// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"kubeproxy/common/service"
)

// refusal is a load balancer that HNS refused to make.
type refusal struct {
	rest
	want LoadBalancer
	text string // what HNS said
	// taken means that HNS said that the port is taken, and not by a load balancer
	// that was there to be replaced.
	taken bool
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

// refuse notes that HNS refused to make lb, and returns whether that is the first
// time in a row.
func (h *Host) refuse(lb *LoadBalancer, text string, taken bool) (first bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.refusals) >= 1024 { // of Services that have gone, most of them
		clear(h.refusals)
	}
	r, known := h.refusals[lb.Key]
	if !taken && !r.want.same(lb) { // a port that is taken is so whatever the load balancer leads to
		r.rest = rest{}
	}
	r.rest, r.want, r.text, r.taken = r.longer(h.now(), firstRest), *lb, text, taken
	h.refusals[lb.Key] = r
	return !known
}

// refused returns what HNS said of lb if that was so recently that asking again
// is no use.
func (h *Host) refused(lb *LoadBalancer) (text string, recently bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r, known := h.refusals[lb.Key]
	return r.text, known && (r.taken || r.want.same(lb)) && h.now().Before(r.until)
}

// found notes that there is a load balancer with key k after all.
func (h *Host) found(k Key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.refusals[k].taken {
		delete(h.refusals, k)
	}
}

// taken explains an error that names no culprit. Whether a load balancer has the port
// is looked up once; if none has, HNS is asked again ever more rarely, and nothing is
// listed for that.
func (p *pass) taken(err error, lb *LoadBalancer) error {
	var e *Error
	if !errors.As(err, &e) || e.Code != 0x803b0013 || p.dry {
		return err
	}
	if lack := p.portless(lb); lack != nil {
		return lack
	}
	err = fmt.Errorf("%w; if no load balancer has %s, a program of this node listens there: %s", err, lb.Key, p.site.listener(lb))
	if p.host.refuse(lb, err.Error(), true) {
		return err
	}
	return postponed(err.Error() + "; it is tried again in a while")
}

// listener says who listens on the port of lb and what to do about it. HNS of Windows
// Server 2019 gives no load balancer a port that a program listens on at all addresses
// of the node (kubernetes/community#8883).
func (s *Site) listener(lb *LoadBalancer) string {
	const newer = ", or use Windows Server 2022 or newer"
	switch o := s.Options; {
	case lb.Protocol != service.TCP:
	case o.HealthzPort != 0 && lb.Port == o.HealthzPort:
		return fmt.Sprintf("kube-proxy itself, for healthzBindAddress; set --healthz-bind-address to one address of the node, such as %s%s", s.own(lb.Port), newer)
	case o.MetricsPort != 0 && lb.Port == o.MetricsPort:
		return fmt.Sprintf("kube-proxy itself, for metricsBindAddress; set --metrics-bind-address to one address of the node, such as %s, or to another port%s", s.own(lb.Port), newer)
	case lb.Use() == "healthcheck":
		return "kube-proxy itself, for the healthCheckNodePort; set --nodeport-addresses to addresses of the node" + newer
	}
	command := "Get-NetTCPConnection -State Listen"
	if lb.Protocol == service.UDP {
		command = "Get-NetUDPEndpoint"
	}
	return fmt.Sprintf("%s -LocalPort %d names its process; have it listen elsewhere", command, lb.Port)
}

// own returns an address and port of the node.
func (s *Site) own(port uint16) string {
	if !s.NodeIP.IsValid() {
		return fmt.Sprintf("NODE-IP:%d", port)
	}
	return netip.AddrPortFrom(s.NodeIP, port).String()
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

// accepted notes that HNS made lb for Service o.
func (h *Host) accepted(lb *LoadBalancer, o owner) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.refusals, lb.Key)
	if !lb.DSR {
		delete(h.shortages, poolOf(lb.Key))
	}
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
	p.host.refuse(lb, err.Error(), false)
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
