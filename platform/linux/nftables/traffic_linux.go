// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/common/traffic"
	"kubeproxy/platform/linux/netlink"
	"kubeproxy/platform/linux/netlink/nft"
)

// Counters reads the counts of connections that a table with Options.CountConnections
// has. It implements traffic.Reader.
type Counters struct {
	reader reader
	family service.Family
}

// NewCounters returns the Counters of one family, in the network namespace of the calling
// thread.
func NewCounters(f service.Family, o Options) (*Counters, error) {
	s, err := dial()
	if err != nil {
		return nil, fmt.Errorf("nftables for %s: %w", f, nft.WithHint(err))
	}
	k := &kernel{family: f, table: o.table(), readSocket: s}
	return &Counters{reader: *k.reader(), family: f}, nil
}

// Kinds implements traffic.Reader.
func (c *Counters) Kinds() traffic.Kinds { return traffic.Kinds{} }

// Read implements traffic.Reader. Without a table there are no counts.
func (c *Counters) Read(context.Context, *service.Snapshot) ([]traffic.Sample, error) {
	var all []traffic.Sample
	seen := map[traffic.Counter]bool{}
	r := &c.reader
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

// countOf returns the packets of the counter of an element. Only the first packet of a
// connection gets there.
func countOf(element []byte) uint64 {
	x := netlink.Attribute(element, unix.NFTA_SET_ELEM_EXPR)
	if x == nil {
		x = netlink.Attribute(netlink.Attribute(element, nft.ElemExprs), unix.NFTA_LIST_ELEM)
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
	s, err := dial()
	if err != nil {
		return 0, fmt.Errorf("nftables for %s: %w", f, nft.WithHint(err))
	}
	defer s.Close()
	n, ours := uint64(0), refuseUnrelayed(f).fingerprint(f)
	r := (&kernel{family: f, table: o.table(), readSocket: s}).reader()
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
