// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"kubeproxy/common/explain"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
)

// Trace lists HNS and returns what it does with the first packet of c, for the snapshot want. local
// reports whether an address belongs to the node. It changes nothing. Only Windows knows which
// client an endpoint sees, so the Walk leaves that open.
func (b *Backend) Trace(ctx context.Context, want *service.Snapshot, c route.Conn, local func(netip.Addr) bool) (*explain.Walk, error) {
	l, err := b.host.driver.List(ctx, All)
	if err != nil {
		return nil, fmt.Errorf("list what HNS holds: %w", err)
	}
	w := &explain.Walk{ClientUnknown: true}
	site, reserve, err := b.discover(l, want.Node)
	if err != nil {
		w.Faults = []string{err.Error()}
		return w, nil
	}
	t := &tracer{backend: b, want: want, conn: c, site: site, balancers: l.LoadBalancers, model: newModel(l, site.Network.ID), out: w}
	t.hop(fmt.Sprintf("network %s", site.Network.Name), "%s, HNS %s", site.Network.Kind, site.Version)
	t.follow(local(c.To.Addr()))
	if reserve != nil && w.Action == route.Forward {
		t.fault("network %q has no endpoint %q, which reserves the source VIP", site.Network.Name, sourceVIPName)
	}
	t.limits()
	return w, nil
}

// Differences returns what HNS would do with c otherwise than Kubernetes says, on a node whose HNS holds l, once it holds
// what want asks for.
func Differences(want *service.Snapshot, c route.Conn, l Listing, o Options) ([]string, error) {
	p, err := planOffline(want, service.FamilyOf(c.To.Addr()), l, o)
	if err != nil {
		return nil, err
	}
	b := p.backend
	dry := newDryPass(context.Background(), b.host, &p.next.site, b.family, p.next.model)
	dry.perform(p.work)
	t := &tracer{backend: b, want: want, conn: c, site: p.next.site, model: dry.model, out: &explain.Walk{}}
	for _, lb := range dry.model.sortedBalancers(func(*LoadBalancer) bool { return true }) {
		t.balancers = append(t.balancers, *lb)
	}
	t.follow(c.ToNode)
	t.limits()
	if t.out.ByDesign != "" {
		return []string{t.out.ByDesign}, nil
	}
	return t.out.Notes, nil
}

// tracer follows a connection through a listing, and compares it with what should be there.
type tracer struct {
	backend   *Backend
	want      *service.Snapshot
	conn      route.Conn
	site      Site
	balancers []LoadBalancer
	model     *model
	// intended is the load balancer that should get the connection, nil if none should.
	intended *DesiredLoadBalancer
	out      *explain.Walk
}

func (t *tracer) hop(object, format string, args ...any) {
	t.out.Hops = append(t.out.Hops, explain.Hop{Object: object, Does: fmt.Sprintf(format, args...)})
}

func (t *tracer) fault(format string, args ...any) {
	t.out.Faults = append(t.out.Faults, fmt.Sprintf(format, args...))
}

// follow looks for a load balancer with the address of the destination. For an address of
// the node it then looks for one without an address.
func (t *tracer) follow(toNode bool) {
	k := service.AddressOf(t.conn.Protocol, t.conn.To)
	t.address(k.Addr)
	if t.meet(k) || !toNode {
		return
	}
	t.meet(k.OnNode())
}

// meet follows the connection to the load balancer with key k, and reports whether there is one.
func (t *tracer) meet(k service.Address) bool {
	want := t.wanted(k)
	t.intended = cmp.Or(t.intended, want)
	var found []*LoadBalancer
	for i := range t.balancers {
		if lb := &t.balancers[i]; lb.Address == k || slices.Contains(lb.ExtraKeys, k) {
			found = append(found, lb)
		}
	}
	if len(found) == 0 {
		if want != nil {
			t.explainAbsence(want)
		}
		return false
	}
	for _, lb := range found[1:] {
		t.fault("load balancer %s has %s too, as %s has", lb.ID, k, found[0].ID)
	}
	lb := found[0]
	t.hop("load balancer "+lb.ID, "%s %s%s", k, lb.describe(), ownerText(want))
	t.compare(lb, k, want)
	t.forward(lb, k, want)
	return true
}

