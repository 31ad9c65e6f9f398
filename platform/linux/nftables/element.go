// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"kubeproxy/common/service"
)

// element is an entry of a set or map.
type element struct {
	in      *set
	key     []byte
	end     []byte  // last key of the range in an interval set, otherwise nil
	value   []byte  // the value in a targetMap or addrMap
	verdict verdict // the value in a verdictMap
	comment string  // shown in listings
	// catchAll marks the element that matches every key not in the set. expressions marks
	// an element with expressions that run when it matches. Our own elements have
	// neither.
	catchAll, expressions bool
}

// compare orders elements by set name, key and end of range.
func (e element) compare(o element) int {
	return cmp.Or(cmp.Compare(e.in.name, o.in.name), bytes.Compare(e.key, o.key), bytes.Compare(e.end, o.end))
}

// compareListed orders the elements of one set as they are listed: by each part of the key,
// numbers by their value. Slots are in host byte order.
func compareListed(a, b element) int {
	k := len(a.key) - slot.size(service.IPv4)
	if last := a.in.key[len(a.in.key)-1]; last != slot || len(a.key) != len(b.key) || k < 0 {
		return a.compare(b)
	}
	return cmp.Or(bytes.Compare(a.key[:k], b.key[:k]), cmp.Compare(binary.NativeEndian.Uint32(a.key[k:]), binary.NativeEndian.Uint32(b.key[k:])))
}

// same reports whether e and o, which have the same key, are equal.
func (e element) same(o element) bool {
	return e.verdict == o.verdict && e.comment == o.comment && bytes.Equal(e.value, o.value) && e.expressions == o.expressions
}

// text returns e in the syntax of nft(8).
func (e element) text(f service.Family) string {
	s := "*"
	if !e.catchAll {
		s = keyText(e.in.key, f, e.key, e.end)
	}
	if e.comment != "" {
		s += fmt.Sprintf(" comment %q", e.comment)
	}
	switch {
	case e.in.kind == verdictMap:
		s += " : " + e.verdict.text(f)
	case e.in.kind != plainSet:
		s += " : " + keyText(e.in.valueFields(), f, e.value, nil)
	}
	return s
}

// layout is a Port with the assignment of its endpoints to slots.
type layout struct {
	port  *service.Port
	slots slots
}

// size estimates the number of elements of l.
func (l layout) size() int {
	return 1 + len(l.port.Frontends)*(1+len(l.port.Cluster)+len(l.port.Local))
}

// elements returns all set elements of l, sorted, except those in the sets that Ports
// share by address.
func (l layout) elements() []element {
	return (&builder{layout: l}).build(l.size())
}

// changedElements returns the elements of l without those slots that hold the same
// endpoint in other. l and other must have the same routes.
func (l layout) changedElements(other layout) []element {
	return (&builder{layout: l, unchanged: other}).build(1 + 4*len(l.port.Frontends))
}

// sameRoutes reports whether the frontends of both Ports use the same sets and chains.
func sameRoutes(a, b *service.Port) bool {
	return a != nil && b != nil && a.Name == b.Name && a.Family == b.Family &&
		a.Affinity == 0 && b.Affinity == 0 &&
		a.Internal == b.Internal && a.External == b.External &&
		slices.EqualFunc(a.Frontends, b.Frontends, service.Frontend.SameAddress)
}

// build returns the elements. size is an estimate of their number.
func (b *builder) build(size int) []element {
	l := b.layout
	b.family = l.port.Family
	b.out = make([]element, 0, size)
	b.arena = make([]byte, 0, size*48)
	for i := range l.port.Frontends {
		b.frontend(&l.port.Frontends[i])
	}
	b.affinityElements()
	slices.SortFunc(b.out, element.compare)
	return b.out
}

// builder collects the elements of a layout. Their keys share one arena, which saves
// 200,000 allocations for 100,000 elements.
type builder struct {
	layout
	unchanged layout // see changedElements; without a port otherwise
	family    service.Family
	out       []element
	arena     []byte
}

// take returns the bytes appended to the arena since its length was from.
func (b *builder) take(from int) []byte { return slices.Clip(b.arena[from:]) }

// key returns the key of f in the sets that are keyed by frontend. It appends slot n,
// unless n is negative.
func (b *builder) key(f *service.Frontend, n int) []byte {
	from := len(b.arena)
	if f.Kind != service.NodePort {
		b.arena = appendAddr(b.arena, f.Addr)
	}
	b.arena = appendPort(appendProto(b.arena, b.port.Name.Protocol), f.Port)
	if n >= 0 {
		b.arena = appendSlot(b.arena, uint32(n))
	}
	return b.take(from)
}

