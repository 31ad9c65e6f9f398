// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package foreign

import (
	"encoding/binary"
	"net/netip"
	"strconv"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/iptables/walk"
)

// extension evaluates a match or target of iptables. The kernel stores its settings as a
// struct of C in the byte order of the machine.
func (e *evaluator) extension(x Extension) {
	if x.Target {
		e.target(x)
		return
	}
	m := maybe
	switch x.Name + " " + strconv.Itoa(int(x.Revision)) {
	case "comment 0":
		m = yes
	case "tcp 0":
		m = e.ports(service.TCP, x.Info)
	case "udp 0":
		m = e.ports(service.UDP, x.Info)
	case "multiport 1":
		m = e.multiport(x.Info)
	case "mark 1":
		m = e.marked(x.Info)
	case "addrtype 1":
		m = e.addrType(x.Info)
	case "conntrack 1", "conntrack 2", "conntrack 3", "state 0":
		m = e.connection(x)
	}
	e.narrow(m, "match "+x.Name)
}

// target applies a target of iptables. Its verdicts are those of nftables.
func (e *evaluator) target(x Extension) {
	certainly := e.sure && e.effect.match == yes
	switch {
	case x.Name == "MARK" && x.Revision == 2 && len(x.Info) >= 8: // struct xt_mark_tginfo2
		value, mask := x.Info[:4], x.Info[4:8]
		keep := make([]byte, 4)
		for i := range keep {
			keep[i] = ^mask[i]
		}
		e.mark = either(e.mark, e.mark.masked(keep, value), certainly)
	case x.Name == "CT" && len(x.Info) >= 2 && binary.NativeEndian.Uint16(x.Info)&1 != 0: // XT_CT_NOTRACK
		e.change(NoTrack{})
	case walk.Passive(x.Name):
	case x.Name == "REJECT" || x.Name == "TARPIT":
		e.effect.ends = append(e.effect.ends, Reject{})
	case x.Name == "DNAT":
		e.effect.ends = append(e.effect.ends, Translate{})
	case x.Name == "REDIRECT":
		e.effect.ends = append(e.effect.ends, Translate{Redirect: true})
	case x.Name == "SNAT" || x.Name == "MASQUERADE":
		e.effect.ends = append(e.effect.ends, Translate{Source: true})
	default:
		e.effect.ends = append(e.effect.ends, Opaque{"target " + x.Name})
	}
}

// ports evaluates the matches tcp and udp (kernel: include/uapi/linux/netfilter/xt_tcpudp.h).
func (e *evaluator) ports(p service.Protocol, info []byte) match {
	const notSource, notDest, notFlags = 1, 2, 4
	if e.protocol != p {
		return no
	}
	size, not := 9, at(info, 8)
	if p == service.TCP {
		size, not = 12, at(info, 11)
	}
	if len(info) < size {
		return maybe
	}
	u := func(i int) uint16 { return binary.NativeEndian.Uint16(info[i:]) }
	m := yes
	if u(0) != 0 || u(2) != 0xffff {
		m = maybe // the port of the client is not known
	}
	dest := matches(u(4) <= e.to.Port() && e.to.Port() <= u(6))
	if not&notDest != 0 {
		dest = dest.negated()
	}
	m = min(m, dest)
	if p != service.TCP {
		return m
	}
	flags := e.transport().part(13, 1).masked(info[9:10], nil).equals(info[10:11])
	if not&notFlags != 0 {
		flags = flags.negated()
	}
	if info[8] != 0 { // an option
		m = min(m, maybe)
	}
	_ = notSource // with the port of the client unknown, the answer is the same
	return min(m, flags)
}

// multiport evaluates struct xt_multiport_v1.
func (e *evaluator) multiport(info []byte) match {
	const flags, count, firstPort, firstRange, not, dest, size = 0, 1, 2, 32, 47, 1, 48
	if len(info) < size {
		return maybe
	}
	if info[flags] != dest {
		return maybe // the port of the client counts, too
	}
	m := no
	for i := 0; i < int(info[count]) && i < 15; i++ {
		port := func(i int) uint16 { return binary.NativeEndian.Uint16(info[firstPort+2*i:]) }
		low, high := port(i), port(i)
		if info[firstRange+i] != 0 && i+1 < 15 {
			i++
			high = port(i)
		}
		if low <= e.to.Port() && e.to.Port() <= high {
			m = yes
		}
	}
	if info[not] != 0 {
		return m.negated()
	}
	return m
}

// marked evaluates struct xt_mark_mtinfo1.
func (e *evaluator) marked(info []byte) match {
	if len(info) < 9 {
		return maybe
	}
	m := e.mark.masked(info[4:8], nil).equals(info[:4])
	if info[8] != 0 {
		return m.negated()
	}
	return m
}

// addrType evaluates struct xt_addrtype_info_v1. A mask has a bit for each type of an
// address, by the numbers of linux/rtnetlink.h.
func (e *evaluator) addrType(info []byte) match {
	const notSource, notDest, limited = 1, 2, 4 | 8
	if len(info) < 8 {
		return maybe
	}
	flags := binary.NativeEndian.Uint32(info[4:])
	m := yes
	for _, side := range []struct {
		mask uint16
		not  uint32
		addr netip.Addr
	}{{binary.NativeEndian.Uint16(info), notSource, e.from}, {binary.NativeEndian.Uint16(info[2:]), notDest, e.to.Addr()}} {
		if side.mask == 0 {
			continue
		}
		one := maybe
		if side.addr.IsValid() && flags&limited == 0 {
			one = matches(side.mask&(1<<e.typeOf(side.addr)) != 0)
		}
		if flags&side.not != 0 {
			one = one.negated()
		}
		m = min(m, one)
	}
	return m
}

func (p *packet) typeOf(a netip.Addr) uint8 {
	if p.node.Local(a) {
		return addrLocal
	}
	_, typ := p.node.Route(a)
	return typ
}

// connection evaluates the match state, and struct xt_conntrack_mtinfo3 and its forerunners
// as far as they ask for the state or the original direction.
func (e *evaluator) connection(x Extension) match {
	const byState, byDirection, byAlias = 1, 1 << 12, 1 << 13
	if x.Name == "state" && len(x.Info) >= 4 { // struct xt_state_info
		return matches(binary.NativeEndian.Uint32(x.Info)&e.stateBits() != 0)
	}
	const flagsAt, size = 146, 152
	if len(x.Info) < size {
		return maybe
	}
	flags, not := binary.NativeEndian.Uint16(x.Info[flagsAt:]), binary.NativeEndian.Uint16(x.Info[flagsAt+2:])
	mask := uint32(binary.NativeEndian.Uint16(x.Info[flagsAt+4:]))
	if x.Revision == 1 { // one byte for each mask
		mask &= 0xff
	}
	m := yes
	if flags&^(byState|byDirection|byAlias) != 0 {
		m = maybe
	}
	if flags&byDirection != 0 && not&byDirection != 0 { // the reply
		return no
	}
	if flags&byState != 0 {
		s := matches(mask&e.stateBits() != 0)
		if not&byState != 0 {
			s = s.negated()
		}
		m = min(m, s)
	}
	return m
}

// stateBits returns the states of the connection as xt_conntrack.h numbers them.
func (p *packet) stateBits() uint32 {
	const dnat, untracked = 1 << 7, 1 << 8
	switch {
	case p.untracked:
		return untracked
	case p.translated:
		return stateNew | dnat
	}
	return p.state()
}
