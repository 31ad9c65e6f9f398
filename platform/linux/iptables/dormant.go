// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"errors"
	"fmt"

	"kubeproxy/common/service"
)

// activate has the kernel use the tables again that somebody made dormant. Such a
// table keeps its chains and rules, and no packet passes them: it has no place among
// what iptables can express or print, and no jump of ours works in it.
func (p *plan) activate() error {
	var errs []error
	for _, table := range p.dormant {
		if err := p.backend.driver.Activate(table); err != nil {
			name := tableFamily(p.backend.family) + " " + table
			errs = append(errs, fmt.Errorf("activate table %s, which is dormant, so none of its rules works: %w: try nft add table %s", name, err, name))
		}
	}
	return errors.Join(errs...)
}

// tableFamily is how nft names the family of tables for f.
func tableFamily(f service.Family) string {
	if f == service.IPv6 {
		return "ip6"
	}
	return "ip"
}
