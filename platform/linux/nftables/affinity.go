// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"maps"
	"slices"
	"strings"

	"kubeproxy/common/service"
)

// A Port with session affinity owns a few objects for each endpoint list that it uses.
// One clients map per target port (nearly always there is one port) records which
// endpoint a client used. The rules fill it after the destination was translated. The
// members set holds the endpoints. Rules record a client only for a member, so no client
// returns to an endpoint that was removed. A chain looks the client up first and
// otherwise picks a random endpoint. The clients map holds addresses without ports,
// because nft 1.0.6 cannot parse an update statement with an IPv6 address and a port.

var (
	slotKey   = []field{slot}
	clientKey = []field{saddr}
)

// servicePortID returns the part of chain and set names that identifies n. It is short,
// readable and stable. The hash keeps it unique where the readable part is cut off.
func servicePortID(n service.PortName) string {
	sum := sha256.Sum256([]byte(n.Namespace + "\x00" + n.Name + "\x00" + n.Port + "\x00" + n.Protocol.String()))
	id := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:5]))
	readable := n.Namespace + "/" + n.Name + "/" + n.Protocol.String()
	if n.Port != "" {
		readable += "/" + n.Port
	}
	return id + "-" + readable[:min(len(readable), 72)]
}

// objectName returns the name of an object for one of the endpoint lists of n. It holds
// only letters, digits, slashes, hyphens and dots, so nft reads it without quotes.
func objectName(what string, w service.Policy, n service.PortName) string {
	if w == service.PolicyLocal {
		what += "-local"
	}
	return what + "-" + servicePortID(n)
}

// group holds the endpoints of one list that share a port number.
type group struct {
	port    uint16
	clients *set            // the clients map of these endpoints
	members map[string]bool // the endpoints' addresses, as bytes
}

// groups returns the groups of w, sorted by port. It returns nil if the Port has no
// session affinity or does not use w.
func (l layout) groups(w service.Policy) []group {
	p := l.port
	if p == nil || p.Affinity == 0 || !usesList(p, w) {
		return nil
	}
	var groups []group
	for _, e := range p.EndpointsFor(w) {
		i, found := slices.BinarySearchFunc(groups, e.Addr.Port(), func(g group, port uint16) int {
			return int(g.port) - int(port)
		})
		if !found {
			groups = slices.Insert(groups, i, group{e.Addr.Port(), clientSet(p, w, e.Addr.Port()), map[string]bool{}})
		}
		groups[i].members[string(e.Addr.Addr().AsSlice())] = true
	}
	return groups
}

// clientSet returns the clients map for one target port. Its name contains the timeout,
// because a kernel without commit 123b99619cca (Linux 6.2) ignores another timeout for an
// existing map.
func clientSet(p *service.Port, w service.Policy, port uint16) *set {
	name := objectName(fmt.Sprintf("clients-%s-%d", seconds(p.Affinity), port), w, p.Name)
	return &set{name: name, kind: addrMap, key: clientKey, timeout: p.Affinity, limit: clientLimit}
}

func memberSet(p *service.Port, w service.Policy) *set {
	return &set{name: objectName("members", w, p.Name), kind: plainSet, key: targetFields}
}

func choiceSet(p *service.Port, w service.Policy) *set {
	return &set{name: objectName("choices", w, p.Name), kind: targetMap, key: slotKey}
}

// clientChain returns the name of the affinity chain for list w. entry selects the
// variant that marks packets first. An empty entry selects the one that does not mark.
func (b *builder) clientChain(w service.Policy, entry string) string {
	switch entry {
	case "":
		return objectName("affinity", w, b.port.Name)
	case "cluster":
		return objectName("affinity-cluster", w, b.port.Name)
	}
	return objectName("affinity-external", w, b.port.Name)
}

// usesList reports whether a frontend of p may send traffic to list w.
func usesList(p *service.Port, w service.Policy) bool {
	if len(p.EndpointsFor(w)) == 0 {
		return false
	}
	for _, f := range p.Frontends {
		if p.Policy(f.Kind) == w || w == service.PolicyCluster && f.Kind.External() {
			return true
		}
	}
	return false
}

// affinityElements adds the elements of the port's own sets, and the elements that send a
// translated connection to the chain that records its client.
func (b *builder) affinityElements() {
	if b.port.Affinity == 0 || !b.port.HasEndpoints() {
		return
	}
	for _, w := range service.Policies {
		if !usesList(b.port, w) {
			continue
		}
		members, choices := memberSet(b.port, w), choiceSet(b.port, w)
		for i := range b.layout.len(w) {
			to := b.addr(b.at(w, i))
			from := len(b.arena)
			b.arena = appendSlot(b.arena, uint32(i))
			b.out = append(b.out,
				element{in: choices, key: b.take(from), value: to},
				element{in: members, key: to})
		}
	}
	for i := range b.port.Frontends {
		f := &b.port.Frontends[i]
		in := affinity
		if f.Kind == service.NodePort {
			in = nodePortAffinity
		}
		b.verdict(in, f, gotoVerdict(objectName("remember", service.PolicyCluster, b.port.Name)))
	}
}

// affinitySets returns the sets that only p uses.
func affinitySets(p *service.Port) []*set {
	var sets []*set
	if p == nil || p.Affinity == 0 || !p.HasEndpoints() {
		return nil
	}
	for _, w := range service.Policies {
		if usesList(p, w) {
			sets = append(sets, memberSet(p, w), choiceSet(p, w))
			for _, g := range (layout{port: p}).groups(w) {
				sets = append(sets, g.clients)
			}
		}
	}
	return sets
}

