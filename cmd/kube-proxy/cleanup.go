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

// cleanup removes what any mode ever installed, and says what that was. It goes
// on past a failure and names everything that is still there.
func cleanup(ctx context.Context, c *config.Config) error {
	all, err := places(c)
	if err != nil {
		return fmt.Errorf("clean up: %w", err)
	}
	log := klog.FromContext(ctx)
	var errs []error
	for _, p := range all {
		if p.upstream {
			continue
		}
		what, err := clear(ctx, p)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("clean up %s: %w", p, err))
		case what == "":
			log.Info("Nothing to clean up", "place", p.String())
		default:
			log.Info("Cleaned up", "place", p.String(), "removed", what)
		}
	}
	return errors.Join(errs...)
}
