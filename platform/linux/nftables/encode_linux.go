// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink"
	"kubeproxy/platform/linux/packet"
)

// ruleTag is the type of the user data with a rule's fingerprint. nft skips unknown types.
const ruleTag userdata.Type = 200

// maxList bounds the bytes of elements in one message. The length of the attribute that
// holds them is a 16-bit number (kernel: include/uapi/linux/netlink.h, struct nlattr).
const maxList = 60000

// encoder encodes ops as one batch.
type encoder struct {
	netlink.Encoder
	name   string // of the table
	family service.Family
	nf     uint8
	// The open element message. list is 0 if there is none.
	verb verb
	in   *set
	list int
}

func newEncoder(f service.Family) *encoder {
	return &encoder{name: TableName, family: f, nf: netlink.NFTFamily(f)}
}

// maxKeptBuffer bounds the buffer that an encoder keeps for the next batch.
const maxKeptBuffer = 64 << 10

// release frees the memory of a large batch.
func (e *encoder) release() {
	if cap(e.Buf) > maxKeptBuffer {
		e.Buf = nil
	}
}

// opSize is the approximate size of an op in a batch.
const opSize = 80

// batch returns the messages for ops, valid until the next call. The last one asks for an answer.
func (e *encoder) batch(ops []op) ([]byte, error) {
	if _, err := e.dryRun(ops); err != nil {
		return nil, err
	}
	e.NetfilterMessage(unix.NFNL_MSG_BATCH_END, 0, 0, unix.NFNL_SUBSYS_NFTABLES)
	e.EndMessage()
	return e.Buf, nil
}

// dryRun returns a batch without its end message. The kernel checks such a batch,
// answers, and applies nothing (kernel: net/netfilter/nfnetlink.c, nfnetlink_rcv_batch).
func (e *encoder) dryRun(ops []op) ([]byte, error) {
	e.Buf = slices.Grow(e.Buf[:0], len(ops)*opSize)
	e.NetfilterMessage(unix.NFNL_MSG_BATCH_BEGIN, 0, 0, unix.NFNL_SUBSYS_NFTABLES)
	e.EndMessage()
	for i := range ops {
		if err := e.op(&ops[i]); err != nil {
			return nil, err
		}
	}
	e.endElements()
	e.AddFlags(unix.NLM_F_ACK)
	return e.Buf, nil
}

func (e *encoder) op(o *op) error {
	if o.verb == addElement || o.verb == delElement {
		e.element(o)
		return nil
	}
	e.endElements()
	switch o.verb {
	case addTable, delTable, clearDormant:
		e.table(o.verb)
	case addSet:
		e.set(o.set)
	case delSet:
		e.namedMessage(unix.NFT_MSG_DELSET, unix.NFTA_SET_TABLE, unix.NFTA_SET_NAME, o.set.name)
	case addChain:
		e.chain(o.chain)
	case acceptPolicy:
		e.acceptPolicy(o.chain.name)
	case delChain:
		e.namedMessage(unix.NFT_MSG_DELCHAIN, unix.NFTA_CHAIN_TABLE, unix.NFTA_CHAIN_NAME, o.chain.name)
	case flushChain:
		e.namedMessage(unix.NFT_MSG_DELRULE, unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN, o.chain.name)
	case addRules:
		for _, r := range o.chain.rules {
			if err := e.rule(o.chain.name, r); err != nil {
				return fmt.Errorf("encode a rule of chain %s: %w", o.chain.name, err)
			}
		}
	}
	return nil
}

