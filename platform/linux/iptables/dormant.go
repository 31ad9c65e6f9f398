// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"errors"
	"fmt"

	"kubeproxy/platform/linux/netlink/nft"
)

// activate clears the flag dormant that others have set on tables. The kernel keeps the
// chains and rules of a dormant table and evaluates none of them (nft(8)). iptables
// neither prints nor changes the flag, so no rule of ours could repair this.
func (p *plan) activate() error {
	var errs []error
	for _, table := range p.dormant {
		if err := p.backend.driver.Activate(table); err != nil {
			name := nft.FamilyName(p.backend.family) + " " + table
			errs = append(errs, fmt.Errorf("activate table %s, which is dormant, so none of its rules works: %w: try nft add table %s", name, err, name))
		}
	}
	return errors.Join(errs...)
}
