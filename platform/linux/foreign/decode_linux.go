// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package foreign

import (
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"kubeproxy/platform/linux/netlink"
	"kubeproxy/platform/linux/netlink/nft"
)

// passive are expressions that decide nothing.
var passive = []string{"counter", "log", "last", "dup", "flow_offload", "secmark"}

// chances are expressions that match some packets, or load what is not known of a packet.
// They have their register in the attribute that the number says, 0 for none.
var chances = map[string]uint16{
	"limit": 0, "quota": 0, "connlimit": 0, "osf": 1, "numgen": unix.NFTA_NG_DREG, "hash": unix.NFTA_HASH_DREG,
	"rt": unix.NFTA_RT_DREG, "socket": 2, "exthdr": unix.NFTA_EXTHDR_DREG, "xfrm": 1, "tunnel": 2, "inner": 0,
}

// decode decodes an expression of a rule.
func decode(family uint8, name string, data []byte) Expression {
	switch name {
	case "payload", "meta", "ct", "immediate", "bitwise", "byteorder", "fib":
		return decodeLoad(family, name, data)
	case "cmp", "range", "lookup", "dynset", "objref":
		return decodeMatch(family, name, data)
	case "nat", "masq", "redir":
		return decodeTranslation(family, name, data)
	case "reject":
		return Reject{}
	case "notrack":
		return NoTrack{}
	case "match", "target": // struct xt_entry_match and xt_entry_target without their headers
		return Extension{
			Target: name == "target", Name: netlink.Text(netlink.Attribute(data, unix.NFTA_MATCH_NAME)),
			Revision: netlink.Uint32(netlink.Attribute(data, unix.NFTA_MATCH_REV)), Info: netlink.Attribute(data, unix.NFTA_MATCH_INFO),
		}
	}
	if slices.Contains(passive, name) {
		return Passive{}
	}
	if attribute, known := chances[name]; known {
		c := Chance{Name: name}
		if attribute != 0 {
			c.To = netlink.Uint32(netlink.Attribute(data, attribute))
		}
		return c
	}
	return Opaque{"expression " + name}
}

// unmarshal decodes the attributes of an expression. What cannot be decoded may do anything.
func unmarshal(family uint8, name string, data []byte, x expr.Any) (undecoded Expression) {
	if err := expr.Unmarshal(family, data, x); err != nil {
		return Opaque{"expression " + name}
	}
	return nil
}

const bitwiseOp = 6 // NFTA_BITWISE_OP of nf_tables.h; 0 is the mask

// decodeLoad decodes expressions that read or write a register.
func decodeLoad(family uint8, name string, data []byte) Expression {
	switch name {
	case "payload":
		var x expr.Payload
		if u := unmarshal(family, name, data, &x); u != nil {
			return u
		}
		if x.SourceRegister != 0 {
			return PayloadStore{uint8(x.Base)}
		}
		return PayloadLoad{uint8(x.Base), int(x.Offset), int(x.Len), x.DestRegister}
	case "meta":
		var x expr.Meta
		if u := unmarshal(family, name, data, &x); u != nil {
			return u
		}
		if x.SourceRegister {
			return MetaStore{uint32(x.Key), x.Register}
		}
		return MetaLoad{uint32(x.Key), x.Register}
	case "ct":
		return decodeConntrack(data)
	case "fib":
		var x expr.Fib
		if u := unmarshal(family, name, data, &x); u != nil {
			return u
		}
		if x.FlagOIF || x.FlagSADDR && x.FlagDADDR {
			return Chance{name, x.Register}
		}
		return Fib{To: x.Register, Source: x.FlagSADDR, Interfaces: x.FlagIIF, Type: x.ResultADDRTYPE, Name: x.ResultOIFNAME, Present: x.FlagPRESENT}
	}
	return decodeComputation(family, name, data)
}

