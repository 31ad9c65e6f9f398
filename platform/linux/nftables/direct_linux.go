// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"fmt"
	"net/netip"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink"
)

// DirectTable is the table of direct return in the network namespace of the calling thread.
type DirectTable struct {
	Leftovers
	have *DirectRules // nil if it is not known what the table holds
}

// DirectPlace is where the table of the proxy of a name is, also if an earlier process left it.
func DirectPlace(f service.Family, proxyName string) Leftovers {
	return Leftovers{Family: f, Table: DirectTableOf(proxyName)}
}

// Forget makes the next Set assume nothing of what is in the kernel.
func (t *DirectTable) Forget() { t.have = nil }

// Set makes the table hold what rules say, in one step.
func (t *DirectTable) Set(ctx context.Context, rules *DirectRules) error {
	if t.have != nil && t.commit(directOps(t.Family, t.have, rules)) == nil {
		t.have = rules
		return nil
	}
	t.have = nil
	found, err := t.Find(ctx)
	if err != nil {
		return err
	}
	ops := directOps(t.Family, nil, rules)
	if found != "" {
		ops = append([]op{{verb: delTable}}, ops...)
	}
	if err := t.commit(ops); err != nil {
		return fmt.Errorf("%s: %w", t, netlink.NFTHint(err))
	}
	t.have = rules
	return nil
}

// SendersThere returns the senders in the table, none if there is no table.
func (t *DirectTable) SendersThere() ([]netip.Addr, error) {
	found, err := t.read(senders.name)
	if err != nil || found == nil {
		return nil, err
	}
	var all []netip.Addr
	for key := range found.elements {
		a, _ := netip.AddrFromSlice([]byte(key))
		all = append(all, a)
	}
	return all, nil
}

func (t *DirectTable) commit(ops []op) error {
	if len(ops) == 0 {
		return nil
	}
	return t.withSocket(func(s *netlink.Socket, e *encoder) error { return transact(s, e, ops) })
}
