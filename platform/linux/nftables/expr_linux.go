// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"
	"fmt"
	"net"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
)

// register returns the number of the n-th register of four bytes. Every fourth one has an
// older number, which the kernel uses in listings (kernel: net/netfilter/nf_tables_api.c,
// nft_dump_register).
func register(n int) uint32 {
	if n%4 == 0 {
		return uint32(unix.NFT_REG_1 + n/4)
	}
	return uint32(unix.NFT_REG32_00 + n)
}

// expressions returns the kernel's expressions for s.
func expressions(s statement, family service.Family) ([]expr.Any, error) {
	switch s := s.(type) {
	case lookup:
		return append(load(s.fields, 0, 0, family), &expr.Lookup{SourceRegister: register(0), SetName: s.in.name, Invert: s.not}), nil
	case dispatch:
		return append(load(s.fields, 0, 0, family), &expr.Lookup{
			SourceRegister: register(0), SetName: s.in.name, IsDestRegSet: true,
		}), nil
	case dnat:
		return dnatExprs(s, family), nil
	case affinityDNAT:
		return affinityDNATExprs(s, family), nil
	case recordClient:
		return append(append(load([]field{origSaddr}, 0, 0, family), load(targetFields[:1], 4, 0, family)...), &expr.Dynset{
			SrcRegKey: register(0), SrcRegData: register(4), SetName: s.in.name, Operation: unix.NFT_DYNSET_OP_UPDATE,
		}), nil
	case countConnection:
		return append(load(countedFields, 0, 0, family), &expr.Dynset{
			SrcRegKey: register(0), SetName: s.in.name, Operation: unix.NFT_DYNSET_OP_UPDATE, Exprs: []expr.Any{&expr.Counter{}},
		}), nil
	case verdict:
		return []expr.Any{verdictExpr(s)}, nil
	case mark, unmark, marked:
		return markExprs(s), nil
	case masquerade:
		return []expr.Any{&expr.Masq{FullyRandom: true}}, nil
	case reject:
		return []expr.Any{rejectExpr(s, family)}, nil
	case counter:
		return []expr.Any{&expr.Counter{}}, nil
	}
	return matchExprs(s, family)
}

func dnatExprs(t dnat, family service.Family) []expr.Any {
	return append(load(t.fields, 0, t.mod, family), value(t.in), natExpr(daddr.size(family)/4, family))
}

func affinityDNATExprs(s affinityDNAT, family service.Family) []expr.Any {
	const port = 4
	return append(load(clientKey, 0, 0, family), value(s.in),
		&expr.Immediate{Register: register(port), Data: binary.BigEndian.AppendUint16(nil, s.port)},
		natExpr(port, family))
}

// value replaces the key in the first registers by its value in a map.
func value(in *set) expr.Any {
	return &expr.Lookup{SourceRegister: register(0), DestRegister: register(0), IsDestRegSet: true, SetName: in.name}
}

// natExpr translates to the address in the first register and the port in register n.
func natExpr(n int, family service.Family) expr.Any {
	nf := uint32(unix.NFPROTO_IPV4)
	if family == service.IPv6 {
		nf = unix.NFPROTO_IPV6
	}
	return &expr.NAT{
		Type: expr.NATTypeDestNAT, Family: nf,
		RegAddrMin: register(0), RegAddrMax: register(0), RegProtoMin: register(n), RegProtoMax: register(n),
	}
}

// load loads fields into consecutive registers, the first into register at. A slot is a
// random number below mod.
func load(fields []field, at int, mod uint32, family service.Family) []expr.Any {
	var out []expr.Any
	for _, f := range fields {
		out = append(out, loadField(f, register(at), mod, family))
		at += f.size(family) / 4
	}
	return out
}

func loadField(f field, reg, mod uint32, family service.Family) expr.Any {
	offset, size := uint32(12), uint32(4) // offset and size of the source address in an IPv4 header
	if family == service.IPv6 {
		offset, size = 8, 16
	}
	switch f {
	case daddr:
		offset += size
	case proto:
		return &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg}
	case dport:
		return &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}
	case origSaddr, origDaddr, origDport:
		return original(f, reg, family)
	case slot:
		return &expr.Numgen{Register: reg, Modulus: mod, Type: unix.NFT_NG_RANDOM}
	}
	return &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size}
}

// Keys of the ct expression that name the family (kernel:
// include/uapi/linux/netfilter/nf_tables.h, NFT_CT_SRC_IP and following).
const (
	ctSourceIPv4      = 19
	ctDestinationIPv4 = 20
	ctSourceIPv6      = 21
	ctDestinationIPv6 = 22
)