func ownerText(want *DesiredLoadBalancer) string {
	if want == nil {
		return ""
	}
	return ", of " + want.PortName.String()
}

// wanted returns the load balancer that should have the key k, nil if none should.
func (t *tracer) wanted(k service.Address) *DesiredLoadBalancer {
	var shared *DesiredLoadBalancer
	for p := range t.want.Ports(t.backend.family) {
		for _, lb := range Desired(p, &t.site).LoadBalancers {
			switch {
			case lb.Address != k:
			case !lb.Shared:
				return &lb
			case shared != nil:
				shared.Flags |= lb.Flags
			default:
				shared = &lb
			}
		}
	}
	return shared
}

// mostHops is how many endpoints of a load balancer are hops of their own.
const mostHops = 8

// forward records where lb leads.
func (t *tracer) forward(lb *LoadBalancer, k service.Address, want *DesiredLoadBalancer) {
	t.out.Action, t.out.Targets = route.Forward, map[netip.AddrPort]bool{}
	port, known := lb.targetPort(k)
	if !known {
		t.hop("load balancer "+lb.ID, "has several ports, and it is unknown to which one it leads %s", k)
	}
	shown := 0
	for _, id := range lb.Endpoints {
		e := t.model.endpoint(id)
		if e == nil || len(e.Addrs) == 0 {
			t.fault("endpoint %s of load balancer %s is not in HNS, or has no address", id, lb.ID)
			continue
		}
		if known {
			t.out.Targets[netip.AddrPortFrom(e.addrIn(t.backend.family), port)] = false
		}
		if shown++; shown <= mostHops {
			t.hop("endpoint "+e.ID, "%s", e.describe())
		}
	}
	switch {
	case shown == 0:
		t.out.Action = route.Drop
		t.hop("load balancer "+lb.ID, "has no endpoint that exists, so nothing answers")
	case shown > mostHops:
		t.hop("endpoints", "%d more of the load balancer", shown-mostHops)
	}
	if want != nil && want.Shared || want == nil && !t.concernsService() && !t.isLeftover(lb) {
		t.out.Action, t.out.Targets = route.Pass, nil // as the rules of Services say
	}
}

// concernsService reports whether the destination belongs to a Service.
func (t *tracer) concernsService() bool { return route.Decide(t.want, t.conn).Port != nil }

func (t *tracer) isLeftover(lb *LoadBalancer) bool {
	return t.backend.isLeftover(&state{model: t.model}, lb)
}

// address follows a ClusterIP on an overlay to its remote endpoint, by which pods find the node.
func (t *tracer) address(vip netip.Addr) {
	for p := range t.want.Ports(t.backend.family) {
		for _, x := range Desired(p, &t.site).VIPs {
			if x.Addr != vip {
				continue
			}
			e := t.model.endpointAt(vip, Remote)
			switch {
			case e == nil:
				t.fault("there is no remote endpoint with the ClusterIP %s, by which pods find the node", vip)
			case misrouted(e, x):
				t.fault("endpoint %s is %s, and should be %s", e.ID, e.describe(), x.describe())
			}
			if e != nil {
				t.hop("endpoint "+e.ID, "%s: the ClusterIP is at the node", e.describe())
			}
			return
		}
	}
}

// limits returns what HNS cannot do for the connection and Kubernetes would.
func (t *tracer) limits() {
	v := route.Decide(t.want, t.conn)
	var model []netip.AddrPort
	for _, e := range v.Endpoints {
		model = append(model, e.Addr)
	}
	switch {
	case t.does(v.Action, model):
	case len(t.out.Faults) == 0 && t.asIntended():
		t.out.ByDesign = strings.Join(t.reasons(&v), "; ")
	default:
		t.out.Notes = append(t.out.Notes, t.reasons(&v)...)
	}
}

