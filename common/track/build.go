// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubeproxy/common/service"
)

// LabelProxyName assigns a Service to the proxy with that name. See
// https://kubernetes.io/docs/reference/labels-annotations-taints/.
const LabelProxyName = "service.kubernetes.io/service-proxy-name"

// annotationKeepVIP is the annotation that sets service.Port.KeepVIP if its value is
// "true".
const annotationKeepVIP = "preserve-destination"

// builder turns a Service into the Ports that it specifies. They are complete except for
// endpoints, and ignore other Services.
type builder struct {
	service        *corev1.Service
	interner       *interner
	ignoreExternal bool   // leave out spec.externalIPs
	proxyName      string // see Options
	notes          notes
	reason         string // why nothing is served, see unproxied

	serves   [2]bool       // families the Service has
	cluster  [2]netip.Addr // its ClusterIPs
	external [2][]netip.Addr
	balancer [2][]netip.Addr
	sources  [2][]netip.Prefix // of balancer addresses

	nodePorts bool
	taken     map[address]string // the path of the port that has it
}

// build returns nil for a Service that this proxy does not handle.
func (b *builder) build() []*service.Port {
	if b.reason = b.unproxied(); b.reason != "" {
		return nil
	}
	b.addresses()
	b.taken = make(map[address]string)
	ports := make([]*service.Port, 0, len(b.service.Spec.Ports))
	seen := make(map[service.PortName]string, len(b.service.Spec.Ports))
	template := b.template()
	for i := range b.service.Spec.Ports {
		name, ok := b.name(i)
		if !ok {
			continue
		}
		if first, dup := seen[name]; dup {
			b.notes.add(at("spec.ports", i)+".name", "%.80q is also the name of %s", name.Port, first)
			continue
		}
		seen[name] = at("spec.ports", i)
		for _, f := range service.Families {
			if b.serves[f] {
				p := template
				p.Name, p.Family = name, f
				p.Frontends = b.frontends(i, &p)
				ports = append(ports, &p)
			}
		}
	}
	if len(ports) == 0 {
		b.reason = "has no port that can be used"
	}
	return ports
}

// Named reports that s is for the proxy of that name, or for the one without a name.
func Named(s *corev1.Service, name string) bool {
	label, labelled := s.Labels[LabelProxyName]
	return labelled == (name != "") && label == name
}

// unproxied returns why no proxy, or another one, serves the Service, as a clause about it.
// It is empty if this one does.
func (b *builder) unproxied() string {
	spec := &b.service.Spec
	label, labelled := b.service.Labels[LabelProxyName]
	switch {
	case !Named(b.service, b.proxyName) && labelled:
		return fmt.Sprintf("is left to another proxy: its label %s is %q", LabelProxyName, label)
	case !Named(b.service, b.proxyName):
		return fmt.Sprintf("is left to another proxy: it has no label %s", LabelProxyName)
	case spec.Type == corev1.ServiceTypeExternalName:
		return fmt.Sprintf("is of type ExternalName: its name stands for %s in DNS, and no proxy takes part", cmp.Or(spec.ExternalName, "no name"))
	}
	switch spec.Type {
	case "", corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer:
	default:
		b.notes.add("spec.type", "%.80q is not ClusterIP, NodePort, LoadBalancer or ExternalName; taken as ClusterIP", spec.Type)
	}
	switch first := cmp.Or(spec.ClusterIP, cmp.Or(spec.ClusterIPs...)); first {
	case corev1.ClusterIPNone:
		return "is headless: its name stands for the pods in DNS, and no proxy takes part"
	case "":
		b.notes.add("spec.clusterIP", "not set, so the Service is not proxied: want an address, or None")
		return "has no ClusterIP, so no proxy serves it"
	}
	return ""
}

// template returns the fields that all ports of the Service share.
func (b *builder) template() service.Port {
	spec := &b.service.Spec
	template := service.Port{Affinity: b.affinity(), KeepVIP: b.service.Annotations[annotationKeepVIP] == "true"}
	if spec.InternalTrafficPolicy != nil {
		template.Internal = b.policy("spec.internalTrafficPolicy", string(*spec.InternalTrafficPolicy))
	}
	reachable := spec.Type == corev1.ServiceTypeNodePort || spec.Type == corev1.ServiceTypeLoadBalancer ||
		len(spec.ExternalIPs) > 0 && !b.ignoreExternal
	if reachable {
		template.External = b.policy("spec.externalTrafficPolicy", string(spec.ExternalTrafficPolicy))
	}
	template.HealthCheck = b.healthCheck(template.External)
	return template
}

