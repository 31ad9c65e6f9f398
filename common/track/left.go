// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"slices"
	"time"

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

// AnnotationRebalance of a Service is the age of connections from which service.Port.Rebalance
// ends them, or "off".
const AnnotationRebalance = "kubeproxy.io/rebalance"

// rebalance reads AnnotationRebalance.
func (b *builder) rebalance(affinity time.Duration) time.Duration {
	text, set := b.service.Annotations[AnnotationRebalance]
	if !set || text == "off" {
		return 0
	}
	age, err := time.ParseDuration(text)
	switch {
	case err != nil || age < time.Second:
		b.notes.add("metadata.annotations["+AnnotationRebalance+"]", "%.80q is not off or a duration of at least 1s, such as 5m; taken as off", text)
		return 0
	case affinity > 0:
		b.notes.add("metadata.annotations["+AnnotationRebalance+"]", "clients with sessionAffinity ClientIP come back to the same endpoint; taken as off")
		return 0
	}
	return age
}

// Connection is whom an established connection leads from a Service to.
type Connection struct {
	Port     service.PortName // that has the frontend, zero if none has
	Endpoint service.Address
}

// Ending is the decision to end connections of a Service port.
type Ending struct {
	Connection
	Why   string // of the endpoint, one clause
	Count int
}

// Leaving says whether the endpoint of a Connection left.
type Leaving uint8

// An endpoint that is in a slice did not leave: one that terminates has graceful ends, and
// one that is not ready may come back. The pods of a dead node are terminating for good.
const (
	Stays       Leaving = iota
	NotServing          // no slice with it calls it ready or serving
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

// Left reports which of the connections lead to endpoints that left, and the nodes of endpoints
// that are in slices. It walks over all slices once. It is not settled while a Batch runs, as
// slices may be missing meanwhile.
func (t *Tracker) Left(all []Connection) (leaving []Leaving, nodes map[service.Address]string, settled bool) {
	listed := make(map[service.Address]Leaving, len(all))
	for _, c := range all {
		listed[c.Endpoint] = LeftAll
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.batching || !t.synced {
		return nil, nil, false
	}
	nodes = map[service.Address]string{}
	for _, s := range t.slices {
		s.eachAddress(func(a service.Address, e endpoint) {
			was, asked := listed[a]
			switch {
			case !asked:
				return
			case e.serves():
				listed[a] = Stays
			case was == LeftAll:
				listed[a] = NotServing
			}
			nodes[a] = t.interner.places[e.place].node
		})
	}
	leaving = make([]Leaving, len(all))
	for i, c := range all {
		switch s := t.services[types.NamespacedName{Namespace: c.Port.Namespace, Name: c.Port.Name}]; {
		case s != nil && s.closesLeft && !s.lists(c.Endpoint):
			leaving[i] = LeftService
		default:
			leaving[i] = listed[c.Endpoint]
		}
	}
	return leaving, nodes, true
}

// lists reports whether a slice of s has the endpoint.
func (s *serviceState) lists(asked service.Address) (found bool) {
	for _, x := range s.slices {
		x.eachAddress(func(a service.Address, _ endpoint) { found = found || a == asked })
	}
	return found
}

// eachAddress calls yield for each port of each endpoint.
func (s *slice) eachAddress(yield func(service.Address, endpoint)) {
	for i, e := range s.endpoints {
		a := s.addr(i)
		for _, p := range s.ports {
			yield(p.at(a), e)
		}
	}
}

// serves reports whether the conditions of e call it ready or serving.
func (e endpoint) serves() bool { return e.state&(ready|serving) != 0 }

// noteDepartures records whether endpoints of old may not be in fresh, or not serve there.
// fresh is nil if the slice was removed.
func (t *Tracker) noteDepartures(old, fresh *slice) {
	if fresh == nil || fresh.family != old.family || !slices.Equal(old.ports, fresh.ports) || !old.within(fresh) {
		t.departures[old.family]++
	}
}

// within reports whether t has all addresses of s, in their order, and those that serve do.
func (s *slice) within(t *slice) bool {
	j := 0
	for i, e := range s.endpoints {
		for j < len(t.endpoints) && s.addr(i) != t.addr(j) {
			j++
		}
		if j == len(t.endpoints) || e.serves() && !t.endpoints[j].serves() {
			return false
		}
		j++
	}
	return true
}
