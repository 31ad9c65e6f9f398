// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package packet follows the first packet of a connection through the rules of the kernel:
// through what iptables-save prints, and through the base chains of every table of nftables
// that is not this program's, those of iptables included, and the chains of iptables-legacy.
// It knows no chain of kube-proxy. What a chain does is an explain.Deed.
//
// Rules are evaluated as expressions of nftables, with what is known of the packet. Those of
// iptables are translated into them, from text and from what the kernel stores (xtables.go). A
// Walk runs one base chain. Each bit of a register is known or not. So a rule matches, does not
// match, or may match. A rule that may match decides nothing; it is named if that could end
// the packet.
//
// The interface by which a client enters is the one of a route to it, unless the user names
// one. The port of the client is not known.
//
// Tables of the families netdev, bridge and arp are not followed.
package packet

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"

	"kubeproxy/common/route"
	"kubeproxy/common/service"
)

// Packet is the first packet of a connection at some point of its path.
type Packet struct {
	Node     Node
	Protocol service.Protocol
	From     netip.Addr     // invalid if a rule has replaced it
	Dialled  netip.AddrPort // the destination before any translation
	To       netip.AddrPort
	// Sender is the endpoint if the packet is its answer, of an established connection.
	Sender  netip.AddrPort
	In, Out Link
	// Seen means that connection tracking has seen it, Untracked that a rule exempted it.
	Seen, Untracked bool
	// Translated means that its destination was replaced, or never will be.
	Translated bool

	mark, ctMark bits
	// sourceOpen means that the source of the connection may be about to change.
	sourceOpen bool
	// marked means that the mode has marked it for masquerading.
	marked bool
	// altered means that a rule changed bytes of it, anywhere that its destination is unknown.
	altered, anywhere bool
	// unsure is why the packet may go another way from here on, "" if it does not. Rules of type
	// nat may not see it for unsureNAT.
	unsure, unsureNAT string
}

// New returns the first packet of c.
func New(n Node, c route.Conn) *Packet {
	const all = ^uint32(0)
	return &Packet{Node: n, Protocol: c.Protocol, From: c.From, Dialled: c.To, To: c.To, mark: number(0, all), ctMark: number(0, all)}
}

// Unaddressed returns a packet of a tracked connection to a port, 0 if unknown, as the rest is.
func Unaddressed(n Node, f service.Family, p service.Protocol, port uint16) *Packet {
	to := netip.AddrPortFrom(netip.IPv4Unspecified(), port)
	if f == service.IPv6 {
		to = netip.AddrPortFrom(netip.IPv6Unspecified(), port)
	}
	return &Packet{Node: n, Protocol: p, Dialled: to, To: to, Seen: true, anywhere: true, mark: unknown(4), ctMark: unknown(4)}
}

func (p *Packet) family() service.Family { return service.FamilyOf(p.To.Addr()) }

// Link is an interface. The zero value is none.
type Link struct {
	Name  string
	Index uint32
	// Unknown means that it is not known which interface it has. Guess means that it may be another
	// one than this, but lo and those that begin with a word of Except.
	Unknown, Guess bool
	Except         string
}

// Node answers what only the node knows.
type Node interface {
	// Local reports whether an address belongs to the node.
	Local(netip.Addr) bool
	// Route returns the interface by which the node reaches an address, and the kernel's
	// number for the type of the address. The type is 0 if there is no route.
	Route(netip.Addr) (Link, uint8)
}

// Lists is what a Node may implement, to answer what rules of iptables ask of other objects.
type Lists interface {
	// InSet reports whether fields of p, such as dst,src, are in an ipset.
	InSet(name, fields string, p Packet) Match
	// Listed reports whether a client is in a list of xt_recent and was there within the
	// seconds that the rule says, "" for any time.
	Listed(list, seconds string, client netip.Addr) Match
	// Bytecode evaluates a program of xt_bpf.
	Bytecode(code string, p Packet) Match
}

// Headers that PayloadLoad reads.
const (
	NetworkBase   = 1
	TransportBase = 2
)

func (p *Packet) header(base uint8) bits {
	switch {
	case p.altered:
	case base == NetworkBase && p.family() == service.IPv4:
		return p.header4()
	case base == NetworkBase:
		return p.header6()
	case base == TransportBase:
		return p.transport()
	}
	return bits{}
}

// protocolNumbers are those of IANA.
var protocolNumbers = map[service.Protocol]byte{service.TCP: 6, service.UDP: 17, service.SCTP: 132}

