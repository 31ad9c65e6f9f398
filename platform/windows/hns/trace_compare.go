// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// missing records that HNS lacks the load balancer w, and why.
func (t *tracer) missing(w *DesiredLoadBalancer) {
	why := ""
	if text := t.backend.host.refusalText(w.Key); text != "" {
		why = ": " + text
	} else if !slices.ContainsFunc(w.Targets, t.hasEndpoint) {
		why = ": none of its endpoints is in HNS"
	}
	t.fault("no load balancer has %s, of %s%s", w.Key, w.PortName, why)
}

func (t *tracer) hasEndpoint(x Target) bool { return t.endpointFor(x) != nil }

// endpointFor returns the endpoint that a load balancer to x needs, nil if HNS does not
// have it.
func (t *tracer) endpointFor(x Target) *Endpoint {
	switch {
	case x.Location == Root:
		return t.model.endpointNamed(t.site.Options.RootEndpoint)
	case x.Location != Remote:
		if e := t.model.endpointAt(x.Addr, Local); e != nil || x.Location == Local {
			return e
		}
	}
	return t.model.endpointAt(x.Addr, Remote)
}

// compare records where lb, which has the key k, differs from the desired load balancer.
func (t *tracer) compare(lb *LoadBalancer, k Key, want *DesiredLoadBalancer) {
	owner := &pass{host: t.backend.host, model: t.model}
	switch {
	case want == nil && t.isLeftover(lb):
		if !t.want.Incomplete {
			t.fault("load balancer %s has %s, which no Service wants, and is kube-proxy's: it is left over", lb.ID, k)
		}
	case want == nil && t.concernsService():
		t.fault("load balancer %s has %s, and is not kube-proxy's", lb.ID, k)
	case want == nil:
		t.hop("load balancer "+lb.ID, "is not kube-proxy's")
	case !owner.owns(lb):
		t.fault("load balancer %s has %s of %s, and is not kube-proxy's", lb.ID, k, want.PortName)
		t.compareEndpoints(lb, want)
	default:
		t.compareProperties(lb, want)
		t.compareEndpoints(lb, want)
	}
}

func (t *tracer) compareProperties(lb *LoadBalancer, want *DesiredLoadBalancer) {
	differ := func(what string, have, should any) {
		if have != should {
			t.fault("load balancer %s has %s %v, and should have %v", lb.ID, what, have, should)
		}
	}
	differ("the target port", lb.TargetPort, want.TargetPort)
	differ("direct server return", onOff(lb.DSR), onOff(want.DSR))
	differ("the port flags", lb.Flags.String(), want.Flags.String())
	differ("the distribution", lb.Distribution, want.Distribution)
	if want.SourceVIP.IsValid() || lb.SourceVIP.IsValid() {
		differ("the source VIP", addrText(lb.SourceVIP), addrText(want.SourceVIP))
	}
	if lb.Unsupported {
		t.fault("load balancer %s has properties that kube-proxy never sets", lb.ID)
	}
	for _, x := range lb.ExtraKeys {
		t.fault("load balancer %s also has %s", lb.ID, x)
	}
}

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}

func addrText(a netip.Addr) string {
	if !a.IsValid() {
		return "none"
	}
	return a.String()
}

// compareEndpoints compares the endpoints of lb with the targets of want.
func (t *tracer) compareEndpoints(lb *LoadBalancer, want *DesiredLoadBalancer) {
	known := map[string]bool{}
	for _, x := range want.Targets {
		e := t.endpointFor(x)
		if e == nil {
			t.fault("HNS has no endpoint for %s", x.subject(t.site.Options))
			continue
		}
		known[e.ID] = true
		if !slices.Contains(lb.Endpoints, e.ID) {
			t.fault("load balancer %s lacks endpoint %s, %s", lb.ID, e.ID, e.describe())
		}
		if x.Location != Root && e.Remote && misrouted(e, x) {
			t.fault("endpoint %s is %s, and should be %s", e.ID, e.describe(), x.describe())
		}
	}
	for _, id := range lb.Endpoints {
		if e := t.model.endpoint(id); e != nil && !known[id] {
			t.fault("load balancer %s has endpoint %s, %s, which is none of %s", lb.ID, id, e.describe(), want.PortName)
		}
	}
}

// subject names t in a sentence.
func (t *Target) subject(o Options) string {
	switch t.Location {
	case Root:
		return fmt.Sprintf("the node itself, named %q", o.RootEndpoint)
	case Local:
		return t.Addr.String() + " of this node: the network plugin makes it"
	}
	return t.describe()
}

// refusalText returns why HNS refused a load balancer with key k the last time, empty if
// it did not.
func (h *Host) refusalText(k Key) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.refusals[k].text
}

// String names the flags, separated by spaces, or returns "none".
func (f PortFlags) String() string {
	var all []string
	for _, x := range flagWords {
		if f&x.flag != 0 {
			all = append(all, x.word)
			f &^= x.flag
		}
	}
	if f != 0 {
		all = append(all, fmt.Sprintf("0x%x", uint32(f)))
	}
	if len(all) == 0 {
		return "none"
	}
	return strings.Join(all, " ")
}

// affects reports whether the limit err concerns the frontend f.
func affects(err error, f service.Frontend) bool {
	u, ok := errors.AsType[*reconcile.UnsupportedError](err)
	return !ok || len(u.Affected) == 0 || slices.ContainsFunc(u.Affected, func(x service.Frontend) bool {
		return x.Kind == f.Kind && x.Addr == f.Addr && x.Port == f.Port
	})
}