func original(f field, reg uint32, family service.Family) expr.Any {
	key := map[field][2]expr.CtKey{
		origSaddr: {ctSourceIPv4, ctSourceIPv6},
		origDaddr: {ctDestinationIPv4, ctDestinationIPv6},
		origDport: {expr.CtKeyPROTODST, expr.CtKeyPROTODST},
	}[f][family]
	return &expr.Ct{Register: reg, Key: key}
}

func verdictExpr(v verdict) expr.Any {
	kinds := map[verdictCode]expr.VerdictKind{
		verdictJump: expr.VerdictJump, verdictGoto: expr.VerdictGoto, verdictReturn: expr.VerdictReturn,
		verdictDrop: expr.VerdictDrop, verdictAccept: expr.VerdictAccept,
	}
	return &expr.Verdict{Kind: kinds[v.code], Chain: v.chain}
}

func rejectExpr(r reject, family service.Family) expr.Any {
	const icmpPortUnreachable, icmpv6PortUnreachable = 3, 4
	switch {
	case r.tcp:
		return &expr.Reject{Type: unix.NFT_REJECT_TCP_RST}
	case family == service.IPv6:
		return &expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: icmpv6PortUnreachable}
	}
	return &expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: icmpPortUnreachable}
}

func native(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// masked sets register 0 to (register 0 & mask) ^ xor.
func masked(mask, xor []byte) expr.Any {
	return &expr.Bitwise{SourceRegister: register(0), DestRegister: register(0), Len: uint32(len(mask)), Mask: mask, Xor: xor}
}

func equals(data []byte) expr.Any {
	return &expr.Cmp{Op: expr.CmpOpEq, Register: register(0), Data: data}
}

func differs(data []byte) expr.Any {
	return &expr.Cmp{Op: expr.CmpOpNeq, Register: register(0), Data: data}
}

func markExprs(s statement) []expr.Any {
	read := &expr.Meta{Key: expr.MetaKeyMARK, Register: register(0)}
	write := &expr.Meta{Key: expr.MetaKeyMARK, Register: register(0), SourceRegister: true}
	switch s := s.(type) {
	case mark:
		return []expr.Any{read, masked(native(^s.bits), native(s.bits)), write}
	case unmark:
		return []expr.Any{read, masked(native(^s.bits), native(0)), write}
	}
	bits := s.(marked).bits
	return []expr.Any{read, masked(native(bits), native(0)), equals(native(bits))}
}

const statusTranslated = 1 << 5 // IPS_DST_NAT

func matchExprs(s statement, family service.Family) ([]expr.Any, error) {
	switch s := s.(type) {
	case within:
		return prefixExprs(s, family), nil
	case fromInterface:
		name := make([]byte, unix.IFNAMSIZ)
		copy(name, s.name)
		if n := len(s.name) - 1; n >= 0 && s.name[n] == '*' {
			name = name[:n]
		}
		return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: register(0)}, equals(name)}, nil
	case isProto:
		return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register(0)}, equals([]byte{byte(s.proto)})}, nil
	case isLocal:
		return []expr.Any{
			&expr.Fib{Register: register(0), ResultADDRTYPE: true, FlagSADDR: s.field == saddr, FlagDADDR: s.field == daddr},
			equals(native(unix.RTN_LOCAL)),
		}, nil
	case toPort:
		return append(load([]field{dport}, 0, 0, family), equals(binary.BigEndian.AppendUint16(nil, s.port))), nil
	case invalid:
		return []expr.Any{
			&expr.Ct{Key: expr.CtKeySTATE, Register: register(0)},
			masked(native(expr.CtStateBitINVALID), native(0)), differs(native(0)),
		}, nil
	case translated:
		return []expr.Any{
			&expr.Ct{Key: expr.CtKeySTATUS, Register: register(0)},
			masked(native(statusTranslated), native(0)), differs(native(0)),
		}, nil
	}
	return nil, fmt.Errorf("no expression for statement %T", s)
}

func prefixExprs(w within, family service.Family) []expr.Any {
	out := load([]field{w.field}, 0, 0, family)
	if !w.prefix.IsSingleIP() {
		mask := []byte(net.CIDRMask(w.prefix.Bits(), w.prefix.Addr().BitLen()))
		out = append(out, masked(mask, make([]byte, len(mask))))
	}
	compare := equals
	if w.not {
		compare = differs
	}
	return append(out, compare(w.prefix.Masked().Addr().AsSlice()))
}
