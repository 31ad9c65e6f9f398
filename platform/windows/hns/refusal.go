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

// refusal is a load balancer that HNS rejected.
type refusal struct {
	backoff
	want LoadBalancer
	text string // the error text
	// portTaken means that HNS reported the port as taken, although no load balancer with
	// that key was replaced.
	portTaken bool
}

// serviceName identifies a Service.
type serviceName struct{ namespace, name string }

func serviceNameOf(n service.PortName) serviceName { return serviceName{n.Namespace, n.Name} }

// minServiceBackoff is the first period in which the load balancers of a Service are not
// replaced, after HNS rejected one that it had before. Like other backoffs it doubles.
const minServiceBackoff = time.Minute

// postponedError is the error for what is not tried now, because HNS rejected it
// recently.
type postponedError string

func (p postponedError) Error() string { return string(p) }

// next returns r after one more failure at the time now.
func (r backoff) next(now time.Time, first time.Duration) backoff {
	switch {
	case r.delay == 0:
		r.delay = first
	case now.Before(r.until):
		return r
	default:
		r.delay = min(2*r.delay, maxBackoff)
	}
	r.until = now.Add(r.delay)
	return r
}

// recordRefusal records that HNS rejected lb, and whether because its port is taken. It
// returns whether the reason is new. A port that HNS reports as taken after it rejected lb
// for another reason may be that of a load balancer that the listing does not have.
func (h *Host) recordRefusal(lb *LoadBalancer, text string, taken bool) (first bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.refusals) >= 1024 { // mostly of deleted Services
		clear(h.refusals)
	}
	r, known := h.refusals[lb.Key]
	first = !known || taken && !r.portTaken
	if first || !taken && !r.want.equal(lb) { // a taken port stays taken for any endpoints
		r.backoff = backoff{}
	}
	r.backoff, r.want, r.text, r.portTaken = r.next(h.now(), minBackoff), *lb, text, taken
	h.refusals[lb.Key] = r
	return first
}

// recentRefusal returns the error text for lb if HNS rejected it so recently that another
// attempt is pointless.
func (h *Host) recentRefusal(lb *LoadBalancer) (text string, recently bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r, known := h.refusals[lb.Key]
	return r.text, known && (r.portTaken || r.want.equal(lb)) && h.now().Before(r.until)
}

// clearPortTaken records that a load balancer with key k exists.
func (h *Host) clearPortTaken(k Key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.refusals[k].portTaken {
		delete(h.refusals, k)
	}
}

// explainPortTaken explains an error that does not name the cause. The first time, the
// backend lists HNS to find a load balancer with that port. If there is none, it retries
// at growing intervals without listing.
func (p *pass) explainPortTaken(err error, lb *LoadBalancer) error {
	var e *Error
	if !errors.As(err, &e) || e.Code != 0x803b0013 || p.dry {
		return err
	}
	if lack := p.checkPortShortage(lb); lack != nil {
		return lack
	}
	err = fmt.Errorf("%w; if no load balancer has %s, a program of this node listens there: %s", err, lb.Key, p.site.listenerHint(lb))
	if p.host.recordRefusal(lb, err.Error(), true) {
		return err
	}
	return postponedError(err.Error() + "; it is tried again in a while")
}

// listenerHint returns what probably listens on the port of lb, and the remedy. HNS of
// Windows Server 2019 creates no load balancer for a port that a program listens on at
// all addresses of the node (kubernetes/community#8883).
func (s *Site) listenerHint(lb *LoadBalancer) string {
	const newer = ", or use Windows Server 2022 or newer"
	switch o := s.Options; {
	case lb.Protocol != service.TCP:
	case o.HealthzPort != 0 && lb.Port == o.HealthzPort:
		return fmt.Sprintf("kube-proxy itself, for healthzBindAddress; set --healthz-bind-address to one address of the node, such as %s%s", s.nodeAddrPort(lb.Port), newer)
	case o.MetricsPort != 0 && lb.Port == o.MetricsPort:
		return fmt.Sprintf("kube-proxy itself, for metricsBindAddress; set --metrics-bind-address to one address of the node, such as %s, or to another port%s", s.nodeAddrPort(lb.Port), newer)
	case lb.Use() == "healthcheck":
		return "kube-proxy itself, for the healthCheckNodePort; set --nodeport-addresses to addresses of the node" + newer
	}
	command := "Get-NetTCPConnection -State Listen"
	if lb.Protocol == service.UDP {
		command = "Get-NetUDPEndpoint"
	}
	return fmt.Sprintf("%s -LocalPort %d names its process; have it listen elsewhere", command, lb.Port)
}

// nodeAddrPort formats an address and port of the node.
func (s *Site) nodeAddrPort(port uint16) string {
	if !s.NodeIP.IsValid() {
		return fmt.Sprintf("NODE-IP:%d", port)
	}
	return netip.AddrPortFrom(s.NodeIP, port).String()
}

// startServiceBackoff records that HNS rejects a load balancer that Service o had before.
func (h *Host) startServiceBackoff(o serviceName) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.serviceBackoff) >= 1024 {
		clear(h.serviceBackoff)
	}
	h.serviceBackoff[o] = h.serviceBackoff[o].next(h.now(), minServiceBackoff)
}

func (h *Host) serviceInBackoff(o serviceName) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now().Before(h.serviceBackoff[o].until)
}

// clearRefusal records that HNS created lb for Service o.
func (h *Host) clearRefusal(lb *LoadBalancer, o serviceName) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.refusals, lb.Key)
	if !lb.DSR {
		delete(h.portBackoff, portPoolOf(lb.Key))
	}
	delete(h.serviceBackoff, o)
}

// checkBackoff returns an error if have must not be replaced by lb now. Each attempt
// leaves the frontend without a load balancer for a moment, or for long if HNS then
// rejects both lb and have.
func (p *pass) checkBackoff(have, lb *LoadBalancer, n service.PortName) error {
	if text, recently := p.host.recentRefusal(lb); recently {
		return postponedError(fmt.Sprintf("%s; %s leads to %s as before, and is tried again in a while", text, have.Key, p.formatEndpoints(have.Endpoints)))
	}
	if p.refusedServices[serviceNameOf(n)] || p.host.serviceInBackoff(serviceNameOf(n)) {
		return postponedError(fmt.Sprintf("HNS refuses another load balancer of the Service: %s leads to %s as before, and is tried again in a while", have.Key, p.formatEndpoints(have.Endpoints)))
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
			p.host.startServiceBackoff(serviceNameOf(n))
		}
		return fmt.Errorf("%w; what was there before is refused as well: %w", err, restoreErr)
	}
	p.recordCreated(id, created, n)
	return fmt.Errorf("%w; it leads to %s as before", err, p.formatEndpoints(created.Endpoints))
}