// header4 returns the header of IPv4. The first packet of a connection is no fragment.
func (p *Packet) header4() bits {
	h := unknown(20)
	set(h, 6, 0, 0x3f)
	set(h, 7, 0, 0xff)
	set(h, 9, protocolNumbers[p.Protocol], 0xff)
	p.addresses(h, 12)
	return h
}

func (p *Packet) header6() bits {
	h := unknown(40)
	set(h, 0, 0x60, 0xf0)
	set(h, 6, protocolNumbers[p.Protocol], 0xff)
	p.addresses(h, 8)
	return h
}

func set(b bits, i int, value, known byte) { b.value[i], b.known[i] = value&known, known }

// addresses writes the source and the destination at an offset.
func (p *Packet) addresses(h bits, offset int) {
	size := p.To.Addr().BitLen() / 8
	if p.From.IsValid() {
		for i, b := range p.From.AsSlice() {
			set(h, offset+i, b, 0xff)
		}
	}
	if p.anywhere {
		return
	}
	for i, b := range p.To.Addr().AsSlice() {
		set(h, offset+size+i, b, 0xff)
	}
}

// transport returns the header of TCP, UDP or SCTP. The port of the client is unknown. The
// flags of TCP are SYN alone, apart from those for congestion (RFC 3168).
func (p *Packet) transport() bits {
	h := unknown(20)
	if to := p.To.Port(); to != 0 {
		set(h, 2, byte(to>>8), 0xff)
		set(h, 3, byte(to), 0xff)
	}
	flags := byte(tcpSYN)
	if from := p.Sender.Port(); from != 0 {
		flags |= tcpACK
		set(h, 0, byte(from>>8), 0xff)
		set(h, 1, byte(from), 0xff)
	}
	if p.Protocol == service.TCP {
		set(h, 13, flags, 0x3f)
	}
	return h
}

const tcpSYN, tcpACK = 2, 16

// Keys of meta (kernel: include/uapi/linux/netfilter/nf_tables.h, nft_meta_keys).
const (
	metaProtocol = 1
	MetaMark     = 3
	metaIn       = 4
	metaOut      = 5
	MetaInName   = 6
	MetaOutName  = 7
	metaFamily   = 15
	MetaL4       = 16
	metaPktType  = 19
)

const ifNameSize = 16

// meta returns what the kernel knows of the packet by a key.
func (p *Packet) meta(key uint32) bits {
	const v4, v6 = 2, 10 // NFPROTO_IPV4 and NFPROTO_IPV6
	switch key {
	case metaProtocol:
		if p.family() == service.IPv6 {
			return certain(0x86, 0xdd)
		}
		return certain(0x08, 0x00)
	case MetaMark:
		return p.mark
	case metaIn:
		return p.In.index()
	case metaOut:
		return p.Out.index()
	case MetaInName:
		return p.In.name()
	case MetaOutName:
		return p.Out.name()
	case metaFamily:
		if p.family() == service.IPv6 {
			return certain(v6)
		}
		return certain(v4)
	case MetaL4:
		return certain(protocolNumbers[p.Protocol])
	case metaPktType:
		return certain(0) // PACKET_HOST
	}
	return unknown(ifNameSize)
}

func (l Link) index() bits {
	if l.Unknown || l.Guess {
		return unknown(4)
	}
	return number(l.Index, ^uint32(0))
}

// mayBe reports whether a guess may have a name, or one that begins with it.
func (l Link) mayBe(name string) bool {
	return name != Loopback().Name && !slices.ContainsFunc(strings.Fields(l.Except), func(s string) bool { return strings.HasPrefix(name, s) })
}

func (l Link) name() bits {
	if l.Unknown {
		return unknown(ifNameSize)
	}
	return certain(append([]byte(l.Name), make([]byte, ifNameSize-min(len(l.Name), ifNameSize))...)...)
}

// Keys of ct, and bits of state and status (kernel: nf_tables.h, nf_conntrack_common.h).
const (
	CtState      = 0
	CtDirection  = 1
	CtStatus     = 2
	ctMarkKey    = 3
	ctL3         = 7
	ctSource     = 8
	ctDest       = 9
	ctProto      = 10
	CtSourcePort = 11
	CtDestPort   = 12
	CtSourceIP   = 19
	CtDestIP     = 20
	CtSourceIP6  = 21
	CtDestIP6    = 22

	// Reply is the direction of answers.
	Reply = 1

	StateInvalid     = 1
	StateEstablished = 2
	stateNew         = 8
	stateUntracked   = 64
	statusSeenReply  = 1 << 1
	statusAssured    = 1 << 2
	StatusDNAT       = 1 << 5
	statusSNAT       = 1<<4 | 1<<7
	statusPrivate    = 1<<3 | 1<<8 // confirmed, and done with the destination
)