// affinityChains returns the chains that only p uses.
func affinityChains(p *service.Port, o Options) []*chain {
	if p == nil || p.Affinity == 0 || !p.HasEndpoints() {
		return nil
	}
	recorder := &chain{name: objectName("remember", service.PolicyCluster, p.Name)}
	chains := []*chain{recorder}
	for _, w := range service.Policies {
		if !usesList(p, w) {
			continue
		}
		chooser := &chain{name: objectName("affinity", w, p.Name)}
		is := isProto{p.Name.Protocol}
		for _, g := range (layout{port: p}).groups(w) {
			recorder.rules = append(recorder.rules, rule{toPort{g.port}, lookup{targetFields, memberSet(p, w), false}, recordClient{g.clients}})
			chooser.rules = append(chooser.rules, rule{is, affinityDNAT{g.clients, g.port}})
		}
		chooser.rules = append(chooser.rules, rule{is, dnat{slotKey, uint32(len(p.EndpointsFor(w))), choiceSet(p, w)}})
		chains = append(chains, chooser,
			&chain{name: objectName("affinity-cluster", w, p.Name), rules: []rule{{jumpVerdict(markChain)}, {gotoVerdict(chooser.name)}}},
			&chain{name: objectName("affinity-external", w, p.Name), rules: []rule{{mark{o.mark()}}, {gotoVerdict(chooser.name)}}})
	}
	return chains
}

// shared counts how many users each shared element has: ClusterIPs, and the endpoints
// that may reach themselves through a Service.
type shared map[sharedKey]int32

type sharedKey struct {
	in   *set
	addr string // the bytes of the address
}

func newShared() shared { return shared{} }

// add adds p if n is 1, and removes it if n is -1.
func (s shared) add(p *service.Port, n int32) {
	if p == nil {
		return
	}
	s.addFrontends(p, n)
	s.addEndpoints(p.Cluster, n)
	s.addEndpoints(p.Local, n)
}

// replace removes from and adds to. Either may be nil.
func (s shared) replace(from, to *service.Port) {
	if from == nil || to == nil {
		s.add(from, -1)
		s.add(to, 1)
		return
	}
	s.addFrontends(from, -1)
	s.addFrontends(to, 1)
	for _, w := range service.Policies {
		removed, added := service.TrimCommon(from.EndpointsFor(w), to.EndpointsFor(w))
		s.addEndpoints(removed, -1)
		s.addEndpoints(added, 1)
	}
}

func (s shared) addFrontends(p *service.Port, n int32) {
	for _, f := range p.Frontends {
		if f.Kind == service.ClusterIP {
			s.count(clusterIPs, f.Addr.AsSlice(), n)
		}
	}
}

func (s shared) addEndpoints(list []service.Endpoint, n int32) {
	for _, e := range list {
		if !e.Remote {
			s.count(hairpin, e.Addr.Addr().AsSlice(), n)
		}
	}
}

func (s shared) count(in *set, addr []byte, n int32) {
	k := sharedKey{in, string(addr)}
	if s[k] += n; s[k] == 0 {
		delete(s, k)
	}
}

func (k sharedKey) element() element {
	key := []byte(k.addr)
	if k.in == hairpin {
		key = append(key, key...)
	}
	return element{in: k.in, key: key}
}

// compare orders keys as their elements.
func (k sharedKey) compare(l sharedKey) int {
	return cmp.Or(cmp.Compare(k.in.name, l.in.name), cmp.Compare(k.addr, l.addr))
}

// elements returns the elements with at least one user, sorted.
func (s shared) elements() []element {
	var out []element
	for _, k := range slices.SortedFunc(maps.Keys(s), sharedKey.compare) {
		out = append(out, k.element())
	}
	return out
}

// sharedChange adds or deletes a shared element. It takes a sixth of the memory of its op.
type sharedChange struct {
	sharedKey
	verb verb
}

// sharedUnit bounds the changes in one unit.
const sharedUnit = 1024

// appendShared appends units that make changes, in order.
func appendShared(units []unit, changes []sharedChange) []unit {
	slices.SortFunc(changes, func(x, y sharedChange) int { return x.compare(y.sharedKey) })
	for part := range slices.Chunk(changes, sharedUnit) {
		units = append(units, unit{shared: part})
	}
	return units
}

// sharedOps returns the ops that make changes.
func sharedOps(changes []sharedChange) []op {
	ops := make([]op, 0, len(changes))
	for _, c := range changes {
		ops = append(ops, c.op())
	}
	return ops
}

func (c sharedChange) op() op { return op{verb: c.verb, element: c.element()} }

// compareShared compares the elements that Ports share with the table.
func (c *comparison) compareShared() {
	var different []op
	var missing []sharedChange
	for k := range c.next.shared {
		if observed := c.table.sets[k.in.name]; observed != nil {
			e := k.element()
			if _, found := observed.elements[elementKey(e)]; found {
				different = c.compareElements(different, e)
				continue
			}
		}
		missing = append(missing, sharedChange{k, addElement})
	}
	if len(different) > 0 {
		slices.SortStableFunc(different, func(x, y op) int { return x.element.compare(y.element) })
		c.units = append(c.units, unit{ops: different})
	}
	c.units = appendShared(c.units, missing)
}
