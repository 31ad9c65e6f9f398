// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink"
	"kubeproxy/platform/linux/netlink/nft"
)

// UpstreamTable is the table name of upstream kube-proxy.
const UpstreamTable = "kube-proxy"

// Leftovers is a table that another service proxy may have left in the network namespace
// of the calling thread.
type Leftovers struct {
	Family service.Family
	Table  string
}

// String returns the table's family and name as in nft.
func (r Leftovers) String() string {
	return "nftables table " + nft.FamilyName(r.Family) + " " + r.Table
}

// Find returns a description of what exists, or "" if the table does not exist.
func (r Leftovers) Find(ctx context.Context) (string, error) {
	found := false
	err := r.withSocket(func(s *netlink.Socket, e *encoder) error {
		e.NetfilterMessage(nft.Type(unix.NFT_MSG_GETTABLE), unix.NLM_F_DUMP, e.nf, 0)
		e.EndMessage()
		return nft.Dump(ctx, s, e.Buf, func() { found = false }, func(family uint8, table []byte) error {
			found = found || family == e.nf && netlink.Text(netlink.Attribute(table, unix.NFTA_TABLE_NAME)) == r.Table
			return nil
		})
	})
	switch {
	case nft.IsUnsupported(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("look for %s: %w", r, nft.WithHint(err))
	case !found:
		return "", nil
	}
	return "the table", nil
}

// Remove deletes the table and everything in it. It succeeds if there is none.
//
// Packets must not meet a partly deleted table. When the kernel deletes a table, it
// deactivates the elements of maps, and those of sets stay until nobody reads them
// (kernel: net/netfilter/nf_tables_api.c, nft_delset and nft_mapelem_deactivate). So a
// ClusterIP would seem to have no such port. Remove therefore first flushes the chains
// where new connections enter. It deletes the rest after the packets inside the table
// have left it.
func (r Leftovers) Remove(ctx context.Context) error {
	err := r.withSocket(func(s *netlink.Socket, e *encoder) error {
		entries, err := r.entryChains(ctx, s, e)
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
	if err != nil && !errors.Is(err, unix.ENOENT) && !nft.IsUnsupported(err) {
		return fmt.Errorf("delete %s: %w", r, nft.WithHint(err))
	}
	return nil
}

// drainTime is longer than a packet spends in a table.
const drainTime = 50 * time.Millisecond

// entryChains returns ops that flush the chains where packets enter the table before
// routing. The later chains stay, because translated packets may still need masquerading.
func (r Leftovers) entryChains(ctx context.Context, s *netlink.Socket, e *encoder) ([]op, error) {
	all, err := nft.Chains(ctx, s, e.nf)
	var ops []op
	for _, c := range all {
		if c.Table != r.Table || c.Base == nil {
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

func (r Leftovers) withSocket(do func(*netlink.Socket, *encoder) error) error {
	s, err := dial()
	if err != nil {
		return err
	}
	defer s.Close()
	e := newEncoder(r.Family)
	e.name = r.Table
	return do(s, e)
}
