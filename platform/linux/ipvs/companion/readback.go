// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package companion

import (
	"context"
	"errors"
	"fmt"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipset"
)

// ReadBack returns the sets and chains that the kernel holds, and those that it would hold
// for want, both in the same order.
func (b *Backend) ReadBack(ctx context.Context, want *service.Snapshot, servers Servers) (held, wanted Document, err error) {
	held.family, wanted.family = b.family, b.family
	elements := map[element]use{}
	for _, name := range allNames() {
		s := setOf(b.family, name)
		members, err := b.sets.Members(s)
		if errors.Is(err, ipset.ErrMissing) {
			continue
		}
		if err != nil {
			return held, wanted, fmt.Errorf("list ipset %s: %w", s.Name, err)
		}
		for _, m := range members {
			elements[element{name, m.Entry}] = use{1, m.Comment}
		}
		held.Sets = append(held.Sets, newSet(s, members))
	}
	wanted.Sets = b.wantedSets(want, servers, elements)
	held.Chains, wanted.Chains, err = b.chains.ReadTables(ctx, want)
	return held, wanted, err
}
