// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink"
	"kubeproxy/platform/linux/netlink/nft"
)

// ruleTag is the type of the user data that holds a rule's fingerprint. nft skips types
// it does not know.
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
	return &encoder{name: TableName, family: f, nf: nft.Family(f)}
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

// batch returns the messages for ops. The result is valid until the next call. The last
// message requests an acknowledgement.
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
	e.NetfilterMessage(nft.Type(msg), flags, e.nf, 0)
	e.Text(unix.NFTA_TABLE_NAME, e.name)
	if v == clearDormant {
		e.Uint32(unix.NFTA_TABLE_FLAGS, 0)
	}
	e.EndMessage()
}

// acceptPolicy sets the policy of an existing base chain to accept.
func (e *encoder) acceptPolicy(chain string) {
	e.NetfilterMessage(nft.Type(unix.NFT_MSG_NEWCHAIN), 0, e.nf, 0)
	e.Text(unix.NFTA_CHAIN_TABLE, e.name)
	e.Text(unix.NFTA_CHAIN_NAME, chain)
	e.Uint32(unix.NFTA_CHAIN_POLICY, nft.Accept)
	e.EndMessage()
}

// namedMessage writes a message that needs only a table and a name.
func (e *encoder) namedMessage(msg int, table, attr uint16, name string) {
	e.NetfilterMessage(nft.Type(msg), 0, e.nf, 0)
	e.Text(table, e.name)
	e.Text(attr, name)
	e.EndMessage()
}

func (e *encoder) set(s *set) {
	e.NetfilterMessage(nft.Type(unix.NFT_MSG_NEWSET), unix.NLM_F_CREATE|unix.NLM_F_EXCL, e.nf, 0)
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
		concat := e.Nest(nft.SetDescConcat)
		for _, f := range s.key {
			elem := e.Nest(unix.NFTA_LIST_ELEM)
			e.Uint32(nft.SetFieldLen, f.bareSize(e.family))
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
	e.NetfilterMessage(nft.Type(unix.NFT_MSG_NEWCHAIN), unix.NLM_F_CREATE|unix.NLM_F_EXCL, e.nf, 0)
	e.Text(unix.NFTA_CHAIN_TABLE, e.name)
	e.Text(unix.NFTA_CHAIN_NAME, c.name)
	if c.hook != nil {
		hook := e.Nest(unix.NFTA_CHAIN_HOOK)
		e.Uint32(unix.NFTA_HOOK_HOOKNUM, hookNumbers[c.hook.name])
		e.Uint32(unix.NFTA_HOOK_PRIORITY, uint32(int32(c.hook.priority)))
		e.EndNest(hook)
		e.Uint32(unix.NFTA_CHAIN_POLICY, nft.Accept)
		e.Text(unix.NFTA_CHAIN_TYPE, c.hook.typ())
	}
	e.EndMessage()
}

func (e *encoder) rule(chain string, r rule) error {
	e.NetfilterMessage(nft.Type(unix.NFT_MSG_NEWRULE), unix.NLM_F_CREATE|unix.NLM_F_APPEND, e.nf, 0)
	e.Text(unix.NFTA_RULE_TABLE, e.name)
	e.Text(unix.NFTA_RULE_CHAIN, chain)
	list := e.Nest(unix.NFTA_RULE_EXPRESSIONS)
	for _, s := range r {
		exprs, err := expressions(s, e.family)
		if err != nil {
			return err
		}
		for _, x := range exprs {
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

// expr writes one expression. The library does not encode the direction of those ct keys
// that need one.
func (e *encoder) expr(x expr.Any) error {
	elem := e.Nest(unix.NFTA_LIST_ELEM)
	if ct, ok := x.(*expr.Ct); ok && ct.Key != expr.CtKeySTATUS && ct.Key != expr.CtKeySTATE {
		e.Text(unix.NFTA_EXPR_NAME, "ct")
		data := e.Nest(unix.NFTA_EXPR_DATA)
		e.Uint32(unix.NFTA_CT_KEY, uint32(ct.Key))
		e.Uint32(unix.NFTA_CT_DREG, ct.Register)
		e.Bytes(unix.NFTA_CT_DIRECTION, []byte{0}) // original
		e.EndNest(data)
		e.EndNest(elem)
		return nil
	}
	b, err := expr.Marshal(e.nf, x)
	if err != nil {
		return err
	}
	e.Buf = append(e.Buf, b...)
	e.EndNest(elem)
	return nil
}

// element appends o to the open message if that one has the same verb, the same set, and
// room. Otherwise it starts a new message.
func (e *encoder) element(o *op) {
	if e.list == 0 || e.verb != o.verb || e.in.name != o.element.in.name || len(e.Buf)-e.list > maxList {
		e.endElements()
		msg, flags := unix.NFT_MSG_NEWSETELEM, uint16(unix.NLM_F_CREATE)
		if o.verb == delElement {
			msg, flags = unix.NFT_MSG_DELSETELEM, 0
		}
		e.NetfilterMessage(nft.Type(msg), flags, e.nf, 0)
		e.Text(unix.NFTA_SET_ELEM_LIST_TABLE, e.name)
		e.Text(unix.NFTA_SET_ELEM_LIST_SET, o.element.in.name)
		e.verb, e.in, e.list = o.verb, o.element.in, e.Nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	}
	x := &o.element
	elem := e.Nest(unix.NFTA_LIST_ELEM)
	if x.catchAll {
		e.Uint32(unix.NFTA_SET_ELEM_FLAGS, nft.ElemCatchAll)
	} else {
		e.value(unix.NFTA_SET_ELEM_KEY, x.key)
	}
	if x.end != nil {
		e.value(nft.ElemKeyEnd, x.end)
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
	case targetMap, addrMap:
		e.value(unix.NFTA_SET_ELEM_DATA, x.value)
	case verdictMap:
		data := e.Nest(unix.NFTA_SET_ELEM_DATA)
		v := e.Nest(unix.NFTA_DATA_VERDICT)
		code := uint32(nft.Drop)
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