// decodeConntrack decodes the expression ct. That of the library takes the direction, which
// has one byte, for a number of four.
func decodeConntrack(data []byte) Expression {
	key := netlink.Uint32(netlink.Attribute(data, unix.NFTA_CT_KEY))
	if from := netlink.Attribute(data, unix.NFTA_CT_SREG); from != nil {
		return ConntrackStore{key, netlink.Uint32(from)}
	}
	direction := netlink.Attribute(data, unix.NFTA_CT_DIRECTION)
	return ConntrackLoad{key, netlink.Uint32(netlink.Attribute(data, unix.NFTA_CT_DREG)), at(direction, 0)}
}

// decodeComputation decodes expressions that compute a register.
func decodeComputation(family uint8, name string, data []byte) Expression {
	switch name {
	case "bitwise":
		var x expr.Bitwise
		u := unmarshal(family, name, data, &x)
		if u == nil && netlink.Uint32(netlink.Attribute(data, bitwiseOp)) != 0 {
			return Chance{name, x.DestRegister}
		}
		if u != nil {
			return u
		}
		return Bitwise{x.SourceRegister, x.DestRegister, int(x.Len), x.Mask, x.Xor}
	case "byteorder":
		number := func(attribute uint16) uint32 { return netlink.Uint32(netlink.Attribute(data, attribute)) }
		return ByteOrder{
			From: number(unix.NFTA_BYTEORDER_SREG), To: number(unix.NFTA_BYTEORDER_DREG),
			Length: int(number(unix.NFTA_BYTEORDER_LEN)), Size: int(number(unix.NFTA_BYTEORDER_SIZE)),
		}
	}
	value := netlink.Attribute(data, unix.NFTA_IMMEDIATE_DATA)
	if v := netlink.Attribute(value, unix.NFTA_DATA_VERDICT); v != nil {
		return *decodeVerdict(v)
	}
	return Immediate{netlink.Uint32(netlink.Attribute(data, unix.NFTA_IMMEDIATE_DREG)), netlink.Attribute(value, unix.NFTA_DATA_VALUE)}
}

// objects that decide nothing (kernel: nf_tables.h): counters, helpers, timeouts,
// expectations and security marks.
var passiveObjects = []int{1, 3, 7, 8, 9}

// decodeMatch decodes expressions that narrow a rule.
func decodeMatch(family uint8, name string, data []byte) Expression {
	switch name {
	case "cmp":
		var x expr.Cmp
		if u := unmarshal(family, name, data, &x); u != nil {
			return u
		}
		return Compare{uint32(x.Op), x.Register, x.Data}
	case "range":
		var x expr.Range
		if u := unmarshal(family, name, data, &x); u != nil {
			return u
		}
		return Range{x.Op == expr.CmpOpNeq, x.Register, x.FromData, x.ToData}
	case "lookup":
		var x expr.Lookup
		if u := unmarshal(family, name, data, &x); u != nil {
			return u
		}
		return Lookup{Set: x.SetName, From: x.SourceRegister, Not: x.Invert, To: x.DestRegister, Map: x.IsDestRegSet}
	case "dynset":
		if netlink.Attribute(data, unix.NFTA_DYNSET_EXPR) == nil && netlink.Attribute(data, nft.DynsetExprs) == nil {
			return Passive{}
		}
		return Chance{Name: name}
	}
	if typ := int(netlink.Uint32(netlink.Attribute(data, unix.NFTA_OBJREF_IMM_TYPE))); slices.Contains(passiveObjects, typ) {
		return Passive{}
	}
	return Chance{Name: name}
}

func decodeTranslation(family uint8, name string, data []byte) Expression {
	switch name {
	case "masq":
		return Translate{Source: true}
	case "redir":
		return Translate{Redirect: true}
	}
	var x expr.NAT
	if u := unmarshal(family, name, data, &x); u != nil {
		return u
	}
	return Translate{Source: x.Type == expr.NATTypeSourceNAT, Addr: x.RegAddrMin, Port: x.RegProtoMin}
}
