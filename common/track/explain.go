// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"kubeproxy/common/service"
)

// Candidate is an address that EndpointSlices list for a Service port, and how it is
// used.
type Candidate struct {
	Addr                        netip.AddrPort
	Node, Zone                  string // as the slice says, "" if it does not
	Local                       bool   // on this node
	Ready, Serving, Terminating bool
	// Cluster and ForLocal say whether it gets new connections under the traffic policy
	// Cluster and Local. ForLocal is zero if neither policy of the port is Local.
	Cluster, ForLocal Use
}

// State returns ready, not ready, serving (terminating, but still in service) or
// terminating.
func (c Candidate) State() string {
	switch {
	case c.Terminating && c.Serving:
		return "serving"
	case c.Terminating:
		return "terminating"
	case c.Ready:
		return "ready"
	}
	return "not ready"
}

// Use says whether an endpoint gets new connections, and why, as one clause.
type Use struct {
	Used bool
	Why  string
}

// Choice explains which endpoints a Port got.
type Choice struct {
	Candidates []Candidate // sorted by address
	Topology   string      // how topology hints are used, one clause; "" without hints
}

// Choice explains the endpoints of a Service port as the latest snapshot has them. The
// result is empty if the Service is not served.
func (t *Tracker) Choice(f service.Family, name service.PortName) Choice {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.services[types.NamespacedName{Namespace: name.Namespace, Name: name.Name}]
	if s == nil {
		return Choice{}
	}
	for _, p := range s.want {
		if p.Family == f && p.Name == name {
			index := indexOf(s)
			return t.choice(p, index.of(p))
		}
	}
	return Choice{}
}

func (t *Tracker) choice(p *service.Port, from []origin) Choice {
	c := chooser{zone: t.nodeInfo.zone}
	c.gather(from)
	c.choose(p)
	at := t.interner.placesOf(from)
	out := Choice{Topology: c.topologyText()}
	for _, e := range c.candidates {
		where, but := at[e.addr.Addr()], ""
		if holder := t.claims.holder[clusterIPKey(e.addr.Addr())]; holder.serviceState != nil {
			but = fmt.Sprintf(", but its address is the ClusterIP of service %s", holder.name)
		}
		x := Candidate{
			Addr: e.addr, Node: where.node, Zone: where.zone, Local: e.state.has(local),
			Ready: e.state.has(ready), Serving: e.state.has(serving), Terminating: e.state.has(terminating),
			Cluster: c.use(e, c.cluster, c.wantCluster),
		}
		if c.wantLocal != 0 {
			x.ForLocal = c.use(e, c.local, c.wantLocal)
			x.ForLocal.Why += but
		}
		x.Cluster.Why += but
		out.Candidates = append(out.Candidates, x)
	}
	return out
}

// placesOf returns where each address runs. Slices that list an address twice agree on it.
func (n *interner) placesOf(from []origin) map[netip.Addr]place {
	at := map[netip.Addr]place{}
	for _, s := range from {
		for i, e := range s.slice.endpoints {
			at[s.slice.addr(i)] = n.places[e.place]
		}
	}
	return at
}

// use says whether e is in list, which holds the candidates with all of want.
func (c *chooser) use(e candidate, list []service.Endpoint, want state) Use {
	_, used := slices.BinarySearchFunc(list, e.addr, func(x service.Endpoint, a netip.AddrPort) int { return x.Addr.Compare(a) })
	missing := want &^ e.state
	switch {
	case used && want.has(terminating|local):
		return Use{true, "it still serves, none here is ready"}
	case used && want.has(terminating):
		return Use{true, "it still serves, none is ready"}
	case used:
		return Use{true, "it is ready"}
	case missing.has(local):
		return Use{false, "it is not on this node"}
	case missing.has(ready) && e.state.has(terminating):
		return Use{false, "it terminates, and others are ready"}
	case missing.has(ready):
		return Use{false, "it is not ready"}
	case missing.has(terminating):
		return Use{false, "it is not ready, and does not terminate"}
	case missing.has(serving):
		return Use{false, "it terminates and serves no more"}
	case missing.has(forNode):
		return Use{false, "its hints are for other nodes"}
	case missing.has(forZone):
		return Use{false, fmt.Sprintf("its hints are for other zones than %s", c.zone)}
	}
	return Use{false, fmt.Sprintf("only the first %d by address are served", maxEndpoints)}
}

// topologyText says how the hints of ready endpoints are used.
func (c *chooser) topologyText() string {
	all, some := c.readyHints()
	switch preferred := c.topology(); {
	case preferred == forNode:
		return "the endpoints with a hint for this node are preferred"
	case preferred == forZone:
		return fmt.Sprintf("the endpoints with a hint for zone %s are preferred", c.zone)
	case some&(nodeHints|zoneHints) == 0:
		return ""
	case all&(nodeHints|zoneHints) == 0:
		return "the hints do not count, because not every ready endpoint has one"
	case all.has(zoneHints) && c.zone == "":
		return "the hints do not count, because the zone of this node is unknown"
	case all.has(zoneHints):
		return fmt.Sprintf("the hints do not count, because none is for zone %s", c.zone)
	}
	return "the hints do not count, because none is for this node"
}

// Claimants are the Services that claim one address and port.
type Claimants struct {
	Holder string // NAMESPACE/NAME, "" if no Service claims it
	// Others do not get it. Each has the reason as a clause: "shop/web, which ...".
	Others []string
}

// Claimants returns the Services that claim a Frontend of p's protocol and family.
func (t *Tracker) Claimants(p *service.Port, f service.Frontend) Claimants {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := addressOf(p, f)
	holder, taken := t.claims.holder[a]
	if !taken {
		return Claimants{}
	}
	out := Claimants{Holder: holder.name.String()}
	q := t.claims.queue[a]
	if q == nil {
		return out
	}
	others := slices.Clone(q.list)
	slices.SortFunc(others, compareClaims)
	for _, x := range others {
		if x.serviceState != holder.serviceState {
			out.Others = append(out.Others, fmt.Sprintf("%s, but %s has it, %s", x.name, holder.name, holder.reason(x.kind)))
		}
	}
	return out
}

// setReason records why a Service is not served at all, "" if it is or does not exist.
func (t *Tracker) setReason(name types.NamespacedName, reason string) {
	if reason == "" {
		delete(t.reasons, name)
		return
	}
	t.reasons[name] = reason
}

// Unproxied returns why a Service that exists is not served at all, as a clause without
// its subject. It returns "" for other names.
func (t *Tracker) Unproxied(name types.NamespacedName) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.reasons[name]
}

// ServicePorts lists the ports that a Service specifies, in their order, whether or not
// they are in the snapshot.
func (t *Tracker) ServicePorts(name types.NamespacedName) []*service.Port {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.services[name]
	if s == nil {
		return nil
	}
	return slices.Clone(s.want)
}

// Names lists the Services that this proxy handles, sorted, in one namespace or in all.
func (t *Tracker) Names(namespace string) []types.NamespacedName {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []types.NamespacedName
	for name, s := range t.services {
		if s.want != nil && (namespace == "" || name.Namespace == namespace) {
			all = append(all, name)
		}
	}
	slices.SortFunc(all, func(a, b types.NamespacedName) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return all
}
