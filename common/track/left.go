// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"bytes"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubeproxy/common/service"
)

// AnnotationClose is the annotation of a Service that ends connections of its clients
// beyond those to endpoints that are gone. Its only value is CloseLeft.
const AnnotationClose = "kubeproxy.io/close-connections"

// CloseLeft ends connections to endpoints that left the Service, also if they answer.
const CloseLeft = "left"

// closesLeft reads AnnotationClose.
func closesLeft(o *corev1.Service, notes *notes) bool {
	value, set := o.Annotations[AnnotationClose]
	if set && value != CloseLeft {
		notes.add("metadata.annotations["+AnnotationClose+"]", "%.80q is not %s; taken as not set", value, CloseLeft)
	}
	return value == CloseLeft
}

// Connection is whom an established connection leads from a Service to.
type Connection struct {
	Port     service.PortName // that has the frontend, zero if none has
	Endpoint service.Address
}

// Leaving says whether the endpoint of a Connection left.
type Leaving uint8

// An endpoint that is in a slice stays whatever its state is: one that terminates has
// graceful ends, and one that is not ready may come back.
const (
	Stays       Leaving = iota
	LeftAll             // it is in no slice of any Service
	LeftService         // it is in no slice of this Service, which asks for the end of such connections
)

// Departures counts changes of slices by which endpoints of f may have left. Like Left, it
// is for one who looks for connections to such endpoints.
func (t *Tracker) Departures(f service.Family) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.departures[f]
}

// Left reports which of the connections lead to endpoints that left. It walks over all
// slices once. It is not settled while a Batch runs, as slices may be missing meanwhile.
func (t *Tracker) Left(all []Connection) (leaving []Leaving, settled bool) {
	listed := make(map[service.Address]bool, len(all))
	for _, c := range all {
		listed[c.Endpoint] = false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.batching || !t.synced {
		return nil, false
	}
	for _, s := range t.slices {
		s.eachAddress(func(a service.Address) {
			if _, asked := listed[a]; asked {
				listed[a] = true
			}
		})
	}
	leaving = make([]Leaving, len(all))
	for i, c := range all {
		switch s := t.services[types.NamespacedName{Namespace: c.Port.Namespace, Name: c.Port.Name}]; {
		case s != nil && s.closesLeft && !s.lists(c.Endpoint):
			leaving[i] = LeftService
		case !listed[c.Endpoint]:
			leaving[i] = LeftAll
		}
	}
	return leaving, true
}

// lists reports whether a slice of s has the endpoint.
func (s *serviceState) lists(endpoint service.Address) (found bool) {
	for _, x := range s.slices {
		x.eachAddress(func(a service.Address) { found = found || a == endpoint })
	}
	return found
}

// eachAddress calls yield for each port of each endpoint.
func (s *slice) eachAddress(yield func(service.Address)) {
	for i := range s.endpoints {
		a := s.addr(i)
		for _, p := range s.ports {
			yield(service.AddressOf(p.proto, netip.AddrPortFrom(a, p.port)))
		}
	}
}

// noteDepartures records whether endpoints of old may not be in fresh, which is nil if the
// slice was removed.
func (t *Tracker) noteDepartures(old, fresh *slice) {
	if fresh == nil || fresh.family != old.family || !slices.Equal(old.ports, fresh.ports) || !old.within(fresh) {
		t.departures[old.family]++
	}
}

// within reports whether t has all addresses of s, in their order.
func (s *slice) within(t *slice) bool {
	rest, w := t.addrs, s.width()
	for a := range slices.Chunk(s.addrs, w) {
		for len(rest) > 0 && !bytes.Equal(rest[:w], a) {
			rest = rest[w:]
		}
		if len(rest) == 0 {
			return false
		}
		rest = rest[w:]
	}
	return true
}
