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
	backoff
	want LoadBalancer
	text string // what HNS said
	// portTaken means that HNS said that the port is taken, and not by a load balancer
	// that was there to be replaced.
	portTaken bool
}

// serviceName names a Service.
type serviceName struct{ namespace, name string }

func serviceNameOf(n service.PortName) serviceName { return serviceName{n.Namespace, n.Name} }

// minServiceBackoff is how long the load balancers of a Service are not replaced after
// HNS refused to make one that it had before. The pause doubles as others do.
const minServiceBackoff = time.Minute

// postponedError is an error for what is not tried now, because HNS refused it a short
// time ago.
type postponedError string

func (p postponedError) Error() string { return string(p) }

// next returns r for one more failure at the time now.
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

// recordRefusal notes that HNS refused to make lb, and returns whether that is the first
// time in a row.
func (h *Host) recordRefusal(lb *LoadBalancer, text string, taken bool) (first bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.refusals) >= 1024 { // of Services that have gone, most of them
		clear(h.refusals)
	}
	r, known := h.refusals[lb.Key]
	if !taken && !r.want.equal(lb) { // a port that is taken is so whatever the load balancer leads to
		r.backoff = backoff{}
	}
	r.backoff, r.want, r.text, r.portTaken = r.next(h.now(), minBackoff), *lb, text, taken
	h.refusals[lb.Key] = r
	return !known
}

// recentRefusal returns what HNS said of lb if that was so recently that asking again
// is no use.
func (h *Host) recentRefusal(lb *LoadBalancer) (text string, recently bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r, known := h.refusals[lb.Key]
	return r.text, known && (r.portTaken || r.want.equal(lb)) && h.now().Before(r.until)
}

// clearPortTaken notes that there is a load balancer with key k after all.
func (h *Host) clearPortTaken(k Key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.refusals[k].portTaken {
		delete(h.refusals, k)
	}
}

// explainPortTaken explains an error that names no culprit. Whether a load balancer has the port
// is looked up once; if none has, HNS is asked again ever more rarely, and nothing is
// listed for that.
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

// listenerHint says who listens on the port of lb and what to do about it. HNS of Windows
// Server 2019 gives no load balancer a port that a program listens on at all addresses
// of the node (kubernetes/community#8883).
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

// nodeAddrPort returns an address and port of the node.
func (s *Site) nodeAddrPort(port uint16) string {
	if !s.NodeIP.IsValid() {
		return fmt.Sprintf("NODE-IP:%d", port)
	}
	return netip.AddrPortFrom(s.NodeIP, port).String()
}

// startServiceBackoff notes that HNS refuses a load balancer of Service o that it had before.
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

// clearRefusal notes that HNS made lb for Service o.
func (h *Host) clearRefusal(lb *LoadBalancer, o serviceName) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.refusals, lb.Key)
	if !lb.DSR {
		delete(h.portBackoff, portPoolOf(lb.Key))
	}
	delete(h.serviceBackoff, o)
}

// checkBackoff returns an error if have is not to be replaced by lb now. Each attempt
// costs the frontend a moment without a load balancer, or all of its traffic if
// HNS then refuses both lb and have.
func (p *pass) checkBackoff(have, lb *LoadBalancer, n service.PortName) error {
	if text, recently := p.host.recentRefusal(lb); recently {
		return postponedError(fmt.Sprintf("%s; %s leads to %s as before, and is tried again in a while", text, have.Key, p.formatEndpoints(have.Endpoints)))
	}
	if p.refusedServices[serviceNameOf(n)] || p.host.serviceInBackoff(serviceNameOf(n)) {
		return postponedError(fmt.Sprintf("HNS refuses another load balancer of the Service: %s leads to %s as before, and is tried again in a while", have.Key, p.formatEndpoints(have.Endpoints)))
	}
	return nil
}

// restore makes have again after HNS refused to make lb in its place, with err.
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
		if !errors.Is(restoreErr, ErrExists) { // else the port is what HNS refuses, not the Service
			p.host.startServiceBackoff(serviceNameOf(n))
		}
		return fmt.Errorf("%w; what was there before is refused as well: %w", err, restoreErr)
	}
	p.recordCreated(id, created, n)
	return fmt.Errorf("%w; it leads to %s as before", err, p.formatEndpoints(created.Endpoints))
}
