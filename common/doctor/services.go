// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"net/netip"
	"strings"

	"kubeproxy/common/health/servicestate"
	"kubeproxy/common/service"
)

// Services returns what the proxy serves, as far as its answer has it: names, ClusterIPs, NodePorts
// and health check node ports. The answer does not say which addresses answer NodePorts,
// so all addresses count. Services returns nil if nobody answered.
func (p *Proxy) Services() *service.Snapshot {
	if p.Answer == nil {
		return nil
	}
	var ports []*service.Port
	for _, s := range p.Answer.Services {
		for i := range s.Ports {
			ports = append(ports, portOf(&s, &s.Ports[i]))
		}
	}
	return service.New(p.Answer.Generation, &service.Node{Name: p.Answer.Node, NodePorts: service.AnyAddress()}, ports)
}

func portOf(s *servicestate.Service, p *servicestate.Port) *service.Port {
	port := &service.Port{Name: service.PortName{Namespace: s.Namespace, Name: s.Name, Port: p.Port}}
	for _, protocol := range []service.Protocol{service.TCP, service.UDP, service.SCTP} {
		if strings.EqualFold(p.Protocol, protocol.String()) {
			port.Name.Protocol = protocol
		}
	}
	if p.Family == service.IPv6.String() {
		port.Family = service.IPv6
	}
	if s.HealthCheck != nil {
		port.HealthCheck = s.HealthCheck.Port
	}
	for _, f := range p.Frontends {
		addr, err := netip.ParseAddr(f.Address)
		switch {
		case f.Kind == service.NodePort.String():
			port.Frontends = append(port.Frontends, service.Frontend{Kind: service.NodePort, Port: f.Port})
		case f.Kind == service.ClusterIP.String() && err == nil:
			port.Frontends = append(port.Frontends, service.Frontend{Kind: service.ClusterIP, Addr: addr, Port: f.Port})
		}
	}
	return port
}
