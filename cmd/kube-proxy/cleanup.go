// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"kubeproxy/common/takeover"
	"kubeproxy/config"
)

// cleanup removes what any mode ever installed, and prints what it removed. Virtual
// servers stay if withIPVS is false.
func cleanup(ctx context.Context, c *config.Config, withIPVS bool) error {
	all, err := cleanupTargets(c)
	if err != nil {
		return fmt.Errorf("clean up: %w", err)
	}
	skip := func(p takeover.Target) string {
		if p.IPVS && !withIPVS {
			return "--cleanup-ipvs=false"
		}
		return ""
	}
	return takeover.Cleanup(ctx, all, takeover.CleanupOptions{Skip: skip, Privileges: cleanupPrivileges})
}