// state returns the state bit of the connection.
func (p *Packet) state() uint32 {
	switch {
	case p.Untracked:
		return stateUntracked
	case !p.Seen:
		return StateInvalid
	case p.Sender.IsValid():
		return StateEstablished
	}
	return stateNew
}

// conntrack returns a property of the connection. It has none if it is not tracked, apart
// from the state; then the rule does not match.
func (p *Packet) conntrack(key uint32, direction uint8) (b bits, has bool) {
	if key == CtState {
		return number(p.state(), ^uint32(0)), true
	}
	if p.Untracked || !p.Seen {
		return bits{}, false
	}
	const original = 0
	switch {
	case key == CtDirection && p.Sender.IsValid():
		return certain(Reply), true
	case key == CtDirection:
		return certain(original), true
	case key == CtStatus:
		status := uint32(0)
		if p.Translated {
			status = StatusDNAT
		}
		unsure := uint32(statusPrivate)
		if p.Sender.IsValid() {
			status, unsure = status|statusSeenReply, unsure|statusAssured
		}
		if p.sourceOpen {
			unsure |= statusSNAT
		}
		return number(status, ^unsure), true
	case key == ctMarkKey:
		return p.ctMark, true
	case key == ctL3:
		return p.meta(metaFamily), true
	case key == ctProto:
		return certain(protocolNumbers[p.Protocol]), true
	case direction != original, p.anywhere:
	case key == ctDest, key == CtDestIP, key == CtDestIP6:
		return certain(p.Dialled.Addr().AsSlice()...), true
	case key == CtDestPort:
		return certain(binary.BigEndian.AppendUint16(nil, p.Dialled.Port())...), true
	case (key == ctSource || key == CtSourceIP || key == CtSourceIP6) && p.Sender.IsValid():
		return certain(p.To.Addr().AsSlice()...), true // the client
	case (key == ctSource || key == CtSourceIP || key == CtSourceIP6) && p.From.IsValid():
		return certain(p.From.AsSlice()...), true
	}
	return unknown(ifNameSize), true
}

// fib answers a question to the routing tables.
func (p *Packet) fib(f Fib) bits {
	addr := p.To.Addr()
	if f.Source {
		addr = p.From
	}
	if !addr.IsValid() || f.Interfaces && (p.In.Unknown || p.In.Guess) {
		return unknown(ifNameSize)
	}
	if f.Type {
		return p.fibType(addr, f.Interfaces)
	}
	link, _ := p.Node.Route(addr)
	if f.Interfaces && link.Index != p.In.Index {
		link = Link{}
	}
	switch {
	case link.Unknown:
		return unknown(ifNameSize)
	case f.Present:
		return certain(byte(matches(link.Index != 0) / Yes))
	case f.Name:
		return link.name()
	}
	return link.index()
}

// fibType returns the type of an address. On one interface that of local ones may differ.
func (p *Packet) fibType(addr netip.Addr, ofInterface bool) bits {
	mask := p.types(addr)
	for typ := range uint32(16) {
		if mask == 1<<typ && (!ofInterface || typ == Unicast) {
			return number(typ, ^uint32(0))
		}
	}
	return unknown(ifNameSize)
}

// Types of addresses (linux/rtnetlink.h). Local is that of addresses of the node.
const (
	unspecified = 0
	Unicast     = 1
	Local       = 2
	broadcast   = 3
	anycast     = 4
	multicast   = 5
	unreachable = 7
	noRoute     = 1<<6 | 1<<unreachable | 1<<8 | 1<<9 // the ways to say so, as a mask
)

// types returns the types that an address may have, as a mask. IPv4 has a table of local addresses
// (https://github.com/torvalds/linux/blob/v6.12/net/ipv4/fib_frontend.c, __inet_dev_addr_type),
// IPv6 the route (https://github.com/torvalds/linux/blob/v6.12/net/ipv6/netfilter/nft_fib_ipv6.c).
func (p *Packet) types(addr netip.Addr) uint16 {
	link, typ := p.Node.Route(addr)
	switch {
	case p.Node.Local(addr):
		return 1 << Local
	case addr.IsMulticast():
		return 1 << multicast
	case addr.Is4() && link.Unknown:
		return 1<<Unicast | 1<<broadcast | 1<<anycast
	case addr.Is4() && typ != broadcast && typ != anycast:
		return 1 << Unicast
	case link.Unknown:
		return 1<<Unicast | 1<<anycast | noRoute
	case typ == unspecified:
		return noRoute
	}
	return 1 << typ
}

