// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"kubeproxy/platform/linux/netlink"
	"kubeproxy/platform/linux/netlink/nft"
)

// reader reads our table from the kernel.
type reader struct {
	*netlink.Socket
	netlink.Encoder
	nf    uint8
	name  string // of the table
	table *table
}

// request sends a dump request and passes every answer about our table to each. fill, if
// not nil, writes further attributes.
func (r *reader) request(msg int, tableAttr uint16, fill func(), each func(body []byte) error) error {
	r.Buf = r.Buf[:0]
	r.NetfilterMessage(nft.Type(msg), unix.NLM_F_DUMP, r.nf, 0)
	r.Text(tableAttr, r.name)
	if fill != nil {
		fill()
	}
	r.EndMessage()
	return r.Query(context.Background(), r.Buf, func(m netlink.Message) error {
		family, body := m.Netfilter()
		if family != r.nf || netlink.Text(netlink.Attribute(body, tableAttr)) != r.name {
			return nil
		}
		return each(body)
	})
}

// find reads the table itself. It leaves r.table nil if there is none. A table with the
// flag owner is an error: only its owner process can change it, and it disappears with
// that process, see https://git.kernel.org/torvalds/c/6001a930ce03.
func (r *reader) find() error {
	r.table = nil
	return r.request(unix.NFT_MSG_GETTABLE, unix.NFTA_TABLE_NAME, nil, func(body []byte) error {
		flags := netlink.Uint32(netlink.Attribute(body, unix.NFTA_TABLE_FLAGS))
		if flags&nft.TableOwned != 0 {
			return fmt.Errorf("another process, of netlink port %d, has reserved it (flag owner): end that process", netlink.Uint32(netlink.Attribute(body, nft.TableOwner)))
		}
		r.table = &table{
			dormant: flags&unix.NFT_TABLE_F_DORMANT != 0, otherFlags: flags&^unix.NFT_TABLE_F_DORMANT != 0,
			chains: map[string]*observedChain{}, sets: map[string]*observedSet{},
		}
		return nil
	})
}

func (r *reader) read() error {
	if err := r.request(unix.NFT_MSG_GETCHAIN, unix.NFTA_CHAIN_TABLE, nil, r.chain); err != nil {
		return fmt.Errorf("list chains: %w", err)
	}
	if err := r.request(unix.NFT_MSG_GETRULE, unix.NFTA_RULE_TABLE, nil, r.rule); err != nil {
		return fmt.Errorf("list rules: %w", err)
	}
	if err := r.request(unix.NFT_MSG_GETSET, unix.NFTA_SET_TABLE, nil, r.set); err != nil {
		return fmt.Errorf("list sets: %w", err)
	}
	for name, s := range r.table.sets {
		if name == connections.name {
			continue // rules fill it, and nothing depends on what it holds
		}
		if err := r.elements(name, s); err != nil {
			return fmt.Errorf("list elements of set %s: %w", name, err)
		}
	}
	return nil
}

func (r *reader) chain(body []byte) error {
	c := &observedChain{}
	if hook := netlink.Attribute(body, unix.NFTA_CHAIN_HOOK); hook != nil {
		h := decodeHook(hook)
		c.hook = h.spec()
		if typ := netlink.Text(netlink.Attribute(body, unix.NFTA_CHAIN_TYPE)); typ != "nat" {
			c.hook += " " + typ
		}
		if flags := netlink.Uint32(netlink.Attribute(body, nft.ChainFlags)) &^ nft.ChainBase; flags != 0 {
			c.hook += fmt.Sprintf(" flags %d", flags)
		}
		c.policyDrop = netlink.Uint32(netlink.Attribute(body, unix.NFTA_CHAIN_POLICY)) != nft.Accept
	}
	r.table.chains[netlink.Text(netlink.Attribute(body, unix.NFTA_CHAIN_NAME))] = c
	return nil
}

// decodeHook decodes the hook of a base chain.
func decodeHook(b []byte) *hook {
	number := netlink.Uint32(netlink.Attribute(b, unix.NFTA_HOOK_HOOKNUM))
	h := &hook{name: fmt.Sprint(number), priority: int(int32(netlink.Uint32(netlink.Attribute(b, unix.NFTA_HOOK_PRIORITY))))}
	for name, n := range hookNumbers {
		if n == number {
			h.name = name
		}
	}
	return h
}

func (r *reader) rule(body []byte) error {
	c := r.table.chains[netlink.Text(netlink.Attribute(body, unix.NFTA_RULE_CHAIN))]
	if c == nil {
		return netlink.ErrInterrupted
	}
	fingerprint := userdata.Get(netlink.Attribute(body, unix.NFTA_RULE_USERDATA), ruleTag)
	c.fingerprints = append(c.fingerprints, string(fingerprint))
	return nil
}

