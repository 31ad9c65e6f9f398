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
	"kubeproxy/platform/linux/netlink"
	"kubeproxy/platform/linux/packet"
)

// A Port with session affinity owns a few objects for each endpoint list that it uses. One clients
// map per target port (nearly always one) records which endpoint a client used, filled after the
// destination was translated, and only for members of the set of endpoints: no client returns to
// one that was removed. A chain looks the client up first and otherwise picks a random endpoint.
// The map has addresses without ports: nft 1.0.6 parses no update with an IPv6 address and a port.

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

// groups returns the groups of w, sorted by port, nil without affinity or if w is not used.
func (l layout) groups(w service.Policy) []group {
	p := l.port
	if p == nil || p.Affinity == 0 || !ownsList(p, w) {
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

// clientSet returns the clients map for a target port. Its name has the timeout, as kernels without
// commit 123b99619cca (Linux 6.2) ignore another one for an existing map.
func clientSet(p *service.Port, w service.Policy, port uint16) *set {
	name := objectName(fmt.Sprintf(clientsPrefix+"%s-%d", seconds(p.Affinity), port), w, p.Name)
	return &set{name: name, kind: addrMap, key: clientKey, timeout: p.Affinity, limit: clientLimit}
}

const clientsPrefix = "clients-"

func memberSet(p *service.Port, w service.Policy) *set {
	return &set{name: objectName("members", w, p.Name), kind: plainSet, key: targetFields}
}

func choiceSet(p *service.Port, w service.Policy) *set {
	return &set{name: objectName("choices", w, p.Name), kind: targetMap, key: slotKey, fixed: p.Consistent.Slots > 0}
}

// A Port with consistent selection owns a map of slots for each list, and a chain that looks the
// client's address and port up there by their hash. It has the slots once for all frontends.
// With session affinity the map is that of the affinity, for the hash of the address.

// ownsChains reports whether frontends of kind k lead to chains that only p uses.
func ownsChains(p *service.Port, k service.Kind) bool {
	return p.Affinity > 0 || p.SelectsConsistently(k)
}

// clientChain returns the name of the chain of the Port for list w. entry selects the
// variant that marks packets first. An empty entry selects the one that does not mark.
func clientChain(p *service.Port, w service.Policy, entry string) string {
	what := "affinity"
	if p.Affinity == 0 {
		what = "consistent"
	}
	switch entry {
	case "":
	case "cluster":
		what += "-cluster"
	default:
		what += "-external"
	}
	return objectName(what, w, p.Name)
}

// ownsList reports whether a frontend of p may send traffic to list w by its own chains.
func ownsList(p *service.Port, w service.Policy) bool {
	return len(p.EndpointsFor(w)) > 0 && slices.ContainsFunc(p.Frontends, func(f service.Frontend) bool {
		return ownsChains(p, f.Kind) && (p.Policy(f.Kind) == w || w == service.PolicyCluster && f.Kind.External())
	})
}

// ownsAny reports whether p, which may be nil, has chains that only it uses.
func ownsAny(p *service.Port) bool {
	return p != nil && slices.ContainsFunc(service.Policies[:], func(w service.Policy) bool { return ownsList(p, w) })
}

// ownElements adds the elements of the port's own sets, and the elements that send a
// translated connection to the chain that records its client.
func (b *builder) ownElements() {
	p := b.port
	for _, w := range service.Policies {
		if !ownsList(p, w) {
			continue
		}
		l := b.layout
		if p.Consistent.Slots > 0 {
			l.slots[w] = service.Table(p.EndpointsFor(w), p.Consistent.Slots)
		}
		choices := choiceSet(p, w)
		for i := range l.len(w) {
			to := b.addr(l.at(w, i))
			from := len(b.arena)
			b.arena = appendSlot(b.arena, uint32(i))
			b.out = append(b.out, element{in: choices, key: b.take(from), value: to})
		}
		if p.Affinity == 0 {
			continue
		}
		members := memberSet(p, w)
		for _, e := range p.EndpointsFor(w) {
			b.out = append(b.out, element{in: members, key: b.addr(e.Addr)})
		}
	}
	if p.Affinity == 0 || !p.HasEndpoints() {
		return
	}
	for i := range p.Frontends {
		f := &p.Frontends[i]
		in := affinity
		if f.Kind == service.NodePort {
			in = nodePortAffinity
		}
		b.verdict(in, f, gotoVerdict(objectName("remember", service.PolicyCluster, p.Name)))
	}
}

// ownSets returns the sets that only p uses.
func ownSets(p *service.Port) []*set {
	var sets []*set
	if !ownsAny(p) {
		return nil
	}
	for _, w := range service.Policies {
		if !ownsList(p, w) {
			continue
		}
		sets = append(sets, choiceSet(p, w))
		if p.Affinity > 0 {
			sets = append(sets, memberSet(p, w))
		}
		for _, g := range (layout{port: p}).groups(w) {
			sets = append(sets, g.clients)
		}
	}
	return sets
}

// ownChains returns the chains that only p uses.
func ownChains(p *service.Port, o Options) []*chain {
	if !ownsAny(p) && (p == nil || p.Affinity == 0 || !p.HasEndpoints()) {
		return nil
	}
	var chains []*chain
	recorder := &chain{name: objectName("remember", service.PolicyCluster, p.Name)}
	if p.Affinity > 0 {
		chains = append(chains, recorder)
	}
	for _, w := range service.Policies {
		if !ownsList(p, w) {
			continue
		}
		chooser := &chain{name: clientChain(p, w, "")}
		is := isProto{p.Name.Protocol}
		for _, g := range (layout{port: p}).groups(w) {
			recorder.rules = append(recorder.rules, rule{toPort{g.port}, lookup{targetFields, memberSet(p, w), false}, recordClient{g.clients}})
			chooser.rules = append(chooser.rules, rule{is, affinityDNAT{g.clients, g.port}})
		}
		chooser.rules = append(chooser.rules, rule{is, drawOf(p, w)})
		chains = append(chains, chooser,
			&chain{name: clientChain(p, w, "cluster"), rules: []rule{{jumpVerdict(markChain)}, {gotoVerdict(chooser.name)}}},
			&chain{name: clientChain(p, w, "external"), rules: []rule{{mark{o.mark()}}, {gotoVerdict(chooser.name)}}})
	}
	return chains
}

// drawOf returns the statement that draws an endpoint for a new client of list w of p.
func drawOf(p *service.Port, w service.Policy) statement {
	switch slots := uint32(p.Consistent.Slots); {
	case slots == 0:
		return dnat{slotKey, uint32(len(p.EndpointsFor(w))), choiceSet(p, w)}
	case p.Affinity > 0:
		return hashDNAT{clientKey, slots, choiceSet(p, w)}
	default:
		return hashDNAT{[]field{saddr, sport}, slots, choiceSet(p, w)}
	}
}

// hashDNAT translates to the target that a map holds for a hash of the fields, below mod.
type hashDNAT struct {
	fields []field
	mod    uint32
	in     *set
}

// hashSeed is the same on every node.
const hashSeed = 0x6b756265

func (h hashDNAT) text(f service.Family) string {
	return fmt.Sprintf("dnat %s to jhash %s mod %d seed %#x map @%s", netlink.FamilyName(f), typeof(h.fields, f), h.mod, hashSeed, h.in.name)
}

func (h hashDNAT) expressions(f service.Family) []packet.Expression {
	const at = 1
	hash := packet.Hash{From: register(at), Size: keySize(h.fields, f), To: register(0), Below: h.mod, Seed: hashSeed}
	return append(append(load(h.fields, at, 0, f), hash), translateTo(h.in, f)...)
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