func (e *encoder) table(v verb) {
	msg, flags := unix.NFT_MSG_NEWTABLE, uint16(unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	if v == delTable {
		msg, flags = unix.NFT_MSG_DELTABLE, 0
	}
	if v == clearDormant {
		flags = 0
	}
	e.NetfilterMessage(netlink.NFTType(msg), flags, e.nf, 0)
	e.Text(unix.NFTA_TABLE_NAME, e.name)
	if v == clearDormant {
		e.Uint32(unix.NFTA_TABLE_FLAGS, 0)
	}
	e.EndMessage()
}

// acceptPolicy sets the policy of an existing base chain to accept.
func (e *encoder) acceptPolicy(chain string) {
	e.NetfilterMessage(netlink.NFTType(unix.NFT_MSG_NEWCHAIN), 0, e.nf, 0)
	e.Text(unix.NFTA_CHAIN_TABLE, e.name)
	e.Text(unix.NFTA_CHAIN_NAME, chain)
	e.Uint32(unix.NFTA_CHAIN_POLICY, netlink.Accept)
	e.EndMessage()
}

// namedMessage writes a message that needs only a table and a name.
func (e *encoder) namedMessage(msg int, table, attr uint16, name string) {
	e.NetfilterMessage(netlink.NFTType(msg), 0, e.nf, 0)
	e.Text(table, e.name)
	e.Text(attr, name)
	e.EndMessage()
}

func (e *encoder) set(s *set) {
	e.NetfilterMessage(netlink.NFTType(unix.NFT_MSG_NEWSET), unix.NLM_F_CREATE|unix.NLM_F_EXCL, e.nf, 0)
	e.Text(unix.NFTA_SET_TABLE, e.name)
	e.Text(unix.NFTA_SET_NAME, s.name)
	e.Uint32(unix.NFTA_SET_FLAGS, s.flags())
	e.Uint32(unix.NFTA_SET_KEY_TYPE, typeIDs(s.key, e.family))
	e.Uint32(unix.NFTA_SET_KEY_LEN, uint32(keySize(s.key, e.family)))
	switch {
	case s.kind == verdictMap:
		e.Uint32(unix.NFTA_SET_DATA_TYPE, unix.NFT_DATA_VERDICT)
		e.Uint32(unix.NFTA_SET_DATA_LEN, 0)
	case s.kind != plainSet:
		e.Uint32(unix.NFTA_SET_DATA_TYPE, typeIDs(s.valueFields(), e.family))
		e.Uint32(unix.NFTA_SET_DATA_LEN, uint32(keySize(s.valueFields(), e.family)))
	}
	e.Uint32(unix.NFTA_SET_ID, e.Seq) // must only be unique within the batch
	if s.timeout != 0 {
		e.Uint64(unix.NFTA_SET_TIMEOUT, uint64(s.timeout.Milliseconds()))
	}
	e.describe(s)
	e.Bytes(unix.NFTA_SET_USERDATA, s.userData(e.family))
	e.EndMessage()
}

// describe writes the hints by which the kernel selects the data structure of s. A set
// that rules do not fill gets no size. With a size, the kernel would select a hash of
// fixed size (kernel: net/netfilter/nft_set_hash.c, nft_hash_estimate).
func (e *encoder) describe(s *set) {
	if s.timeout == 0 && !s.interval {
		return
	}
	desc := e.Nest(unix.NFTA_SET_DESC)
	if s.limit != 0 {
		e.Uint32(unix.NFTA_SET_DESC_SIZE, s.limit)
	}
	if s.interval {
		concat := e.Nest(netlink.SetDescConcat)
		for _, f := range s.key {
			elem := e.Nest(unix.NFTA_LIST_ELEM)
			e.Uint32(netlink.SetFieldLen, f.bareSize(e.family))
			e.EndNest(elem)
		}
		e.EndNest(concat)
	}
	e.EndNest(desc)
}

// bareSize returns the size of f in bytes without padding.
func (f field) bareSize(family service.Family) uint32 {
	switch f {
	case proto:
		return 1
	case dport:
		return 2
	}
	return uint32(f.size(family))
}

var hookNumbers = map[string]uint32{
	"prerouting": unix.NF_INET_PRE_ROUTING, "input": unix.NF_INET_LOCAL_IN,
	"output": unix.NF_INET_LOCAL_OUT, "postrouting": unix.NF_INET_POST_ROUTING,
	"forward": unix.NF_INET_FORWARD,
}

func (e *encoder) chain(c *chain) {
	e.NetfilterMessage(netlink.NFTType(unix.NFT_MSG_NEWCHAIN), unix.NLM_F_CREATE|unix.NLM_F_EXCL, e.nf, 0)
	e.Text(unix.NFTA_CHAIN_TABLE, e.name)
	e.Text(unix.NFTA_CHAIN_NAME, c.name)
	if c.hook != nil {
		hook := e.Nest(unix.NFTA_CHAIN_HOOK)
		e.Uint32(unix.NFTA_HOOK_HOOKNUM, hookNumbers[c.hook.name])
		e.Uint32(unix.NFTA_HOOK_PRIORITY, uint32(int32(c.hook.priority)))
		e.EndNest(hook)
		e.Uint32(unix.NFTA_CHAIN_POLICY, netlink.Accept)
		e.Text(unix.NFTA_CHAIN_TYPE, c.hook.typ())
	}
	e.EndMessage()
}

func (e *encoder) rule(chain string, r rule) error {
	e.NetfilterMessage(netlink.NFTType(unix.NFT_MSG_NEWRULE), unix.NLM_F_CREATE|unix.NLM_F_APPEND, e.nf, 0)
	e.Text(unix.NFTA_RULE_TABLE, e.name)
	e.Text(unix.NFTA_RULE_CHAIN, chain)
	list := e.Nest(unix.NFTA_RULE_EXPRESSIONS)
	for _, s := range r {
		for _, x := range s.expressions(e.family) {
			if err := e.expr(x); err != nil {
				return err
			}
		}
	}
	e.EndNest(list)
	e.Bytes(unix.NFTA_RULE_USERDATA, userdata.Append(nil, ruleTag, []byte(r.fingerprint(e.family))))
	e.EndMessage()
	return nil
}

// expr writes an expression. The library leaves out the direction of ct keys that need one.
func (e *encoder) expr(x packet.Expression) error {
	elem := e.Nest(unix.NFTA_LIST_ELEM)
	if ct, ok := x.(packet.ConntrackLoad); ok && ct.Key != packet.CtStatus && ct.Key != packet.CtState && ct.Key != packet.CtDirection {
		e.Text(unix.NFTA_EXPR_NAME, "ct")
		data := e.Nest(unix.NFTA_EXPR_DATA)
		e.Uint32(unix.NFTA_CT_KEY, ct.Key)
		e.Uint32(unix.NFTA_CT_DREG, ct.To)
		e.Bytes(unix.NFTA_CT_DIRECTION, []byte{ct.Direction})
		e.EndNest(data)
		e.EndNest(elem)
		return nil
	}
	known, err := e.encoded(x)
	if err != nil {
		return err
	}
	b, err := expr.Marshal(e.nf, known)
	if err != nil {
		return err
	}
	e.Buf = append(e.Buf, b...)
	e.EndNest(elem)
	return nil
}

// element appends o to the open message of its verb and set, if there is room, or to a new one.
func (e *encoder) element(o *op) {
	if e.list == 0 || e.verb != o.verb || e.in.name != o.element.in.name || len(e.Buf)-e.list > maxList {
		e.endElements()
		msg, flags := unix.NFT_MSG_NEWSETELEM, uint16(unix.NLM_F_CREATE)
		if o.verb == delElement {
			msg, flags = unix.NFT_MSG_DELSETELEM, 0
		}
		e.NetfilterMessage(netlink.NFTType(msg), flags, e.nf, 0)
		e.Text(unix.NFTA_SET_ELEM_LIST_TABLE, e.name)
		e.Text(unix.NFTA_SET_ELEM_LIST_SET, o.element.in.name)
		e.verb, e.in, e.list = o.verb, o.element.in, e.Nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	}
	x := &o.element
	elem := e.Nest(unix.NFTA_LIST_ELEM)
	if x.catchAll {
		e.Uint32(unix.NFTA_SET_ELEM_FLAGS, netlink.ElemCatchAll)
	} else {
		e.value(unix.NFTA_SET_ELEM_KEY, x.key)
	}
	if x.end != nil {
		e.value(netlink.ElemKeyEnd, x.end)
	}
	if o.verb == addElement {
		e.data(x)
	}
	e.EndNest(elem)
}

func (e *encoder) value(typ uint16, b []byte) {
	n := e.Nest(typ)
	e.Bytes(unix.NFTA_DATA_VALUE, b)
	e.EndNest(n)
}

func (e *encoder) data(x *element) {
	switch x.in.kind {
	case targetMap, addrMap, markMap:
		e.value(unix.NFTA_SET_ELEM_DATA, x.value)
	case verdictMap:
		data := e.Nest(unix.NFTA_SET_ELEM_DATA)
		v := e.Nest(unix.NFTA_DATA_VERDICT)
		code := uint32(netlink.Drop)
		if x.verdict.code == verdictGoto {
			code = uint32(0xffffffff & unix.NFT_GOTO)
		}
		e.Uint32(unix.NFTA_VERDICT_CODE, code)
		if x.verdict.chain != "" {
			e.Text(unix.NFTA_VERDICT_CHAIN, x.verdict.chain)
		}
		e.EndNest(v)
		e.EndNest(data)
	}
	if x.comment != "" {
		e.Bytes(unix.NFTA_SET_ELEM_USERDATA, userdata.AppendString(nil, userdata.NFTNL_UDATA_SET_ELEM_COMMENT, x.comment))
	}
}

func (e *encoder) endElements() {
	if e.list != 0 {
		e.EndNest(e.list)
		e.EndMessage()
		e.list = 0
	}
}

// encoded returns the form of x that the library encodes.
func (e *encoder) encoded(x packet.Expression) (expr.Any, error) {
	switch x := x.(type) {
	case packet.PayloadLoad:
		return &expr.Payload{DestRegister: x.To, Base: expr.PayloadBase(x.Base), Offset: uint32(x.Offset), Len: uint32(x.Size)}, nil
	case packet.MetaLoad:
		return &expr.Meta{Key: expr.MetaKey(x.Key), Register: x.To}, nil
	case packet.MetaStore:
		return &expr.Meta{Key: expr.MetaKey(x.Key), Register: x.From, SourceRegister: true}, nil
	case packet.ConntrackLoad:
		return &expr.Ct{Key: expr.CtKey(x.Key), Register: x.To}, nil
	case packet.Random:
		return &expr.Numgen{Register: x.To, Modulus: x.Below, Type: unix.NFT_NG_RANDOM}, nil
	case packet.Hash:
		return &expr.Hash{SourceRegister: x.From, DestRegister: x.To, Length: uint32(x.Size), Modulus: x.Below, Seed: x.Seed, Type: unix.NFT_HASH_JENKINS}, nil
	case packet.Fib:
		return &expr.Fib{Register: x.To, ResultADDRTYPE: x.Type, FlagSADDR: x.Source, FlagDADDR: !x.Source}, nil
	case packet.Immediate:
		return &expr.Immediate{Register: x.To, Data: x.Data}, nil
	case packet.Bitwise:
		return &expr.Bitwise{SourceRegister: x.From, DestRegister: x.To, Len: uint32(x.Size), Mask: x.Mask, Xor: x.Flip}, nil
	case packet.Compare:
		return &expr.Cmp{Op: expr.CmpOp(x.Op), Register: x.From, Data: x.Data}, nil
	case packet.Lookup:
		return &expr.Lookup{SourceRegister: x.From, DestRegister: x.To, IsDestRegSet: x.Map, SetName: x.Set, Invert: x.Not}, nil
	case packet.Verdict:
		return &expr.Verdict{Kind: expr.VerdictKind(x.Code), Chain: x.Chain}, nil
	}
	return e.action(x)
}

// action is encoded for what ends a rule or records something.
func (e *encoder) action(x packet.Expression) (expr.Any, error) {
	switch x := x.(type) {
	case packet.Translate:
		if x.Source {
			return &expr.Masq{FullyRandom: true}, nil
		}
		return &expr.NAT{
			Type: expr.NATTypeDestNAT, Family: uint32(e.nf), RegAddrMin: x.Addr, RegAddrMax: x.Addr, RegProtoMin: x.Port, RegProtoMax: x.Port,
		}, nil
	case packet.Reject:
		const icmpPortUnreachable, icmpv6PortUnreachable = 3, 4
		switch {
		case x.TCP:
			return &expr.Reject{Type: unix.NFT_REJECT_TCP_RST}, nil
		case e.family == service.IPv6:
			return &expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: icmpv6PortUnreachable}, nil
		}
		return &expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: icmpPortUnreachable}, nil
	case recordClient:
		return &expr.Dynset{SrcRegKey: register(0), SrcRegData: register(4), SetName: x.in.name, Operation: unix.NFT_DYNSET_OP_UPDATE}, nil
	case countConnection:
		return &expr.Dynset{SrcRegKey: register(0), SetName: x.in.name, Operation: unix.NFT_DYNSET_OP_UPDATE, Exprs: []expr.Any{&expr.Counter{}}}, nil
	case counter:
		return &expr.Counter{}, nil
	case untracked:
		return &expr.Notrack{}, nil
	case clampMSS:
		const maxSegment = 2
		return &expr.Exthdr{SourceRegister: register(0), Type: maxSegment, Offset: 2, Len: 2, Op: expr.ExthdrOpTcpopt}, nil
	}
	return nil, fmt.Errorf("no expression of the kernel for %T", x)
}

