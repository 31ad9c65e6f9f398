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

// clientID names p in names of chains and sets: short, stable, readable, and
// unique by the hash even where the readable part is cut off.
func clientID(n service.PortName) string {
	sum := sha256.Sum256([]byte(n.Namespace + "\x00" + n.Name + "\x00" + n.Port + "\x00" + n.Protocol.String()))
	id := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:5]))
	readable := n.Namespace + "/" + n.Name + "/" + n.Protocol.String()
	if n.Port != "" {
		readable += "/" + n.Port
	}
	return id + "-" + readable[:min(len(readable), 72)]
}

// named returns an object's name for one of p's lists. Only slashes,
// hyphens, dots and letters are in it, so nft can read it unquoted.
func named(what string, w which, n service.PortName) string {
	if w == local {
		what += "-local"
	}
	return what + "-" + clientID(n)
}

// group is the endpoints of a list that have one port number.
type group struct {
	port    uint16
	clients *set            // of these endpoints
	members map[string]bool // their addresses
}

// groups returns the groups of w by port, none if p has no clients to
// remember.
func (l layout) groups(w which) []group {
	p := l.port
	if p == nil || p.Affinity == 0 || !uses(p, w) {
		return nil
	}
	var groups []group
	for _, e := range list(p, w) {
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
func clientSet(p *service.Port, w which, port uint16) *set {
	name := named(fmt.Sprintf("clients-%s-%d", seconds(p.Affinity), port), w, p.Name)
	return &set{name: name, kind: addrMap, key: clientKey, timeout: p.Affinity}
}

func memberSet(p *service.Port, w which) *set {
	return &set{name: named("members", w, p.Name), kind: plainSet, key: target}
}

func choiceSet(p *service.Port, w which) *set {
	return &set{name: named("choices", w, p.Name), kind: targetMap, key: slotKey}
}

// clientChain names the chain that takes a frontend's traffic to list w,
// through an entry that marks, if one is named.
func (b *builder) clientChain(w which, entry string) string {
	switch entry {
	case "":
		return named("affinity", w, b.port.Name)
	case "cluster":
		return named("affinity-cluster", w, b.port.Name)
	}
	return named("affinity-external", w, b.port.Name)
}

// uses reports that some frontend of p may send traffic to list w.
func uses(p *service.Port, w which) bool {
	if len(list(p, w)) == 0 {
		return false
	}
	for _, f := range p.Frontends {
		if (p.Policy(f.Kind) == service.PolicyLocal) == (w == local) || w == cluster && f.Kind.External() {
			return true
		}
	}
	return false
}

// clients adds the elements of p's own sets, and those that lead a
// connection to the chain that remembers its client.
func (b *builder) clients() {
	if b.port.Affinity == 0 || !b.port.Served() {
		return
	}
	for _, w := range []which{cluster, local} {
		if !uses(b.port, w) {
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
		b.verdict(in, f, goes(named("remember", cluster, b.port.Name)))
	}
}

// ownSets returns the sets that only p uses.
func ownSets(p *service.Port) []*set {
	var sets []*set
	if p == nil || p.Affinity == 0 || !p.Served() {
		return nil
	}
	for _, w := range []which{cluster, local} {
		if uses(p, w) {
			sets = append(sets, memberSet(p, w), choiceSet(p, w))
			for _, g := range (layout{port: p}).groups(w) {
				sets = append(sets, g.clients)
			}
		}
	}
	return sets
}

// ownChains returns the chains that only p uses.
func ownChains(p *service.Port, o Options) []*chain {
	if p == nil || p.Affinity == 0 || !p.Served() {
		return nil
	}
	note := &chain{name: named("remember", cluster, p.Name)}
	chains := []*chain{note}
	for _, w := range []which{cluster, local} {
		if !uses(p, w) {
			continue
		}
		main := &chain{name: named("affinity", w, p.Name)}
		is := isProto{p.Name.Protocol}
		for _, g := range (layout{port: p}).groups(w) {
			note.rules = append(note.rules, rule{toPort{g.port}, lookup{target, memberSet(p, w), false}, remember{g.clients}})
			main.rules = append(main.rules, rule{is, stick{g.clients, g.port}})
		}
		main.rules = append(main.rules, rule{is, translate{slotKey, uint32(len(list(p, w))), choiceSet(p, w)}})
		chains = append(chains, main,
			&chain{name: named("affinity-cluster", w, p.Name), rules: []rule{{jump(markChain)}, {goes(main.name)}}},
			&chain{name: named("affinity-external", w, p.Name), rules: []rule{{mark{o.mark()}}, {goes(main.name)}}})
	}
	return chains
}
