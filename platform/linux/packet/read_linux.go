// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink"
)

// Kernel reads tables of nftables. It changes nothing. It reads the rules of a chain and the
// elements of a set when they are asked for the first time.
type Kernel struct {
	socket *netlink.Socket
	bases  []Base
	rules  map[Chain][]Rule
	sets   map[Chain]*Set
	beside []Unfollowed
}

// Open lists the base chains that packets of a family pass, without those of the tables in
// followed. own is the table of this program, or a followed one.
func Open(ctx context.Context, f service.Family, followed []string) (*Kernel, error) {
	s, err := netlink.Dial(unix.NETLINK_NETFILTER, netlink.Options{Buffer: 4 << 20})
	if err != nil {
		return nil, err
	}
	k := &Kernel{socket: s, rules: map[Chain][]Rule{}, sets: map[Chain]*Set{}}
	if err := k.list(ctx, f, followed); err != nil {
		k.Close()
		return nil, err
	}
	return k, nil
}

// Close closes k.
func (k *Kernel) Close() { k.socket.Close() }

// query asks for a list and passes each part to each. begin is called before each attempt.
func (k *Kernel) query(ctx context.Context, e *netlink.Encoder, begin func(), each func(family uint8, body []byte) error) error {
	e.EndMessage()
	return netlink.DumpNFT(ctx, k.socket, e.Buf, begin, each)
}

func request(msg int, family uint8) *netlink.Encoder {
	e := &netlink.Encoder{}
	e.NetfilterMessage(netlink.NFTType(msg), unix.NLM_F_DUMP, family, 0)
	return e
}

func familyNumber(name string) uint8 {
	for n, text := range netlink.FamilyNames {
		if text == name {
			return n
		}
	}
	return 0
}

// list reads the tables and the base chains. The kernel lists tables in the order of their
// age (kernel: net/netfilter/nf_tables_api.c, nf_tables_newtable).
func (k *Kernel) list(ctx context.Context, f service.Family, followed []string) error {
	var tables []string // that count, by name
	var later []string  // those younger than a followed one
	names := []string{"inet", netlink.FamilyName(f)}
	begin := func() { tables, later = nil, nil }
	err := k.query(ctx, request(unix.NFT_MSG_GETTABLE, unix.NFPROTO_UNSPEC), begin, func(family uint8, body []byte) error {
		name := netlink.FamilyNames[family] + " " + netlink.Text(netlink.Attribute(body, unix.NFTA_TABLE_NAME))
		flags := netlink.Uint32(netlink.Attribute(body, unix.NFTA_TABLE_FLAGS))
		switch {
		case slices.Contains(followed, name):
			later = []string{}
		case !slices.Contains(names, netlink.FamilyNames[family]), flags&unix.NFT_TABLE_F_DORMANT != 0:
		default:
			tables = append(tables, name)
			if later != nil {
				later = append(later, name)
			}
		}
		return nil
	})
	if netlink.LacksNFTables(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list tables of nftables: %w", err)
	}
	found, err := netlink.Chains(ctx, k.socket, unix.NFPROTO_UNSPEC)
	if err != nil {
		return err
	}
	for i := range found {
		x := &found[i]
		k.unfollowed(x)
		c := Chain{Family: netlink.FamilyNames[x.Family], Table: x.Table, Name: x.Name}
		if x.Base == nil || Hook(x.Base.Hook) > Postrouting || !slices.Contains(tables, c.tableName()) { // such as ingress
			continue
		}
		k.bases = append(k.bases, Base{
			Chain: c, Hook: Hook(x.Base.Hook), Priority: int(x.Base.Priority), NAT: x.Base.Type == "nat", Drops: x.Base.Drops,
			Later: slices.Contains(later, c.tableName()),
		})
	}
	return nil
}

// besideNames are the families whose base chains are not followed.
var besideNames = map[uint8]string{unix.NFPROTO_BRIDGE: "bridge", unix.NFPROTO_NETDEV: "netdev"}

// unfollowed remembers the table of a base chain that is not followed, as inet's at hook ingress.
func (k *Kernel) unfollowed(x *netlink.Chain) {
	family := besideNames[x.Family]
	if x.Family == unix.NFPROTO_INET && x.Base != nil && Hook(x.Base.Hook) > Postrouting {
		family = "inet"
	}
	if family == "" || x.Base == nil {
		return
	}
	i := slices.IndexFunc(k.beside, func(u Unfollowed) bool { return u.Family == family && u.Table == x.Table })
	if i < 0 {
		i, k.beside = len(k.beside), append(k.beside, Unfollowed{Family: family, Table: x.Table})
	}
	k.beside[i].Devices = append(k.beside[i].Devices, x.Base.Devices...)
}

