// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"kubeproxy/config"
)

// cleanup removes what any mode ever installed. It goes on past a failure and
// names everything that is still there.
func cleanup(ctx context.Context, c *config.Config) error {
	backends, err := allBackends(c)
	if err != nil {
		return fmt.Errorf("clean up: %w", err)
	}
	var errs []error
	for _, b := range backends {
		if err := b.Cleanup(ctx); err != nil {
			errs = append(errs, fmt.Errorf("clean up %s: %w", b, err))
			continue
		}
		klog.FromContext(ctx).Info("Cleaned up", "backend", b.String())
	}
	return errors.Join(errs...)
}
