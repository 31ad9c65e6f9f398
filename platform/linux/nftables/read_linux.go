// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/common/traffic"
	"kubeproxy/platform/linux/netlink"
)

// reader reads our table from the kernel.
type reader struct {
	*netlink.Socket
	netlink.Encoder
	nf    uint8
	name  string // of the table
	table *table
}

// request dumps, and passes answers about our table to each. fill, if set, writes attributes.
func (r *reader) request(msg int, tableAttr uint16, fill func(), each func(body []byte) error) error {
	r.Buf = r.Buf[:0]
	r.NetfilterMessage(netlink.NFTType(msg), unix.NLM_F_DUMP, r.nf, 0)
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
		if flags&netlink.TableOwned != 0 {
			return fmt.Errorf("another process, of netlink port %d, has reserved it (flag owner): end that process", netlink.Uint32(netlink.Attribute(body, netlink.TableOwner)))
		}
		r.table = &table{
			dormant: flags&unix.NFT_TABLE_F_DORMANT != 0, otherFlags: flags&^unix.NFT_TABLE_F_DORMANT != 0,
			chains: map[string]*observedChain{}, sets: map[string]*observedSet{},
		}
		return nil
	})
}

func (r *reader) readChains() error {
	if err := r.request(unix.NFT_MSG_GETCHAIN, unix.NFTA_CHAIN_TABLE, nil, r.chain); err != nil {
		return fmt.Errorf("list chains: %w", err)
	}
	if err := r.request(unix.NFT_MSG_GETRULE, unix.NFTA_RULE_TABLE, nil, r.rule); err != nil {
		return fmt.Errorf("list rules: %w", err)
	}
	if err := r.request(unix.NFT_MSG_GETSET, unix.NFTA_SET_TABLE, nil, r.set); err != nil {
		return fmt.Errorf("list sets: %w", err)
	}
	return nil
}