// The kernel stores user data with a set, where nft keeps the declaration, without which it could
// not load its own listing of our maps. The constants describe that format, as nft 1.0.6 to 1.1
// write and read it: type, length and value, of one byte, one byte and length bytes, numbers in
// host byte order.
const (
	udataKeyOrder   = 0
	udataDataOrder  = 1
	udataKeyTypeof  = 3
	udataDataTypeof = 4
	udataDataRange  = 6

	orderMixed  = 0
	orderHost   = 1
	orderBig    = 2
	exprVerdict = 1
	exprPayload = 7
	exprMeta    = 9
	exprConcat  = 13
	exprNumgen  = 23

	headerTransport                       = 11
	fieldSourcePort, fieldDestinationPort = 1, 2
	headerIPv4, fieldIPv4Source           = 12, 11
	headerIPv6, fieldIPv6Source           = 13, 8
	metaL4Proto                           = 16
)

func tlv(b []byte, typ byte, value []byte) []byte {
	return append(append(b, typ, byte(len(value))), value...)
}

func tlv32(b []byte, typ byte, n uint32) []byte {
	return tlv(b, typ, binary.NativeEndian.AppendUint32(nil, n))
}

// typeofExpr encodes an expression by its kind and the data of that kind.
func typeofExpr(kind uint32, data []byte) []byte { return tlv(tlv32(nil, 0, kind), 1, data) }

