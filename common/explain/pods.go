// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"net/netip"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubeproxy/common/ipaddr"
	"kubeproxy/common/source"
)

// Pods is a Sink that passes everything on, and remembers which pods the endpoints are.
type Pods struct {
	source.Sink
	known map[types.NamespacedName]pod
}

type pod struct {
	addrs []netip.Addr
	node  string
}

// NewPods returns a Pods that passes everything to sink. A nil sink is for slices alone.
func NewPods(sink source.Sink) *Pods {
	return &Pods{sink, map[types.NamespacedName]pod{}}
}

// SetSlice implements source.Sink.
func (p *Pods) SetSlice(o *discoveryv1.EndpointSlice) {
	if p.Sink != nil {
		p.Sink.SetSlice(o)
	}
	for i := range o.Endpoints {
		e := &o.Endpoints[i]
		if e.TargetRef == nil || e.TargetRef.Kind != "Pod" || len(e.Addresses) == 0 {
			continue
		}
		addr, err := ipaddr.Parse(e.Addresses[0])
		if err != nil {
			continue // the tracker reports it
		}
		id := types.NamespacedName{Namespace: o.Namespace, Name: e.TargetRef.Name}
		known := p.known[id]
		if !slices.Contains(known.addrs, addr) {
			known.addrs = append(known.addrs, addr)
		}
		if e.NodeName != nil {
			known.node = *e.NodeName
		}
		p.known[id] = known
	}
}

// Find returns the addresses of a pod and the name of its node. It knows the pods that
// EndpointSlices refer to.
func (p *Pods) Find(id types.NamespacedName) ([]netip.Addr, string, error) {
	known, ok := p.known[id]
	if !ok {
		return nil, "", &UnknownPodError{id}
	}
	return known.addrs, known.node, nil
}

// UnknownPodError means that no EndpointSlice refers to a pod, so that its addresses are
// not known.
type UnknownPodError struct{ Pod types.NamespacedName }

// Error implements error.
func (e *UnknownPodError) Error() string {
	return fmt.Sprintf("no EndpointSlice refers to pod %s by targetRef: give its address instead", e.Pod)
}
