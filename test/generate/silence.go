// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package generate

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"kubeproxy/common/service"
	"kubeproxy/common/track"
)

// Silence has a Tracker choose the endpoints of drawn ports, of which some do not answer.
type Silence struct {
	w       Cluster
	drawn   []*service.Port
	tracker *track.Tracker
	silent  map[service.Address]time.Time
	policy  []track.Silent // of each port
}

var silentPolicy = rapid.SampledFrom([]track.Silent{"", "", track.SilentOn, track.SilentObserve, track.SilentOff})

// Silence gives a new Tracker the endpoints of ports.
func (w Cluster) Silence(ports []*service.Port) *Silence {
	s := &Silence{w: w, drawn: ports, policy: make([]track.Silent, len(ports))}
	listed := slices.ContainsFunc(ports, func(p *service.Port) bool { return p.Listed != nil })
	s.tracker = track.New(track.Options{NodeName: "node-a", NodePorts: service.AnyAddress(), Listed: listed, SilentEndpoints: track.SilentOn})
	s.tracker.Synced()
	for i, p := range ports {
		for j, e := range endpointsOf(p) {
			s.tracker.SetSlice(s.slice(i, j, e))
		}
	}
	return s
}

// endpointsOf returns all endpoints of p.
func endpointsOf(p *service.Port) []service.Endpoint {
	all := slices.Concat(p.Cluster, p.Local)
	slices.SortStableFunc(all, func(a, b service.Endpoint) int { return a.Addr.Compare(b.Addr) })
	return slices.CompactFunc(all, func(a, b service.Endpoint) bool { return a.Addr == b.Addr })
}

// Next draws who does not answer and what Services make of that, and returns the ports. It
// compares them with the rule: a silent endpoint is left out while others answer, at most half
// of them are, and those that are silent for longest come first.
func (s *Silence) Next() []*service.Port {
	s.silent = map[service.Address]time.Time{}
	for i, p := range s.drawn {
		s.policy[i] = silentPolicy.Draw(s.w.T, "silent policy")
		s.tracker.SetService(s.service(i))
		for _, e := range endpointsOf(p) {
			if since := s.w.DrawInt("silent since", 6) - 3; since >= 0 {
				s.silent[service.AddressOf(p.Name.Protocol, e.Addr)] = time.Unix(int64(since), 0)
			}
		}
	}
	s.tracker.SetSilent(s.silent)
	chosen := s.tracker.Latest()
	var ports []*service.Port
	for i, p := range s.drawn {
		q, found := *p, chosen.Port(p.Family, service.PortName{Namespace: "shop", Name: s.name(i), Port: "http", Protocol: p.Name.Protocol})
		if found == nil {
			s.w.T.Fatalf("the Tracker has no %s", s.name(i))
		}
		q.Cluster, q.Local, q.Draining, q.Listed = found.Cluster, found.Local, found.Draining, found.Listed
		all := endpointsOf(p)
		s.require(i, q.Cluster, all)
		if q.Internal == service.PolicyLocal || q.External == service.PolicyLocal {
			s.require(i, q.Local, slices.DeleteFunc(all, func(e service.Endpoint) bool { return !e.Local }))
		}
		ports = append(ports, &q)
	}
	return ports
}

// require requires that got has the endpoints among all that port i uses.
func (s *Silence) require(i int, got, all []service.Endpoint) {
	p, want := s.drawn[i], slices.Clone(all)
	since := func(e service.Endpoint) int64 {
		at, silent := s.silent[service.AddressOf(p.Name.Protocol, e.Addr)]
		if !silent {
			return 1e9
		}
		return at.Unix()
	}
	slices.SortStableFunc(want, func(a, b service.Endpoint) int { return cmp.Compare(since(a), since(b)) })
	n := slices.IndexFunc(want, func(e service.Endpoint) bool { return since(e) == 1e9 })
	if n > 0 && cmp.Or(s.policy[i], track.SilentOn) == track.SilentOn {
		want = want[min(n, len(want)/2):]
	}
	slices.SortFunc(want, func(a, b service.Endpoint) int { return a.Addr.Compare(b.Addr) })
	if !slices.EqualFunc(got, want, func(a, b service.Endpoint) bool { return a.Addr == b.Addr }) {
		s.w.T.Fatalf("%s, %s: the Tracker chose %v of %v, want %v; silent are %v", p.Name, s.policy[i], got, all, want, s.silent)
	}
}

func (s *Silence) name(i int) string { return fmt.Sprintf("web-%d", i) }

// service returns the Service of port i, of which only what decides about endpoints matters.
func (s *Silence) service(i int) *corev1.Service {
	p := s.drawn[i]
	policy := func(x service.Policy) string {
		if x == service.PolicyLocal {
			return "Local"
		}
		return "Cluster"
	}
	internal := corev1.ServiceInternalTrafficPolicy(policy(p.Internal))
	x := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: s.name(i)}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeNodePort, ClusterIPs: []string{NthAddr(s.w.base("10.96.0.0", "fd00:10:96::"), i).String()},
		InternalTrafficPolicy: &internal, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicy(policy(p.External)),
		Ports: []corev1.ServicePort{{Name: "http", Port: 80, NodePort: int32(30000 + i), Protocol: protocols[p.Name.Protocol]}},
	}}
	if text := s.policy[i]; text != "" {
		x.Annotations = map[string]string{track.AnnotationSilent: string(text)}
	}
	return x
}

var protocols = map[service.Protocol]corev1.Protocol{service.TCP: corev1.ProtocolTCP, service.UDP: corev1.ProtocolUDP, service.SCTP: corev1.ProtocolSCTP}

// slice returns the slice of endpoint j of port i.
func (s *Silence) slice(i, j int, e service.Endpoint) *discoveryv1.EndpointSlice {
	name, proto, port, node := "http", protocols[s.drawn[i].Name.Protocol], int32(e.Addr.Port()), "node-b"
	x := discoveryv1.Endpoint{Addresses: []string{e.Addr.Addr().String()}, NodeName: &node}
	switch {
	case e.Local:
		node = "node-a"
	case !e.Remote:
		x.NodeName = nil
	}
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprintf("web-%d-%d", i, j), Labels: map[string]string{discoveryv1.LabelServiceName: s.name(i)}},
		AddressType: discoveryv1.AddressType(s.w.Family.String()),
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Protocol: &proto, Port: &port}}, Endpoints: []discoveryv1.Endpoint{x},
	}
}
