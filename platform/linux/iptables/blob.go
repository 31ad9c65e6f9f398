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

// blob is a table of iptables-legacy in the format of the kernel: a sequence of rules,
// whose jumps are offsets. A user-defined chain begins with a rule whose target is
// called ERROR (kernel: include/uapi/linux/netfilter/x_tables.h).
type blob struct {
	table  string
	role   *Role
	family service.Family
	bytes  []byte
	hooks  map[int]string // offsets of the built-in chains
}

// entryLayout holds offsets inside a rule. The kernel stores internal fields and counters behind
// the addresses.
type entryLayout struct {
	head, target, next, matches int
	// masks are the ranges of the masks of addresses and interfaces, as start and end.
	// proto is the offset of the protocol number. inverted is the offset of the flags
	// for inverted matches.
	masks           [][2]int
	proto, inverted int
}

var entryLayouts = [...]entryLayout{
	service.IPv4: {84, 88, 90, 112, [][2]int{{8, 16}, {48, 80}}, 80, 83},
	service.IPv6: {136, 140, 142, 168, [][2]int{{32, 64}, {96, 128}}, 128, 132},
}

const (
	targetName  = 2  // in a target: a name of 29 bytes
	targetData  = 32 // behind the header of the target
	errorTarget = "ERROR"
)

// Verdicts of the kernel, as -verdict-1 (kernel:
// include/uapi/linux/netfilter/x_tables.h), and protocol numbers.
const (
	verdictAccept = -2
	verdictReturn = -5

	protoTCP, protoUDP, protoSCTP = 6, 17, 132
)

// blobRule is one rule of a blob.
type blobRule struct {
	at, next int // offsets of this rule and of the next one
	head     []byte
	matches  []byte
	target   []byte
}

// rules yields the rules of b. It returns false if it meets a rule that it cannot parse.
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

// chainStart returns the name of the user-defined chain that begins behind r, if any.
func (r blobRule) chainStart() (string, bool) {
	if !bytes.HasPrefix(r.target[targetName:], []byte(errorTarget+"\x00")) {
		return "", false
	}
	return text(r.target[targetData:]), true
}

// jump returns the offset that r jumps to. The result is false if r does not jump.
func (r blobRule) jump() (int, bool) {
	if r.target[targetName] != 0 { // only the standard target has an empty name
		return 0, false
	}
	to := int(int32(binary.NativeEndian.Uint32(r.target[targetData:])))
	return to, to >= 0
}

// passes reports whether a rule lets all packets of a protocol of Services pass, see passesAll.
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

// onlyComments reports whether a rule has no match that could fail.
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

// sum hashes our chains, the rules of built-in chains that jump to them, and whether a rule ahead
// of these lets all packets pass; no counters, and no chains of others. It is false if b could not
// be parsed.
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

// blobChain identifies a chain.
type blobChain struct {
	name  uint64 // hash of the name
	owned bool
}

// digest computes sum, chain by chain.
type digest struct {
	family service.Family
	chains map[int]blobChain // by the offset that jumps use
	hash   maphash.Hash
	chain  blobChain // the current chain
	hook   string    // the current built-in chain, "" if there is none
	passed bool      // whether a rule of hook lets all packets pass
	total  uint64
}

// rule adds r. hook is the name of the built-in chain that begins with r, if one does.
func (d *digest) rule(r blobRule, hook string) {
	if hook != "" {
		d.hook, d.passed = hook, false
	}
	if _, ends := r.chainStart(); ends { // the current chain ends
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

// add adds the current hash to the total. The order of calls does not matter.
func (d *digest) add() {
	if d.chain.owned || d.hook != "" {
		d.total += d.hash.Sum64()
	}
	d.hash.Reset()
}

// write hashes r. It replaces the offset of a jump by the name of the chain.
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