// Unfollowed returns the tables whose base chains are not followed.
func (k *Kernel) Unfollowed() []Unfollowed { return k.beside }

// Bases implements Tables.
func (k *Kernel) Bases() []Base { return k.bases }

// Rules implements Tables.
func (k *Kernel) Rules(c Chain) ([]Rule, error) {
	if all, known := k.rules[c]; known {
		return all, nil
	}
	e := request(unix.NFT_MSG_GETRULE, familyNumber(c.Family))
	e.Text(unix.NFTA_RULE_TABLE, c.Table)
	e.Text(unix.NFTA_RULE_CHAIN, c.Name)
	var all []Rule
	err := k.query(context.Background(), e, func() { all = nil }, func(family uint8, body []byte) error {
		at := Chain{netlink.FamilyNames[family], netlink.Text(netlink.Attribute(body, unix.NFTA_RULE_TABLE)), netlink.Text(netlink.Attribute(body, unix.NFTA_RULE_CHAIN))}
		if at != c {
			return nil
		}
		all = append(all, DecodeRule(family, body))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list rules of %s: %w", c.describe(), err)
	}
	k.rules[c] = all
	return all, nil
}

// DecodeRule decodes a rule as the kernel lists it.
func DecodeRule(family uint8, body []byte) Rule {
	var r Rule
	if h := netlink.Attribute(body, unix.NFTA_RULE_HANDLE); len(h) == 8 {
		r.Handle = binary.BigEndian.Uint64(h)
	}
	r.Comment, _ = userdata.GetString(netlink.Attribute(body, unix.NFTA_RULE_USERDATA), userdata.TypeComment)
	for _, b := range netlink.Attributes(netlink.Attribute(body, unix.NFTA_RULE_EXPRESSIONS)) {
		name := netlink.Text(netlink.Attribute(b, unix.NFTA_EXPR_NAME))
		r.Expressions = append(r.Expressions, decode(family, name, slices.Clone(netlink.Attribute(b, unix.NFTA_EXPR_DATA))))
	}
	return r
}

// Set implements Tables.
func (k *Kernel) Set(in Chain, name string) (*Set, error) {
	id := Chain{in.Family, in.Table, name}
	if s, known := k.sets[id]; known {
		return s, nil
	}
	s := &Set{}
	family := familyNumber(in.Family)
	e := request(unix.NFT_MSG_GETSET, family)
	e.Text(unix.NFTA_SET_TABLE, in.Table)
	err := k.query(context.Background(), e, func() {}, func(_ uint8, body []byte) error {
		if netlink.Text(netlink.Attribute(body, unix.NFTA_SET_NAME)) == name && netlink.Text(netlink.Attribute(body, unix.NFTA_SET_TABLE)) == in.Table {
			s.describe(body)
		}
		return nil
	})
	if err == nil {
		e = request(unix.NFT_MSG_GETSETELEM, family)
		e.Text(unix.NFTA_SET_ELEM_LIST_TABLE, in.Table)
		e.Text(unix.NFTA_SET_ELEM_LIST_SET, name)
		err = k.query(context.Background(), e, func() { s.Elements = nil }, func(_ uint8, body []byte) error {
			for _, b := range netlink.Attributes(netlink.Attribute(body, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
				s.Elements = append(s.Elements, decodeElement(b))
			}
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("list set %s of table %s: %w", name, in.tableName(), err)
	}
	if s.Intervals {
		s.sort()
	}
	k.sets[id] = s
	return s, nil
}

// describe takes over the description of a set.
func (s *Set) describe(body []byte) {
	flags := netlink.Uint32(netlink.Attribute(body, unix.NFTA_SET_FLAGS))
	concat := netlink.Attribute(netlink.Attribute(body, unix.NFTA_SET_DESC), netlink.SetDescConcat)
	for _, field := range netlink.Attributes(concat) {
		s.Fields = append(s.Fields, int(netlink.Uint32(netlink.Attribute(field, netlink.SetFieldLen))))
	}
	s.Intervals = flags&unix.NFT_SET_INTERVAL != 0 && flags&netlink.SetConcatenated == 0 && len(s.Fields) < 2
}

func decodeElement(b []byte) Element {
	var e Element
	for typ, v := range netlink.Attributes(b) {
		switch typ {
		case unix.NFTA_SET_ELEM_KEY:
			e.Key = slices.Clone(netlink.Attribute(v, unix.NFTA_DATA_VALUE))
		case netlink.ElemKeyEnd:
			e.KeyEnd = slices.Clone(netlink.Attribute(v, unix.NFTA_DATA_VALUE))
		case unix.NFTA_SET_ELEM_FLAGS:
			flags := netlink.Uint32(v)
			e.End, e.CatchAll = flags&unix.NFT_SET_ELEM_INTERVAL_END != 0, flags&netlink.ElemCatchAll != 0
		case unix.NFTA_SET_ELEM_EXPR:
			e.Conditional = e.Conditional || conditional(v)
		case netlink.ElemExprs:
			for _, x := range netlink.Attributes(v) {
				e.Conditional = e.Conditional || conditional(x)
			}
		case unix.NFTA_SET_ELEM_DATA:
			if x := netlink.Attribute(v, unix.NFTA_DATA_VERDICT); x != nil {
				e.Verdict = decodeVerdict(x)
			} else {
				e.Data = slices.Clone(netlink.Attribute(v, unix.NFTA_DATA_VALUE))
			}
		}
	}
	return e
}

// conditional reports whether an expression of an element may not match.
func conditional(b []byte) bool {
	return !slices.Contains([]string{"counter", "last"}, netlink.Text(netlink.Attribute(b, unix.NFTA_EXPR_NAME)))
}

func decodeVerdict(b []byte) *Verdict {
	chain := netlink.Attribute(b, unix.NFTA_VERDICT_CHAIN)
	return &Verdict{int32(netlink.Uint32(netlink.Attribute(b, unix.NFTA_VERDICT_CODE))), string([]byte(netlink.Text(chain)))}
}

// passive are expressions that decide nothing.
var passive = []string{"counter", "log", "last", "dup", "flow_offload", "secmark"}

// chances are expressions that match some packets, or load what is not known of a packet.
// They have their register in the attribute that the number says, 0 for none.
var chances = map[string]uint16{
	"limit": 0, "quota": 0, "connlimit": 0, "osf": 1, "numgen": unix.NFTA_NG_DREG, "hash": unix.NFTA_HASH_DREG,
	"rt": unix.NFTA_RT_DREG, "socket": 2, "exthdr": unix.NFTA_EXTHDR_DREG, "xfrm": 1, "tunnel": 2, "inner": 0,
}

// most bounds the choices that are followed.
const most = 1 << 16

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
		return Reject{TCP: netlink.Uint32(netlink.Attribute(data, unix.NFTA_REJECT_TYPE)) == unix.NFT_REJECT_TCP_RST}
	case "notrack":
		return NoTrack{}
	case "numgen":
		number := func(attribute uint16) uint32 { return netlink.Uint32(netlink.Attribute(data, attribute)) }
		if below := number(unix.NFTA_NG_MODULUS); below <= most && number(unix.NFTA_NG_TYPE) == unix.NFT_NG_RANDOM && number(unix.NFTA_NG_OFFSET) == 0 {
			return Random{To: number(unix.NFTA_NG_DREG), Below: below}
		}
	case "hash":
		var x expr.Hash
		if u := unmarshal(family, name, data, &x); u == nil && x.Type == unix.NFT_HASH_JENKINS && x.Offset == 0 && x.Modulus <= most {
			return Hash{From: x.SourceRegister, To: x.DestRegister, Size: int(x.Length), Below: x.Modulus, Seed: x.Seed}
		}
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
		c := Chance{Name: "expression " + name}
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
			return Chance{Name: "expression " + name, To: x.Register}
		}
		return Fib{To: x.Register, Source: x.FlagSADDR, Interfaces: x.FlagIIF, Type: x.ResultADDRTYPE, Name: x.ResultOIFNAME, Present: x.FlagPRESENT}
	}
	return decodeComputation(family, name, data)
}

// decodeConntrack decodes the expression ct. The library's takes the direction for four bytes.
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
			return Chance{Name: "expression " + name, To: x.DestRegister}
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

// objects that decide nothing (kernel: nf_tables.h): counters, helpers, timeouts and the like.
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
		if netlink.Attribute(data, unix.NFTA_DYNSET_EXPR) == nil && netlink.Attribute(data, netlink.DynsetExprs) == nil {
			return Passive{}
		}
		return Chance{Name: "expression " + name}
	}
	if typ := int(netlink.Uint32(netlink.Attribute(data, unix.NFTA_OBJREF_IMM_TYPE))); slices.Contains(passiveObjects, typ) {
		return Passive{}
	}
	return Chance{Name: "expression " + name}
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