// Loopback returns the interface by which the node reaches itself.
func Loopback() Link { return Link{Name: "lo", Index: 1} }

// bits is data of which some bits are known. Unknown bits are 0 in value.
type bits struct{ value, known []byte }

func certain(b ...byte) bits {
	known := make([]byte, len(b))
	for i := range known {
		known[i] = 0xff
	}
	return bits{b, known}
}

// unknown returns size bytes of which nothing is known.
func unknown(size int) bits { return bits{make([]byte, size), make([]byte, size)} }

// number returns a number in the machine's byte order, of which bits in known are known.
func number(value, known uint32) bits {
	return bits{binary.NativeEndian.AppendUint32(nil, value&known), binary.NativeEndian.AppendUint32(nil, known)}
}

func (b bits) number() (value, known uint32) {
	if len(b.value) < 4 {
		return 0, 0
	}
	return binary.NativeEndian.Uint32(b.value), binary.NativeEndian.Uint32(b.known)
}

// part returns size bytes at an offset. What lies behind the end is unknown.
func (b bits) part(offset, size int) bits {
	if end := offset + size; offset >= 0 && size >= 0 && end <= len(b.value) {
		return bits{b.value[offset:end:end], b.known[offset:end:end]}
	}
	p := unknown(size)
	if offset >= 0 && offset < len(b.value) {
		copy(p.value, b.value[offset:])
		copy(p.known, b.known[offset:])
	}
	return p
}

func (b bits) kept() bits { return bits{slices.Clone(b.value), slices.Clone(b.known)} }

func (b bits) isKnown() bool {
	for _, k := range b.known {
		if k != 0xff {
			return false
		}
	}
	return true
}

// equals compares b with data.
func (b bits) equals(data []byte) Match {
	result := Yes
	for i, v := range b.value {
		if i >= len(data) {
			break
		}
		if (v^data[i])&b.known[i] != 0 {
			return No
		}
		if b.known[i] != 0xff {
			result = Maybe
		}
	}
	return result
}

// least and most are the limits of what b may be, in network byte order.
func (b bits) least() []byte { return b.value }

func (b bits) most() []byte {
	most := make([]byte, len(b.value))
	for i, v := range b.value {
		most[i] = v | ^b.known[i]
	}
	return most
}

// masked returns b & mask ^ flip.
func (b bits) masked(mask, flip []byte) bits {
	r := unknown(len(b.value))
	for i := range r.value {
		m, f := at(mask, i), at(flip, i)
		r.known[i] = b.known[i] | ^m
		r.value[i] = (b.value[i]&m ^ f) & r.known[i]
	}
	return r
}

func at(b []byte, i int) byte {
	if i < len(b) {
		return b[i]
	}
	return 0
}

// swapped returns b with the bytes of each group of size bytes in reverse order.
func (b bits) swapped(size int) bits {
	if size <= 0 || binary.NativeEndian.Uint16([]byte{1, 0}) != 1 { // a machine of network byte order
		return b
	}
	r := unknown(len(b.value))
	for i := range b.value {
		j := i/size*size + size - 1 - i%size
		if j < len(b.value) {
			r.value[j], r.known[j] = b.value[i], b.known[i]
		}
	}
	return r
}

// Match says whether a packet matches.
type Match uint8

// The answers.
const (
	No Match = iota
	Maybe
	Yes
)

func matches(b bool) Match {
	if b {
		return Yes
	}
	return No
}

func (m Match) negated() Match { return Yes - m }

// registers are those of the kernel: 64 bytes, addressed in words of 4 or 16 bytes (kernel:
// include/uapi/linux/netfilter/nf_tables.h, nft_registers).
type registers struct{ value, known [registerBytes]byte }

const registerBytes, firstShort = 64, 8

func offset(register uint32) int {
	if register >= firstShort {
		return int(register-firstShort) * 4
	}
	return int(register-1) * 16
}

// load returns a part of r. It changes when a register is stored.
func (r *registers) load(register uint32, size int) bits {
	return bits{r.value[:], r.known[:]}.part(offset(register), size)
}

// store writes b. The kernel fills the last word up with zeros.
func (r *registers) store(register uint32, b bits) {
	for len(b.value)%4 != 0 {
		b = bits{append(b.value[:len(b.value):len(b.value)], 0), append(b.known[:len(b.known):len(b.known)], 0xff)}
	}
	if o := offset(register); o >= 0 && o < registerBytes {
		copy(r.value[o:], b.value)
		copy(r.known[o:], b.known)
	}
}