func (r *reader) set(body []byte) error {
	flags := netlink.Uint32(netlink.Attribute(body, unix.NFTA_SET_FLAGS))
	if flags&unix.NFT_SET_ANONYMOUS != 0 {
		return nil // the kernel deletes it with its rule
	}
	spec := setSpec{
		flags:       flags,
		key:         int(netlink.Uint32(netlink.Attribute(body, unix.NFTA_SET_KEY_LEN))),
		verdicts:    netlink.Uint32(netlink.Attribute(body, unix.NFTA_SET_DATA_TYPE)) == unix.NFT_DATA_VERDICT,
		size:        netlink.Uint32(netlink.Attribute(netlink.Attribute(body, unix.NFTA_SET_DESC), unix.NFTA_SET_DESC_SIZE)),
		expressions: netlink.Attribute(body, nft.SetExpr) != nil || netlink.Attribute(body, nft.SetExprs) != nil,
	}
	if flags&unix.NFT_SET_MAP != 0 && !spec.verdicts {
		spec.value = int(netlink.Uint32(netlink.Attribute(body, unix.NFTA_SET_DATA_LEN)))
	}
	if t := netlink.Attribute(body, unix.NFTA_SET_TIMEOUT); len(t) == 8 {
		spec.timeout = uint64(netlink.Uint32(t))<<32 | uint64(netlink.Uint32(t[4:]))
	}
	r.table.sets[netlink.Text(netlink.Attribute(body, unix.NFTA_SET_NAME))] = newObservedSet(spec)
	return nil
}

// elements reads the elements of a set. The kernel dumps them in parts and resumes by
// count. The kernel resizes the hash on its own soon after many elements were added. If
// it does so between two parts, the dump repeats as many elements as it skips (kernel:
// net/netfilter/nft_set_hash.c, nft_rhash_walk). So a duplicate means that another
// element is missing.
func (r *reader) elements(name string, s *observedSet) error {
	fill := func() { r.Text(unix.NFTA_SET_ELEM_LIST_SET, name) }
	return r.request(unix.NFT_MSG_GETSETELEM, unix.NFTA_SET_ELEM_LIST_TABLE, fill, func(body []byte) error {
		for _, b := range netlink.Attributes(netlink.Attribute(body, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			if !s.put(decodeElement(b)) {
				return netlink.ErrInterrupted
			}
		}
		return nil
	})
}

// decodeElement decodes b. Keys and values of the result refer to b.
func decodeElement(b []byte) element {
	var e element
	for typ, v := range netlink.Attributes(b) {
		switch typ {
		case unix.NFTA_SET_ELEM_KEY:
			e.key = netlink.Attribute(v, unix.NFTA_DATA_VALUE)
		case unix.NFTA_SET_ELEM_FLAGS:
			e.catchAll = netlink.Uint32(v)&nft.ElemCatchAll != 0
		case unix.NFTA_SET_ELEM_EXPR, nft.ElemExprs:
			e.expressions = true
		case nft.ElemKeyEnd:
			e.end = netlink.Attribute(v, unix.NFTA_DATA_VALUE)
		case unix.NFTA_SET_ELEM_DATA:
			if x := netlink.Attribute(v, unix.NFTA_DATA_VERDICT); x != nil {
				e.verdict = decodeVerdict(x)
			} else {
				e.value = netlink.Attribute(v, unix.NFTA_DATA_VALUE)
			}
		case unix.NFTA_SET_ELEM_USERDATA:
			e.comment, _ = userdata.GetString(v, userdata.NFTNL_UDATA_SET_ELEM_COMMENT)
		}
	}
	return e
}

func decodeVerdict(b []byte) verdict {
	v := verdict{chain: strings.Clone(netlink.Text(netlink.Attribute(b, unix.NFTA_VERDICT_CHAIN)))}
	switch int32(netlink.Uint32(netlink.Attribute(b, unix.NFTA_VERDICT_CODE))) {
	case unix.NFT_GOTO:
		v.code = verdictGoto
	case unix.NFT_JUMP:
		v.code = verdictJump
	case unix.NFT_RETURN:
		v.code = verdictReturn
	case nft.Drop:
		v.code = verdictDrop
	default:
		v.code = verdictAccept
	}
	return v
}

// generation returns the generation of the ruleset, which every change by any process
// increments.
func (r *reader) generation() (uint32, error) {
	r.Buf = r.Buf[:0]
	r.NetfilterMessage(nft.Type(unix.NFT_MSG_GETGEN), 0, unix.AF_UNSPEC, 0)
	r.EndMessage()
	var id uint32
	err := r.Query(context.Background(), r.Buf, func(m netlink.Message) error {
		_, body := m.Netfilter()
		id = netlink.Uint32(netlink.Attribute(body, unix.NFTA_GEN_ID))
		return nil
	})
	if err == nil && id == 0 {
		err = errors.New("the kernel reported no generation")
	}
	return id, err
}