// does reports whether the connection has that action and those targets.
func (t *tracer) does(a route.Action, targets []netip.AddrPort) bool {
	for _, x := range targets {
		if _, found := t.out.Targets[x]; !found {
			return false
		}
	}
	return t.out.Action == a && len(targets) == len(t.out.Targets)
}

// asIntended reports whether the connection goes where ours should lead it.
func (t *tracer) asIntended() bool {
	if t.intended == nil || t.intended.Shared {
		return t.does(route.Pass, nil)
	}
	var targets []netip.AddrPort
	for _, x := range t.intended.Targets {
		targets = append(targets, netip.AddrPortFrom(x.Addr, t.intended.TargetPort))
	}
	return t.does(route.Forward, targets)
}

// reasons lists why HNS may differ from v.
func (t *tracer) reasons(v *route.Verdict) []string {
	if t.site.Unavailable != "" {
		return []string{fmt.Sprintf("nothing is programmed for %s: %s", t.backend.family, t.site.Unavailable)}
	}
	if v.Port == nil && t.out.Action == route.Forward && t.conn.ToNode {
		return []string{everyNodePort}
	}
	var all []string
	if t.out.Action == route.Pass && (v.Action == route.Reject || v.Action == route.Drop) {
		all = append(all, "HNS can neither refuse nor drop a connection: without a load balancer it is not changed")
	}
	if v.Port == nil {
		return all
	}
	d := Desired(v.Port, &t.site)
	for _, err := range d.Limits {
		if affects(err, *v.Frontend) {
			all = append(all, err.Error())
		}
	}
	if v.Action == route.Drop { // source ranges that are ignored
		for _, n := range d.Notes {
			all = append(all, n.Text)
		}
	}
	if t.site.keepsHere(v.Port, *v.Frontend) {
		all = append(all, keptHere)
	}
	if v.Frontend.Kind.External() && v.Port.External == service.PolicyLocal {
		all = append(all, localForAll)
	}
	return all
}

// explainAbsence records that HNS lacks the load balancer w, and why.
func (t *tracer) explainAbsence(w *DesiredLoadBalancer) {
	why := ""
	if text := t.backend.host.refusalText(w.Address); text != "" {
		why = ": " + text
	} else if !slices.ContainsFunc(w.Targets, t.hasEndpoint) {
		why = ": none of its endpoints is in HNS"
	}
	t.fault("no load balancer has %s, of %s%s", w.Address, w.PortName, why)
}

func (t *tracer) hasEndpoint(x Target) bool { return t.endpointFor(x) != nil }

// endpointFor returns the endpoint that a load balancer to x needs, nil if HNS lacks it.
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
func (t *tracer) compare(lb *LoadBalancer, k service.Address, want *DesiredLoadBalancer) {
	switch {
	case want == nil && t.isLeftover(lb):
		if !t.want.Incomplete {
			t.fault("load balancer %s has %s, which no Service wants, and is kube-proxy's: it is left over", lb.ID, k)
		}
	case want == nil && t.concernsService():
		t.fault("load balancer %s has %s, and is not kube-proxy's", lb.ID, k)
	case want == nil:
		t.hop("load balancer "+lb.ID, "is not kube-proxy's")
	case !t.backend.host.mayChange(lb, t.model):
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

// affects reports whether the limit err concerns the frontend f.
func affects(err error, f service.Frontend) bool {
	u, ok := errors.AsType[*reconcile.UnsupportedError](err)
	return !ok || len(u.Affected) == 0 || slices.ContainsFunc(u.Affected, func(x service.Frontend) bool {
		return x.Kind == f.Kind && x.Addr == f.Addr && x.Port == f.Port
	})
}
