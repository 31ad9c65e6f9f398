// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"slices"

	"kubeproxy/common/service"
)

// blob is a table of iptables-legacy as the kernel gives it away: one rule
// after the other, with jumps to offsets. A chain that is not the system's
// begins with a rule whose target is called ERROR.
type blob struct {
	table  string
	role   Role
	family service.Family
	bytes  []byte
	hooks  map[int]string // where the system's chains begin
}

// entryLayout says where in a rule things are: how long its addresses and
// interfaces are, and where its targets, its length and its matches stand.
// Behind the addresses the kernel keeps notes of its own, and counters.
type entryLayout struct {
	head, target, next, matches int
	// masks are those of addresses and interfaces, from and to, proto the number of
	// a protocol, and inverted the flags of what a rule wants not to be so.
	masks           [][2]int
	proto, inverted int
}

var entryLayouts = [...]entryLayout{
	service.IPv4: {84, 88, 90, 112, [][2]int{{8, 16}, {48, 80}}, 80, 83},
	service.IPv6: {136, 140, 142, 168, [][2]int{{32, 64}, {96, 128}}, 128, 132},
}

const (
	targetName  = 2  // in a target: a name of 29 bytes
	targetData  = 32 // behind its head
	errorTarget = "ERROR"
)

// Verdicts of the kernel, less one and negative (linux/netfilter/x_tables.h), and numbers of
// protocols.
const (
	verdictAccept = -2
	verdictReturn = -5

	protoTCP, protoUDP, protoSCTP = 6, 17, 132
)

// blobRule is one rule of a blob.
type blobRule struct {
	at, next int // next is where the following one begins
	head     []byte
	matches  []byte
	target   []byte
}

// rules yields the rules of b until one makes no sense, and reports whether
// all did.
func (b *blob) rules(yield func(blobRule) bool) bool {
	l := entryLayouts[b.family]
	for at := 0; at < len(b.bytes); {
		rest := b.bytes[at:]
		if len(rest) < l.matches {
			return false
		}
		target := int(binary.NativeEndian.Uint16(rest[l.target:]))
		size := int(binary.NativeEndian.Uint16(rest[l.next:]))
		if target < l.matches || size < target+targetData+4 || size > len(rest) {
			return false
		}
		if !yield(blobRule{at, at + size, rest[:l.head], rest[l.matches:target], rest[target:size]}) {
			return true
		}
		at += size
	}
	return true
}

func text(b []byte) string {
	name, _, _ := bytes.Cut(b, []byte{0})
	return string(name)
}

// chainStart returns the name of the chain that begins behind r, if one does.
func (r blobRule) chainStart() (string, bool) {
	if !bytes.HasPrefix(r.target[targetName:], []byte(errorTarget+"\x00")) {
		return "", false
	}
	return text(r.target[targetData:]), true
}

// jump returns the offset that r leads to, if it leads anywhere.
func (r blobRule) jump() (int, bool) {
	if r.target[targetName] != 0 { // not the one that is called nothing
		return 0, false
	}
	to := int(int32(binary.NativeEndian.Uint32(r.target[targetData:])))
	return to, to >= 0
}

// passes reports that a rule of a family lets all packets pass, or all of a protocol
// that Services have, see passesAll.
func (r blobRule) passes(f service.Family) bool {
	l := entryLayouts[f]
	for _, m := range l.masks {
		if slices.ContainsFunc(r.head[m[0]:m[1]], func(b byte) bool { return b != 0 }) {
			return false
		}
	}
	proto := binary.NativeEndian.Uint16(r.head[l.proto:])
	if r.head[l.inverted] != 0 || !slices.Contains([]uint16{0, protoTCP, protoUDP, protoSCTP}, proto) || !r.onlyComments() {
		return false
	}
	if name := text(r.target[targetName:targetData]); name != "" {
		return slices.Contains(passTargets, name)
	}
	verdict := int32(binary.NativeEndian.Uint32(r.target[targetData:]))
	return verdict == verdictAccept || verdict == verdictReturn
}

// onlyComments reports that a rule has no match that could fail.
func (r blobRule) onlyComments() bool {
	for m := r.matches; len(m) > 0; {
		size := 0
		if len(m) >= targetData {
			size = int(binary.NativeEndian.Uint16(m))
		}
		if size < targetData || size > len(m) || text(m[targetName:targetData]) != "comment" {
			return false
		}
		m = m[size:]
	}
	return true
}

// sum is the same as long as our chains hold the same rules and the same rules
// of the system's chains lead to them, with or without one ahead that lets all
// packets pass, whatever counters say and others have.
// It is false if b was not understood.
func (b *blob) sum(seed maphash.Seed) (uint64, bool) {
	d := &digest{family: b.family, chains: map[int]blobChain{}}
	d.hash.SetSeed(seed)
	understood := b.rules(func(r blobRule) bool {
		if name, ok := r.chainStart(); ok {
			d.chains[r.next] = blobChain{maphash.String(seed, name), b.role.owns(id{b.table, name})}
		}
		return true
	})
	if !understood {
		return 0, false
	}
	b.rules(func(r blobRule) bool {
		d.rule(r, b.hooks[r.at])
		return true
	})
	return d.total, true
}

// blobChain is the name of a chain.
type blobChain struct {
	name  uint64 // stands for it
	owned bool
}

// digest adds up what sum is about, chain by chain.
type digest struct {
	family service.Family
	chains map[int]blobChain // by where what leads there goes
	hash   maphash.Hash
	chain  blobChain // the chain that is under way
	hook   string    // the same, if it is one of the system's
	passed bool      // by a rule of hook
	total  uint64
}

// rule takes in r, with which hook begins unless that is empty.
func (d *digest) rule(r blobRule, hook string) {
	if hook != "" {
		d.hook, d.passed = hook, false
	}
	if _, ends := r.chainStart(); ends { // what was under way
		d.add()
		d.hook, d.chain = "", d.chains[r.next]
		d.number(d.chain.name)
		return
	}
	to, leads := r.jump()
	switch {
	case d.chain.owned:
		d.write(r)
	case d.hook != "" && leads && d.chains[to].owned:
		_, _ = d.hash.WriteString(d.hook)
		if d.passed {
			d.number(1)
		}
		d.write(r)
		d.add()
	case d.hook != "" && r.passes(d.family):
		d.passed = true
	}
}

// add takes what was written together into the total, in any order.
func (d *digest) add() {
	if d.chain.owned || d.hook != "" {
		d.total += d.hash.Sum64()
	}
	d.hash.Reset()
}

// write takes in r, with a name for the offset that it leads to.
func (d *digest) write(r blobRule) {
	_, _ = d.hash.Write(r.head)
	_, _ = d.hash.Write(r.matches)
	to, leads := r.jump()
	chain, named := d.chains[to]
	switch {
	case leads && to == r.next: // it has no target
		d.number(0)
	case leads && named:
		d.number(chain.name)
	default:
		_, _ = d.hash.Write(r.target)
	}
}

func (d *digest) number(n uint64) {
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], n)
	_, _ = d.hash.Write(b[:])
}
