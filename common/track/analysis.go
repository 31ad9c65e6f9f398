// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubeproxy/common/service"
	"kubeproxy/common/suggest"
)

// Code names a common mistake in objects. Codes do not change.
type Code string

// The codes. Problems of the last two kinds are in Analysis only.
const (
	PortMismatch      Code = "port-mismatch"
	ProtocolMismatch  Code = "protocol-mismatch"
	FamilyMismatch    Code = "family-mismatch"
	ClusterIPEndpoint Code = "endpoint-is-clusterip"
	AddressClaimed    Code = "address-claimed" // by two Services

	SliceWithoutService Code = "slice-without-service"
	NoSlice             Code = "no-slice" // for a Service with a selector
)

// mismatch is an EndpointSlice of a Service that has ready endpoints, and none for a port.
type mismatch struct {
	code  Code
	slice string
	ready int
	why   string // a clause about the endpoints
}

// text returns the mismatch as a clause, "" if there is none.
func (m mismatch) text() string {
	if m.code == "" {
		return ""
	}
	plural := "s"
	if m.ready == 1 {
		plural = ""
	}
	return fmt.Sprintf("slice %s has %d ready endpoint%s, %s", m.slice, m.ready, plural, m.why)
}

// mismatchOf returns the nearest miss if s has ready endpoints, and none of any state for p, whose
// origins are from. A family that other ports have counts for itself: pods may lack one.
func mismatchOf(s *serviceState, p *service.Port, from []origin) mismatch {
	if slices.ContainsFunc(from, func(o origin) bool { return len(o.slice.endpoints) > 0 }) {
		return mismatch{}
	}
	order := []Code{ProtocolMismatch, PortMismatch, FamilyMismatch, ""}
	var nearest mismatch
	for _, x := range s.slices {
		ready := x.ready()
		foreign := x.family != p.Family && slices.ContainsFunc(s.want, func(q *service.Port) bool { return q.Family == x.family })
		if ready == 0 || foreign {
			continue
		}
		if m := x.misses(p); slices.Index(order, m.code) < slices.Index(order, nearest.code) {
			m.slice, m.ready = x.name, ready
			nearest = m
		}
	}
	return nearest
}

// misses says why the endpoints of s are not for p.
func (s *slice) misses(p *service.Port) mismatch {
	if s.family != p.Family {
		return mismatch{code: FamilyMismatch, why: fmt.Sprintf("of %s, and the Service has %s addresses alone", s.family, p.Family)}
	}
	var ports []string
	for _, t := range s.ports {
		label := portLabel(t.name, t.proto)
		if t.name == p.Name.Port {
			return mismatch{code: ProtocolMismatch, why: fmt.Sprintf("on port %s, and the Service wants %s", label, portLabel(p.Name.Port, p.Name.Protocol))}
		}
		ports = append(ports, label)
	}
	on := "on no port"
	switch len(ports) {
	case 0:
	case 1:
		on = "on port " + ports[0]
	default:
		on = "on ports " + strings.Join(ports, ", ")
	}
	if p.Name.Port == "" {
		return mismatch{code: PortMismatch, why: fmt.Sprintf("%s, none without a name for %s", on, strings.ToUpper(p.Name.Protocol.String()))}
	}
	return mismatch{code: PortMismatch, why: fmt.Sprintf("%s, none named %s", on, portLabel(p.Name.Port, p.Name.Protocol))}
}

func portLabel(name string, proto service.Protocol) string {
	if name == "" {
		name = "(no name)"
	}
	return name + "/" + strings.ToUpper(proto.String())
}

// ready counts the endpoints that are ready.
func (s *slice) ready() int {
	n := 0
	for _, e := range s.endpoints {
		if e.state.has(ready) && !e.state.has(terminating) {
			n++
		}
	}
	return n
}

// Ready returns how many ready endpoints the slices of Services list, whichever this node uses.
func (t *Tracker) Ready() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for _, s := range t.slices {
		n += s.ready()
	}
	return n
}

// loose reports whether o has endpoints and names no Service.
func loose(o *discoveryv1.EndpointSlice) bool {
	_, headless := o.Labels[corev1.IsHeadlessService]
	return !headless && o.Labels[discoveryv1.LabelServiceName] == "" && o.AddressType != discoveryv1.AddressTypeFQDN && len(o.Endpoints) > 0
}

// unowned calls yield with each slice of a namespace, "" for all, that leads to no Service, its
// number of ready endpoints, and why. A proxy with a name knows no others' Services.
func (t *Tracker) unowned(namespace string, yield func(slice types.NamespacedName, owner string, ready int, why string)) {
	for name, n := range t.loose {
		if namespace == "" || name.Namespace == namespace {
			yield(name, "", n, "and names no Service by the label "+discoveryv1.LabelServiceName)
		}
	}
	if t.options.ProxyName != "" {
		return
	}
	for owner, s := range t.services {
		if s.want != nil || s.notes != nil || t.reasons[owner] != "" || namespace != "" && owner.Namespace != namespace {
			continue
		}
		for _, x := range s.slices {
			if n := x.ready(); n > 0 && !x.otherProxy {
				yield(types.NamespacedName{Namespace: owner.Namespace, Name: x.name}, owner.Name, n,
					fmt.Sprintf("and names service %s by the label %s, which does not exist", owner, discoveryv1.LabelServiceName))
			}
		}
	}
}

// meantFor says which slice without a Service seems to be meant for s, "" for none.
func (t *Tracker) meantFor(s *serviceState) string {
	found := ""
	t.unowned(s.name.Namespace, func(slice types.NamespacedName, owner string, ready int, why string) {
		similar := slice.Name == s.name.Name || strings.HasPrefix(slice.Name, s.name.Name+"-") || owner != "" && suggest.Closest(owner, []string{s.name.Name}) != ""
		text := mismatch{SliceWithoutService, slice.Name, ready, why}.text()
		if similar && (found == "" || text < found) {
			found = text
		}
	})
	return found
}

// missed says for a port without endpoints which slice has ready ones, and why not for it.
func (t *Tracker) missed(s *serviceState, p *service.Port, from []origin) string {
	if len(s.slices) == 0 {
		return t.meantFor(s)
	}
	return mismatchOf(s, p, from).text()
}

// settled is how long the endpoints of a new Service may take.
const settled = time.Minute

// Analysis returns all Problems, and mistakes without endpoints that are no Service's own: slices
// that lead to no Service, and Services with a selector without any slice.
func (t *Tracker) Analysis() []Problem {
	all := t.Problems()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unowned("", func(slice types.NamespacedName, owner string, ready int, why string) {
		all = append(all, Problem{
			Service: types.NamespacedName{Namespace: slice.Namespace, Name: owner}, Code: SliceWithoutService,
			Field: "endpointslice " + slice.Name + " labels", Message: mismatch{SliceWithoutService, slice.Name, ready, why}.text(),
		})
	})
	for name, s := range t.services {
		if len(s.want) == 0 || !s.selector || len(s.slices) > 0 || time.Since(time.Unix(s.created, 0)) < settled {
			continue
		}
		all = append(all, Problem{
			Service: name, Code: NoSlice, Field: "spec.selector",
			Message: "no EndpointSlice names the Service, not even an empty one, so nobody applied its selector",
		})
	}
	slices.SortFunc(all, compareProblems)
	return all
}
