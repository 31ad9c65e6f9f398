// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"kubeproxy/cmd/kube-proxy/internal/host"
	"kubeproxy/common/takeover"
	"kubeproxy/config"
)

// cleanup removes what any mode ever installed, and prints what it removed. Virtual
// servers stay with --cleanup-ipvs=false.
func (o *options) cleanup(ctx context.Context, c *config.Config) error {
	all, err := o.Targets(ctx, c)
	if err != nil {
		return fmt.Errorf("clean up: %w", err)
	}
	skip := func(p takeover.Target) string {
		if p.IPVS && !o.Flags.CleanupIPVS {
			return "--cleanup-ipvs=false"
		}
		return ""
	}
	return takeover.Cleanup(ctx, all, takeover.CleanupOptions{Skip: skip, Privileges: host.Privileges})
}