func (b *builder) addr(a netip.AddrPort) []byte {
	from := len(b.arena)
	b.arena = appendPort(appendAddr(b.arena, a.Addr()), a.Port())
	return b.take(from)
}

func (b *builder) verdict(in *set, f *service.Frontend, v verdict) {
	b.out = append(b.out, element{in: in, key: b.key(f, -1), verdict: v})
}

// pick adds the slots of list w to the map of p and returns the verdict that leads to one
// of its endpoints. entry names the entry chain. "" stands for the chain of p.
func (b *builder) pick(p *picker, f *service.Frontend, w endpointList, entry string) verdict {
	n := b.layout.len(w)
	if n == 0 {
		return verdict{code: verdictDrop}
	}
	if b.port.Affinity > 0 {
		return gotoVerdict(b.clientChain(w, entry))
	}
	known := 0
	if b.unchanged.port != nil {
		known = b.unchanged.len(w)
	}
	for i := range n {
		at := b.at(w, i)
		if i < known && b.unchanged.at(w, i) == at {
			continue
		}
		b.out = append(b.out, element{in: p.targets, key: b.key(f, i), value: b.addr(at)})
	}
	if entry == "" {
		entry = p.name
	}
	return gotoVerdict(classChain(entry, classOf(n)))
}

// frontend adds the elements of f.
func (b *builder) frontend(f *service.Frontend) {
	if f.Sources != nil {
		b.restrict(f)
	}
	if f.Kind == service.NodePort && b.port.Name.Protocol == service.SCTP {
		b.out = append(b.out, element{in: unrelayed, key: b.key(f, -1)})
	}
	in, v := b.route(f)
	b.out = append(b.out, element{in: in, key: b.key(f, -1), verdict: v, comment: comment(b.port.Name)})
}

// route selects the chain according to the traffic policy. It returns the set that the
// frontend's element belongs to, and its verdict.
func (b *builder) route(f *service.Frontend) (*set, verdict) {
	entry, in, pickIn := "external", services, pickAddr
	if f.Kind == service.NodePort {
		entry, in, pickIn = "nodeport-external", nodePorts, pickNodePort
	}
	w := clusterList
	switch {
	case !b.port.HasEndpoints():
		return in, gotoVerdict(refuseChain)
	case f.Kind == service.ClusterIP:
		entry = "cluster"
		if b.port.Internal == service.PolicyLocal {
			w = localList
		}
	case b.port.External == service.PolicyLocal:
		return b.routeLocal(f), verdict{}
	}
	return in, b.pick(pickIn, f, w, entry)
}

// routeLocal adds the elements of an external frontend with policy Local. Pods and the
// node itself use one map, all other clients use the other. It returns the set of the
// frontend's element.
func (b *builder) routeLocal(f *service.Frontend) *set {
	if f.Kind == service.NodePort {
		b.verdict(nodePortInternalClients, f, b.pick(pickNodePortInternal, f, clusterList, ""))
		b.verdict(nodePortExternalClients, f, b.pick(pickNodePort, f, localList, ""))
		return nodePortLocal
	}
	b.verdict(internalClients, f, b.pick(pickInternal, f, clusterList, ""))
	b.verdict(externalClients, f, b.pick(pickAddr, f, localList, ""))
	return externalLocal
}

// restrict adds the source ranges of f.
func (b *builder) restrict(f *service.Frontend) {
	b.out = append(b.out, element{in: restricted, key: b.key(f, -1)})
	for _, p := range f.Sources {
		b.out = append(b.out, element{
			in:  sources,
			key: appendAddr(slices.Clone(b.key(f, -1)), p.Masked().Addr()),
			end: appendAddr(slices.Clone(b.key(f, -1)), lastAddr(p.Masked())),
		})
	}
}

// comment returns the comment of a Service's element. nft accepts at most 128 bytes
// (libnftnl: include/libnftnl/udata.h, NFTNL_UDATA_COMMENT_MAXLEN). A name that is cut ends
// with dots, so that it is not taken for another one.
func comment(n service.PortName) string {
	const most, dots = 120, "..."
	s := n.String()
	if len(s) > most {
		return s[:most-len(dots)] + dots
	}
	return s
}

// neededClasses returns the size classes that the port of l uses.
func (l layout) neededClasses() classes {
	var c classes
	p := l.port
	if p.Affinity > 0 {
		return c
	}
	for _, f := range p.Frontends {
		pick, in := pickAddr, pickInternal
		if f.Kind == service.NodePort {
			pick, in = pickNodePort, pickNodePortInternal
		}
		if n := len(p.Endpoints(f.Kind)); n > 0 {
			c.add(pick, classOf(n))
		}
		if f.Kind.External() && p.External == service.PolicyLocal && len(p.Cluster) > 0 {
			c.add(in, classOf(len(p.Cluster)))
		}
	}
	return c
}