// healthCheck returns the port on which load balancers query local endpoints. Only policy
// Local needs it.
func (b *builder) healthCheck(external service.Policy) uint16 {
	spec := &b.service.Spec
	n := spec.HealthCheckNodePort
	switch {
	case n == 0 || spec.Type != corev1.ServiceTypeLoadBalancer || external != service.PolicyLocal:
		return 0
	case n < 0 || n > 65535:
		b.notes.add("spec.healthCheckNodePort", "%d is not a port: want 1 to 65535", n)
		return 0
	}
	for i, p := range spec.Ports {
		if p.NodePort == n && (p.Protocol == corev1.ProtocolTCP || p.Protocol == "") {
			b.notes.add("spec.healthCheckNodePort", "%d is also %s.nodePort, so health checks are not answered", n, at("spec.ports", i))
			return 0
		}
	}
	return uint16(n)
}

func (b *builder) policy(field, value string) service.Policy {
	switch value {
	case "Local":
		return service.PolicyLocal
	case "", "Cluster":
	default:
		b.notes.add(field, "%.80q is not Cluster or Local; taken as Cluster", value)
	}
	return service.PolicyCluster
}

// maxAffinity is the API's limit in seconds: one day.
const maxAffinity = 86400

func (b *builder) affinity() time.Duration {
	spec := &b.service.Spec
	switch spec.SessionAffinity {
	case corev1.ServiceAffinityClientIP:
	case "", corev1.ServiceAffinityNone:
		return 0
	default:
		b.notes.add("spec.sessionAffinity", "%.80q is not ClientIP or None; taken as None", spec.SessionAffinity)
		return 0
	}
	seconds := corev1.DefaultClientIPServiceAffinitySeconds
	if c := spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		if t := *c.ClientIP.TimeoutSeconds; t >= 1 && t <= maxAffinity {
			seconds = t
		} else {
			b.notes.add("spec.sessionAffinityConfig.clientIP.timeoutSeconds",
				"%d is not between 1 and %d; taken as %d", t, maxAffinity, seconds)
		}
	}
	return time.Duration(seconds) * time.Second
}

func (b *builder) name(i int) (service.PortName, bool) {
	p := &b.service.Spec.Ports[i]
	if p.Port < 1 || p.Port > 65535 {
		b.notes.add(at("spec.ports", i)+".port", "%d is not a port: want 1 to 65535", p.Port)
		return service.PortName{}, false
	}
	proto, ok := protocolOf(p.Protocol)
	if !ok {
		b.notes.add(at("spec.ports", i)+".protocol", "%.80q is not TCP, UDP or SCTP", p.Protocol)
		return service.PortName{}, false
	}
	return service.PortName{
		Namespace: b.interner.intern(b.service.Namespace),
		Name:      b.service.Name,
		Port:      b.interner.intern(p.Name),
		Protocol:  proto,
	}, true
}

func protocolOf(p corev1.Protocol) (service.Protocol, bool) {
	switch p {
	case corev1.ProtocolTCP, "":
		return service.TCP, true
	case corev1.ProtocolUDP:
		return service.UDP, true
	case corev1.ProtocolSCTP:
		return service.SCTP, true
	}
	return 0, false
}

// frontends lists the addresses of port i in p's family, by kind and address. An address
// that is both a load balancer's and an external IP counts as the load balancer's, so
// that its source ranges apply.
func (b *builder) frontends(i int, p *service.Port) []service.Frontend {
	spec, number := &b.service.Spec.Ports[i], uint16(b.service.Spec.Ports[i].Port)
	path := at("spec.ports", i)
	list := make([]service.Frontend, 0, 1)
	add := func(kind service.Kind, addr netip.Addr, port uint16, sources []netip.Prefix) {
		f := service.Frontend{Kind: kind, Addr: addr, Port: port, Sources: sources}
		a := addressOf(p, f)
		if first, dup := b.taken[a]; !dup {
			b.taken[a] = path
			list = append(list, f)
		} else if first != path {
			b.notes.add(path, "%s is already served by %s", describe(p, f), first)
		}
	}
	if a := b.cluster[p.Family]; a.IsValid() {
		add(service.ClusterIP, a, number, nil)
	}
	switch n := spec.NodePort; {
	case !b.nodePorts || n == 0:
	case n < 0 || n > 65535:
		if p.Family == service.IPv4 || !b.serves[service.IPv4] { // once for both families
			b.notes.add(path+".nodePort", "%d is not a port: want 1 to 65535", n)
		}
	default:
		add(service.NodePort, netip.Addr{}, uint16(n), nil)
	}
	for _, a := range b.balancer[p.Family] {
		add(service.LoadBalancerIP, a, number, b.sources[p.Family])
	}
	for _, a := range b.external[p.Family] {
		add(service.ExternalIP, a, number, nil)
	}
	slices.SortFunc(list, compareFrontends)
	return list
}

func compareFrontends(a, b service.Frontend) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), a.Addr.Compare(b.Addr))
}

// describe names a frontend of p in messages.
func describe(p *service.Port, f service.Frontend) string {
	if f.Kind == service.NodePort {
		return fmt.Sprintf("%s %s %d/%s", p.Family, f.Kind, f.Port, p.Name.Protocol)
	}
	return fmt.Sprintf("%s %s/%s", f.Kind, netip.AddrPortFrom(f.Addr, f.Port), p.Name.Protocol)
}
