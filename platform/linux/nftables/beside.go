// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"net/netip"
	"slices"

	"kubeproxy/common/service"
)

// A table beside IPVS sees the first packet of a connection before a virtual
// server does, and again if none took it. Most ClusterIPs are in it with their
// address alone: what is special has an element in one of the plain sets.

// doors are the sets for one kind of key.
type doors struct {
	key             []field
	refused         *set // nobody serves
	dropped         *set // somebody serves, but the policy leaves nobody
	external        *set // policy Cluster: masqueraded
	local           *set // policy Local: clients are told apart
	insideDropped   *set // for pods and the node, nobody is left
	outsideDropped  *set // for everybody else
	insideTargets   *set // where pods and the node go instead
	outsideTargets  *set // where everybody else goes instead
	entry, in, from string
}

// Those for addresses of Services, and those for NodePorts.
var (
	addrDoors     = newDoors("", addrKey)
	nodePortDoors = newDoors("nodeport-", nodePortKey)

	virtualIPs = &set{name: "virtual-ips", kind: plainSet, key: []field{daddr}}

	besideSets = slices.Concat([]*set{virtualIPs, clusterIPs, hairpin, restricted, sources}, addrDoors.sets(), nodePortDoors.sets())
)

func newDoors(prefix string, key []field) *doors {
	plain := func(name string) *set { return &set{name: prefix + name, kind: plainSet, key: key} }
	target := func(name string) *set { return &set{name: prefix + name, kind: targetMap, key: key} }
	return &doors{
		key: key, refused: plain("refused"), dropped: plain("dropped"), external: plain("external"), local: plain("external-local"),
		insideDropped: plain("inside-dropped"), outsideDropped: plain("outside-dropped"),
		insideTargets: target("inside-targets"), outsideTargets: target("outside-targets"),
		entry: prefix + "enter", in: prefix + "inside", from: prefix + "local",
	}
}

func (d *doors) sets() []*set {
	return []*set{d.refused, d.dropped, d.external, d.local, d.insideDropped, d.outsideDropped, d.insideTargets, d.outsideTargets}
}

func (d *doors) is(in *set) lookup { return lookup{d.key, in, false} }

// chains decide about a connection to one of d's frontends, each chain
// before those that refer to it.
func (d *doors) chains(f service.Family, node *service.Node, bit uint32) []*chain {
	return []*chain{
		{name: d.in, rules: []rule{
			{d.is(d.insideDropped), verdict{code: dropIt}},
			{translate{d.key, 0, d.insideTargets}},
			{leave},
		}},
		{name: d.from, rules: append(podRules(f, node, goes(d.in)),
			rule{isLocal{saddr}, mark{bit}, goes(d.in)},
			rule{d.is(d.outsideDropped), verdict{code: dropIt}},
			rule{translate{d.key, 0, d.outsideTargets}},
			rule{leave},
		)},
		{name: d.entry, rules: []rule{
			{d.is(d.refused), goes(refuseChain)},
			{d.is(d.dropped), verdict{code: dropIt}},
			{d.is(d.local), goes(d.from)},
			{d.is(d.external), mark{bit}, leave},
		}},
	}
}

const (
	unservedChain  = "unserved"
	refuseNewChain = "refuse-new"
)

// behindIPVS is the priority of what virtual servers did not take. A chain of
// type nat would not see the node's own connections there, which another one has
// seen on their way out.
const behindIPVS = srcNAT + 10

// leave hands a connection on to IPVS. An address of the node may be a
// Service's, too, whose port then goes before a NodePort.
var leave = verdict{code: acceptIt}

// besideChains are the chains that such a table always has.
func besideChains(f service.Family, node *service.Node, o Options) []*chain {
	bit := o.mark()
	chains := []*chain{
		{name: refuseChain, rules: []rule{
			{isProto{service.TCP}, reject{tcp: true}},
			{reject{}},
		}},
		{name: markChain, rules: markRules(f, node, bit)},
	}
	chains = append(append(chains, addrDoors.chains(f, node, bit)...), nodePortDoors.chains(f, node, bit)...)
	return append(chains,
		&chain{name: dispatchChain, rules: besideDispatch(f, node)},
		&chain{name: refuseNewChain, rules: []rule{
			{answer{}, lookup{[]field{origDaddr}, virtualIPs, false}, verdict{code: goBack}},
			{goes(refuseChain)},
		}},
		&chain{name: unservedChain, rules: unservedRules(f, node)},
		&chain{name: unallocatedChain, rules: []rule{
			{translated{}, verdict{code: goBack}},
			{isLocal{daddr}, verdict{code: goBack}},
			{verdict{code: dropIt}},
		}},
		&chain{name: "prerouting", hook: &hook{"prerouting", dstNAT}, rules: []rule{{jump(dispatchChain)}}},
		&chain{name: "output", hook: &hook{"output", dstNAT}, rules: []rule{{jump(dispatchChain)}}},
		&chain{name: "input", filter: true, hook: &hook{"input", behindIPVS}, rules: []rule{
			{isProto{service.TCP}, jump(unservedChain)},
			{isProto{service.UDP}, jump(unservedChain)},
			{isProto{service.SCTP}, jump(unservedChain)},
		}},
		&chain{name: "postrouting", hook: &hook{"postrouting", srcNAT}, rules: append(unallocatedRules(f, node),
			rule{marked{bit}, unmark{bit}, masquerade{}},
			rule{lookup{[]field{saddr, daddr}, hairpin, false}, masquerade{}},
		)},
	)
}

