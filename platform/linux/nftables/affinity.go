// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"slices"
	"strings"

	"kubeproxy/common/service"
)

// A Port with session affinity has a few objects of its own for each list of
// endpoints it uses: a map of its clients for each target port, nearly always
// one, which the rules fill after the connection was translated; the set of
// its endpoints, without which nothing is remembered, so that nobody is sent
// to an endpoint that left; and a chain that asks the clients first and else
// draws from the endpoints. A map holds addresses only, because nft 1.0.6
// cannot read an update of an IPv6 address and a port.

var (
	slotKey   = []field{slot}
	clientKey = []field{saddr}
)

// servicePortID names p in names of chains and sets: short, stable, readable, and
// unique by the hash even where the readable part is cut off.
func servicePortID(n service.PortName) string {
	sum := sha256.Sum256([]byte(n.Namespace + "\x00" + n.Name + "\x00" + n.Port + "\x00" + n.Protocol.String()))
	id := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:5]))
	readable := n.Namespace + "/" + n.Name + "/" + n.Protocol.String()
	if n.Port != "" {
		readable += "/" + n.Port
	}
	return id + "-" + readable[:min(len(readable), 72)]
}

// objectName returns an object's name for one of p's lists. Only slashes,
// hyphens, dots and letters are in it, so nft can read it unquoted.
func objectName(what string, w endpointList, n service.PortName) string {
	if w == localList {
		what += "-local"
	}
	return what + "-" + servicePortID(n)
}

// group is the endpoints of a list that have one port number.
type group struct {
	port    uint16
	clients *set            // of these endpoints
	members map[string]bool // their addresses
}

// groups returns the groups of w by port, none if p has no clients to
// remember.
func (l layout) groups(w endpointList) []group {
	p := l.port
	if p == nil || p.Affinity == 0 || !usesList(p, w) {
		return nil
	}
	var groups []group
	for _, e := range endpointsOf(p, w) {
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

// clientSet has the timeout in its name, since the kernel cannot change the
// timeout of a map that exists.
func clientSet(p *service.Port, w endpointList, port uint16) *set {
	name := objectName(fmt.Sprintf("clients-%s-%d", seconds(p.Affinity), port), w, p.Name)
	return &set{name: name, kind: addrMap, key: clientKey, timeout: p.Affinity}
}

func memberSet(p *service.Port, w endpointList) *set {
	return &set{name: objectName("members", w, p.Name), kind: plainSet, key: targetFields}
}

func choiceSet(p *service.Port, w endpointList) *set {
	return &set{name: objectName("choices", w, p.Name), kind: targetMap, key: slotKey}
}

// clientChain names the chain that takes a frontend's traffic to list w,
// through an entry that marks, if one is named.
func (b *builder) clientChain(w endpointList, entry string) string {
	switch entry {
	case "":
		return objectName("affinity", w, b.port.Name)
	case "cluster":
		return objectName("affinity-cluster", w, b.port.Name)
	}
	return objectName("affinity-external", w, b.port.Name)
}

// usesList reports that some frontend of p may send traffic to list w.
func usesList(p *service.Port, w endpointList) bool {
	if len(endpointsOf(p, w)) == 0 {
		return false
	}
	for _, f := range p.Frontends {
		if (p.Policy(f.Kind) == service.PolicyLocal) == (w == localList) || w == clusterList && f.Kind.External() {
			return true
		}
	}
	return false
}

// affinityElements adds the elements of p's own sets, and those that lead a
// connection to the chain that remembers its client.
func (b *builder) affinityElements() {
	if b.port.Affinity == 0 || !b.port.HasEndpoints() {
		return
	}
	for _, w := range []endpointList{clusterList, localList} {
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
		b.verdict(in, f, gotoVerdict(objectName("remember", clusterList, b.port.Name)))
	}
}

// affinitySets returns the sets that only p uses.
func affinitySets(p *service.Port) []*set {
	var sets []*set
	if p == nil || p.Affinity == 0 || !p.HasEndpoints() {
		return nil
	}
	for _, w := range []endpointList{clusterList, localList} {
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
	recorder := &chain{name: objectName("remember", clusterList, p.Name)}
	chains := []*chain{recorder}
	for _, w := range []endpointList{clusterList, localList} {
		if !usesList(p, w) {
			continue
		}
		chooser := &chain{name: objectName("affinity", w, p.Name)}
		is := isProto{p.Name.Protocol}
		for _, g := range (layout{port: p}).groups(w) {
			recorder.rules = append(recorder.rules, rule{toPort{g.port}, lookup{targetFields, memberSet(p, w), false}, recordClient{g.clients}})
			chooser.rules = append(chooser.rules, rule{is, affinityDNAT{g.clients, g.port}})
		}
		chooser.rules = append(chooser.rules, rule{is, dnat{slotKey, uint32(len(endpointsOf(p, w))), choiceSet(p, w)}})
		chains = append(chains, chooser,
			&chain{name: objectName("affinity-cluster", w, p.Name), rules: []rule{{jumpVerdict(markChain)}, {gotoVerdict(chooser.name)}}},
			&chain{name: objectName("affinity-external", w, p.Name), rules: []rule{{mark{o.mark()}}, {gotoVerdict(chooser.name)}}})
	}
	return chains
}