func typeofField(f field, family service.Family) []byte {
	switch f {
	case proto:
		return typeofExpr(exprMeta, tlv32(nil, 0, metaL4Proto))
	case packetMark:
		return typeofExpr(exprMeta, tlv32(nil, 0, unix.NFT_META_MARK))
	case dport, origDport:
		return typeofExpr(exprPayload, tlv32(tlv32(nil, 0, headerTransport), 1, fieldDestinationPort))
	case sport, origSport:
		return typeofExpr(exprPayload, tlv32(tlv32(nil, 0, headerTransport), 1, fieldSourcePort))
	case slot:
		return typeofExpr(exprNumgen, tlv32(tlv32(tlv32(nil, 0, 1), 1, 65536), 2, 0))
	}
	header, source := uint32(headerIPv4), uint32(fieldIPv4Source)
	if family == service.IPv6 {
		header, source = headerIPv6, fieldIPv6Source
	}
	if f == daddr || f == origDaddr {
		source++
	}
	return typeofExpr(exprPayload, tlv32(tlv32(nil, 0, header), 1, source))
}

// typeofFields encodes one field, or several as a concatenation, and returns the byte order.
func typeofFields(fields []field, family service.Family) (desc []byte, order uint32) {
	if len(fields) == 1 {
		order = orderBig
		if fields[0] == slot || fields[0] == packetMark {
			order = orderHost
		}
		return typeofField(fields[0], family), order
	}
	var parts []byte
	for i, f := range fields {
		parts = tlv(parts, byte(i), typeofField(f, family))
	}
	return typeofExpr(exprConcat, parts), orderMixed
}

