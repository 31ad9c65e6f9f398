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
func objectName(what string, w endpointList, n service.PortName) string {
	if w == localList {
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

// clientSet returns the clients map for one target port. Its name contains the timeout,
// because a kernel without commit 123b99619cca (Linux 6.2) ignores another timeout for an
// existing map.
func clientSet(p *service.Port, w endpointList, port uint16) *set {
	name := objectName(fmt.Sprintf("clients-%s-%d", seconds(p.Affinity), port), w, p.Name)
	return &set{name: name, kind: addrMap, key: clientKey, timeout: p.Affinity, limit: clientLimit}
}

func memberSet(p *service.Port, w endpointList) *set {
	return &set{name: objectName("members", w, p.Name), kind: plainSet, key: targetFields}
}

func choiceSet(p *service.Port, w endpointList) *set {
	return &set{name: objectName("choices", w, p.Name), kind: targetMap, key: slotKey}
}

// clientChain returns the name of the affinity chain for list w. entry selects the
// variant that marks packets first. An empty entry selects the one that does not mark.
func (b *builder) clientChain(w endpointList, entry string) string {
	switch entry {
	case "":
		return objectName("affinity", w, b.port.Name)
	case "cluster":
		return objectName("affinity-cluster", w, b.port.Name)
	}
	return objectName("affinity-external", w, b.port.Name)
}

// usesList reports whether a frontend of p may send traffic to list w.
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

// affinityElements adds the elements of the port's own sets, and the elements that send a
// translated connection to the chain that records its client.
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
