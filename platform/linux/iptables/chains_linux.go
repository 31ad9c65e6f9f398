// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink/nft"
)

// nftChains lists the chains in the tables of iptables-nft.
func nftChains(f service.Family) ([]id, error) {
	s, err := dialNetfilter()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	found, err := nft.Chains(context.Background(), s, nft.Family(f))
	if err != nil {
		return nil, nft.WithHint(err)
	}
	all := make([]id, len(found))
	for i, c := range found {
		all[i] = id{c.Table, c.Name}
	}
	return all, nil
}

// legacyChains lists the chains in the tables of iptables-legacy. It reads only tables
// that exist, because a request for another one would create it (kernel:
// net/netfilter/x_tables.c, xt_find_table_lock).
func legacyChains(f service.Family) ([]id, error) {
	names, err := LegacyTables(f)
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, nil // no capability is needed in this case
	}
	s, err := newLegacyMonitor(f, Standalone, nil)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		return nil, nil // the kernel lacks the family, so there are no chains
	}
	if err != nil {
		return nil, err
	}
	defer s.close()
	var all []id
	for _, table := range names {
		if !slices.Contains(allTables, table) {
			continue
		}
		rules, err := s.chains(table)
		if err != nil {
			return nil, fmt.Errorf("read table %s from the kernel: %w", table, err)
		}
		all = append(all, rules...)
	}
	return all, nil
}

// maxTries limits how often a table is read because others change it meanwhile.
const maxTries = 30

// chains lists the user-defined chains of a table.
func (s *legacyMonitor) chains(table string) ([]id, error) {
	var all []id
	err := error(unix.EAGAIN)
	for try := 0; try < maxTries && errors.Is(err, unix.EAGAIN); try++ {
		var info tableInfo
		copy(info[:], table)
		if err := s.getsockopt(getInfo, info[:]); err != nil {
			return nil, err
		}
		all = nil
		err = s.entries(table, info, func(rules []byte) {
			(&blob{table: table, family: s.family, bytes: rules}).rules(func(r blobRule) bool {
				if name, ok := r.chainStart(); ok && name != errorTarget { // marks the end of the table
					all = append(all, id{table, strings.Clone(name)})
				}
				return true
			})
		})
	}
	return all, err
}