// besideDispatch finds out what is special about a connection.
func besideDispatch(f service.Family, node *service.Node) []rule {
	rules := []rule{
		{lookup{addrKey, restricted, false}, lookup{append(addrKey[:3:3], saddr), sources, true}, verdict{code: dropIt}},
		{jump(addrDoors.entry)},
		{lookup{[]field{daddr}, clusterIPs, false}, goes(markChain)},
	}
	for _, a := range ownAddrs(f, node) {
		if node.AnswersNodePorts(a) {
			rules = append(rules, rule{within{daddr, netip.PrefixFrom(a, a.BitLen()), false}, goes(nodePortDoors.entry)})
		}
	}
	return rules
}

// unservedRules refuse what no virtual server took: the node has the address
// for Services only, and nothing else that listens is meant by it. Answers pass:
// under kube-proxy the node's own connections to Services come from the
// Service's address, and they outlive its rules.
func unservedRules(f service.Family, node *service.Node) []rule {
	rules := []rule{{lookup{[]field{daddr}, clusterIPs, false}, goes(refuseNewChain)}}
	for _, a := range ownAddrs(f, node) {
		rules = append(rules, rule{within{daddr, netip.PrefixFrom(a, a.BitLen()), false}, verdict{code: goBack}})
	}
	return append(rules, rule{lookup{[]field{daddr}, virtualIPs, false}, goes(refuseNewChain)})
}

func ownAddrs(f service.Family, node *service.Node) []netip.Addr {
	var own []netip.Addr
	for _, a := range node.Addrs {
		if service.FamilyOf(a) == f {
			own = append(own, a)
		}
	}
	return own
}

// besideElements returns what l puts into sets that are its own.
func (l layout) besideElements() []element {
	b := &builder{layout: l, family: l.port.Family}
	for i := range l.port.Frontends {
		f := &l.port.Frontends[i]
		if f.Sources != nil {
			b.restrict(f)
		}
		d := addrDoors
		if f.Kind == service.NodePort {
			d = nodePortDoors
		}
		b.door(d, f)
	}
	slices.SortFunc(b.out, element.compare)
	return b.out
}

// door puts f into the sets that make it special, if it is.
func (b *builder) door(d *doors, f *service.Frontend) {
	p := b.port
	member := func(in *set) { b.out = append(b.out, element{in: in, key: b.key(f, -1), comment: comment(p.Name)}) }
	switch {
	case !p.Served():
		member(d.refused)
	case f.Kind.External() && p.External == service.PolicyLocal:
		member(d.local)
		b.split(d, f)
	case len(p.Endpoints(f.Kind)) == 0:
		member(d.dropped)
	case f.Kind.External():
		member(d.external)
	}
}

// split tells clients inside and outside apart. The virtual server of f has
// one list of endpoints, see Direct; who needs the other one is led to the
// ClusterIP, which has that.
func (b *builder) split(d *doors, f *service.Frontend) {
	p := b.port
	if len(p.Cluster) == 0 {
		b.out = append(b.out, element{in: d.insideDropped, key: b.key(f, -1)})
	}
	if len(p.Local) == 0 {
		b.out = append(b.out, element{in: d.outsideDropped, key: b.key(f, -1)})
	}
	to, found := clusterIPOf(p)
	if !found { // one list has to do for all
		return
	}
	switch {
	case p.Internal == service.PolicyCluster && len(p.Cluster) > 0:
		b.out = append(b.out, element{in: d.insideTargets, key: b.key(f, -1), value: b.addr(to)})
	case p.Internal == service.PolicyLocal && len(p.Local) > 0:
		b.out = append(b.out, element{in: d.outsideTargets, key: b.key(f, -1), value: b.addr(to)})
	}
}

// Direct returns the endpoints that the virtual server for frontends of kind
// k has beside such a table: with external policy Local those that its
// ClusterIP has not.
func Direct(p *service.Port, k service.Kind) []service.Endpoint {
	switch {
	case !k.External() || p.External == service.PolicyCluster:
		return p.Endpoints(k)
	case Plain(p, k):
		return p.Local
	}
	return p.Cluster
}

// Plain reports that it is the virtual server for frontends of kind k that the
// table leads clients outside to that are not masqueraded, so that an endpoint
// elsewhere would answer them itself.
func Plain(p *service.Port, k service.Kind) bool {
	_, found := clusterIPOf(p)
	byClusterIP := found && p.Internal == service.PolicyLocal
	return p.External == service.PolicyLocal && k.External() != byClusterIP
}

func clusterIPOf(p *service.Port) (netip.AddrPort, bool) {
	for _, f := range p.Frontends {
		if f.Kind == service.ClusterIP {
			return netip.AddrPortFrom(f.Addr, f.Port), true
		}
	}
	return netip.AddrPort{}, false
}

// staleDoors removes p's frontends from sets that they were in for another
// reason than they have now. Nothing else would, as long as a snapshot is
// partial.
func (c *comparison) staleDoors(l layout, want []element) []op {
	wanted := map[string]bool{}
	for _, e := range want {
		wanted[e.in.name+string(e.key)] = true
	}
	var ops []op
	b := &builder{layout: l, family: l.port.Family}
	for i := range l.port.Frontends {
		f := &l.port.Frontends[i]
		d := addrDoors
		if f.Kind == service.NodePort {
			d = nodePortDoors
		}
		k := string(b.key(f, -1))
		for _, s := range append(d.sets(), restricted) {
			held := c.table.sets[s.name]
			if held == nil || wanted[s.name+k] {
				continue
			}
			if e, found := held.elements[k]; found {
				delete(held.elements, k)
				e.in = s
				ops = append(ops, op{verb: delElement, element: e})
			}
		}
	}
	return ops
}