func (r *reader) read() error {
	if err := r.readChains(); err != nil {
		return err
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
		if flags := netlink.Uint32(netlink.Attribute(body, netlink.ChainFlags)) &^ netlink.ChainBase; flags != 0 {
			c.hook += fmt.Sprintf(" flags %d", flags)
		}
		c.policyDrop = netlink.Uint32(netlink.Attribute(body, unix.NFTA_CHAIN_POLICY)) != netlink.Accept
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
		expressions: netlink.Attribute(body, netlink.SetExpr) != nil || netlink.Attribute(body, netlink.SetExprs) != nil,
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

// elements reads the elements of a set. The kernel dumps them in parts and resumes by count. If it
// resizes the hash between two parts, as soon after many additions, it repeats as many as it skips
// (kernel: net/netfilter/nft_set_hash.c, nft_rhash_walk). So a duplicate means that one is missing.
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

// element returns the element of a set with a key, as nft get element does, or nil.
func (r *reader) element(set string, key []byte) (found *element, err error) {
	r.Buf = r.Buf[:0]
	r.NetfilterMessage(netlink.NFTType(unix.NFT_MSG_GETSETELEM), 0, r.nf, 0)
	r.Text(unix.NFTA_SET_ELEM_LIST_TABLE, r.name)
	r.Text(unix.NFTA_SET_ELEM_LIST_SET, set)
	list := r.Nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	elem := r.Nest(unix.NFTA_LIST_ELEM)
	data := r.Nest(unix.NFTA_SET_ELEM_KEY)
	r.Bytes(unix.NFTA_DATA_VALUE, key)
	for _, at := range []int{data, elem, list} {
		r.EndNest(at)
	}
	r.EndMessage()
	err = r.Query(context.Background(), r.Buf, func(m netlink.Message) error {
		_, body := m.Netfilter()
		for _, b := range netlink.Attributes(netlink.Attribute(body, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			e := decodeElement(slices.Clone(b))
			found = &e
		}
		return nil
	})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("get an element of set %s: %w", set, err)
	}
	return found, nil
}

// decodeElement decodes b. Keys and values of the result refer to b.
func decodeElement(b []byte) element {
	var e element
	for typ, v := range netlink.Attributes(b) {
		switch typ {
		case unix.NFTA_SET_ELEM_KEY:
			e.key = netlink.Attribute(v, unix.NFTA_DATA_VALUE)
		case unix.NFTA_SET_ELEM_FLAGS:
			e.catchAll = netlink.Uint32(v)&netlink.ElemCatchAll != 0
		case unix.NFTA_SET_ELEM_EXPR, netlink.ElemExprs:
			e.expressions = true
		case netlink.ElemKeyEnd:
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
	case netlink.Drop:
		v.code = verdictDrop
	default:
		v.code = verdictAccept
	}
	return v
}

// generation returns the number of the ruleset, which every change increments.
func (r *reader) generation() (uint32, error) {
	r.Buf = r.Buf[:0]
	r.NetfilterMessage(netlink.NFTType(unix.NFT_MSG_GETGEN), 0, unix.AF_UNSPEC, 0)
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

// UpstreamTable is the table name of upstream kube-proxy.
const UpstreamTable = "kube-proxy"

// Leftovers is a table that another proxy may have left in this thread's network namespace.
type Leftovers struct {
	Family service.Family
	Table  string
}

// String returns the table's family and name as in nft.
func (l Leftovers) String() string { return "nftables table " + l.Name() }

// Name is the name of the table with its family, as in explain.Walk.Followed.
func (l Leftovers) Name() string { return netlink.FamilyName(l.Family) + " " + l.Table }

// Find returns a description of what exists, or "" if the table does not exist.
func (l Leftovers) Find(ctx context.Context) (string, error) {
	found := false
	err := l.withSocket(func(s *netlink.Socket, e *encoder) error {
		e.NetfilterMessage(netlink.NFTType(unix.NFT_MSG_GETTABLE), unix.NLM_F_DUMP, e.nf, 0)
		e.EndMessage()
		return netlink.DumpNFT(ctx, s, e.Buf, func() { found = false }, func(family uint8, table []byte) error {
			found = found || family == e.nf && netlink.Text(netlink.Attribute(table, unix.NFTA_TABLE_NAME)) == l.Table
			return nil
		})
	})
	switch {
	case netlink.LacksNFTables(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("look for %s: %w", l, netlink.NFTHint(err))
	case !found:
		return "", nil
	}
	return TheTable, nil
}

// Remove deletes the table and everything in it, if it exists. Packets must not meet a partly
// deleted one: the kernel deactivates the elements of maps first, and those of sets when nobody
// reads them (kernel: net/netfilter/nf_tables_api.c, nft_delset and nft_mapelem_deactivate), so
// that a ClusterIP would seem to have no such port. So Remove flushes the chains where connections
// enter, and deletes the rest when packets have left the table.
func (l Leftovers) Remove(ctx context.Context) error {
	err := l.withSocket(func(s *netlink.Socket, e *encoder) error {
		entries, err := l.entryChains(ctx, s, e)
		if err != nil {
			return err
		}
		if len(entries) > 0 {
			if err := transact(s, e, entries); err != nil {
				return err
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(drainTime):
			}
		}
		return transact(s, e, []op{{verb: delTable}})
	})
	if err != nil && !errors.Is(err, unix.ENOENT) && !netlink.LacksNFTables(err) {
		return fmt.Errorf("delete %s: %w", l, netlink.NFTHint(err))
	}
	return nil
}

// drainTime is longer than a packet spends in a table.
const drainTime = 50 * time.Millisecond

// entryChains returns ops that flush the chains where packets enter the table before
// routing. The later chains stay, because translated packets may still need masquerading.
func (l Leftovers) entryChains(ctx context.Context, s *netlink.Socket, e *encoder) ([]op, error) {
	all, err := netlink.Chains(ctx, s, e.nf)
	var ops []op
	for _, c := range all {
		if c.Table != l.Table || c.Base == nil {
			continue
		}
		switch c.Base.Hook {
		case unix.NF_INET_PRE_ROUTING, unix.NF_INET_LOCAL_OUT, unix.NF_INET_FORWARD:
			ops = append(ops, op{verb: flushChain, chain: &chain{name: c.Name}})
		}
	}
	return ops, err
}

func transact(s *netlink.Socket, e *encoder, ops []op) error {
	batch, err := e.batch(ops)
	if err != nil {
		return err
	}
	return s.Transact(batch)
}

func (l Leftovers) withSocket(do func(*netlink.Socket, *encoder) error) error {
	s, err := dial()
	if err != nil {
		return err
	}
	defer s.Close()
	e := newEncoder(l.Family)
	e.name = l.Table
	return do(s, e)
}

// Counters reads the counts of a table with Options.CountConnections, as a traffic.Reader.
type Counters struct {
	reader *reader
	family service.Family
}

// NewCounters returns the Counters of one family in this thread's network namespace.
func NewCounters(f service.Family, o Options) (*Counters, error) {
	r, err := dialReader(f, o)
	if err != nil {
		return nil, err
	}
	return &Counters{reader: r, family: f}, nil
}

// Kinds implements traffic.Reader.
func (c *Counters) Kinds() traffic.Kinds { return traffic.Kinds{} }

// Read implements traffic.Reader. Without a table there are no counts.
func (c *Counters) Read(context.Context, *service.Snapshot) ([]traffic.Sample, error) {
	var all []traffic.Sample
	seen := map[traffic.Counter]bool{}
	r := c.reader
	err := retryRead(func() error {
		all = all[:0]
		clear(seen)
		fill := func() { r.Text(unix.NFTA_SET_ELEM_LIST_SET, connections.name) }
		return r.request(unix.NFT_MSG_GETSETELEM, unix.NFTA_SET_ELEM_LIST_TABLE, fill, func(body []byte) error {
			for _, b := range netlink.Attributes(netlink.Attribute(body, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
				x, ok := counterOf(decodeElement(b).key, c.family)
				if !ok || seen[x] {
					continue
				}
				seen[x] = true
				all = append(all, traffic.Sample{Counter: x, Counts: traffic.Counts{Connections: countOf(b)}})
			}
			return nil
		})
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list set %s: %w", connections.name, err)
	}
	return all, nil
}

// countOf returns the packets of an element's counter, which first packets alone reach.
func countOf(element []byte) uint64 {
	x := netlink.Attribute(element, unix.NFTA_SET_ELEM_EXPR)
	if x == nil {
		x = netlink.Attribute(netlink.Attribute(element, netlink.ElemExprs), unix.NFTA_LIST_ELEM)
	}
	return packetsOf(x)
}

// packetsOf returns the packets of a counter expression.
func packetsOf(x []byte) uint64 {
	n := netlink.Attribute(netlink.Attribute(x, unix.NFTA_EXPR_DATA), unix.NFTA_COUNTER_PACKETS)
	if len(n) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(n)
}

// Unrelayed returns how many packets refuseUnrelayed has refused since the rule was made, 0
// without the rule. It reads the network namespace of the calling thread.
func Unrelayed(f service.Family, o Options) (uint64, error) {
	r, err := dialReader(f, o)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	n, ours := uint64(0), refuseUnrelayed(f).fingerprint(f)
	fill := func() { r.Text(unix.NFTA_RULE_CHAIN, outputChain) }
	err = retryRead(func() error {
		n = 0
		return r.request(unix.NFT_MSG_GETRULE, unix.NFTA_RULE_TABLE, fill, func(body []byte) error {
			if string(userdata.Get(netlink.Attribute(body, unix.NFTA_RULE_USERDATA), ruleTag)) != ours {
				return nil
			}
			for _, x := range netlink.Attributes(netlink.Attribute(body, unix.NFTA_RULE_EXPRESSIONS)) {
				if netlink.Text(netlink.Attribute(x, unix.NFTA_EXPR_NAME)) == "counter" {
					n += packetsOf(x)
				}
			}
			return nil
		})
	})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return 0, fmt.Errorf("list the rules of chain %s: %w", outputChain, err)
	}
	return n, nil
}