// userData returns the declaration of s for nft.
func (s *set) userData(family service.Family) []byte {
	key, keyOrder := typeofFields(s.key, family)
	b := tlv32(nil, udataKeyOrder, keyOrder)
	if s.kind == plainSet {
		return tlv(b, udataKeyTypeof, key)
	}
	data, order := typeofExpr(exprVerdict, nil), uint32(orderMixed)
	if s.kind != verdictMap {
		data, order = typeofFields(s.valueFields(), family)
	}
	b = tlv32(b, udataDataOrder, order)
	b = tlv(tlv(b, udataKeyTypeof, key), udataDataTypeof, data)
	return tlv32(b, udataDataRange, 0)
}

// typeID returns nft's number for the type of f, which the kernel does not interpret.
func (f field) typeID(family service.Family) uint32 {
	const ipv4Addr, ipv6Addr, inetProto, inetService, integer, mark = 7, 8, 12, 13, 4, 19
	switch {
	case f.isAddr() && family == service.IPv6:
		return ipv6Addr
	case f.isAddr():
		return ipv4Addr
	case f == proto:
		return inetProto
	case f == slot:
		return integer
	case f == packetMark:
		return mark
	}
	return inetService
}

// typeIDs returns the type of a concatenation, with six bits for each part.
func typeIDs(fields []field, family service.Family) uint32 {
	id := uint32(0)
	for _, f := range fields {
		id = id<<6 | f.typeID(family)
	}
	return id
}
