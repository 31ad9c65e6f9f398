// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"k8s.io/klog/v2"

	"kubeproxy/common/errtree"
)

// CleanupOptions are the options of Cleanup.
type CleanupOptions struct {
	// Skip returns which option excludes a target, empty if none does.
	Skip func(Target) string
	// Privileges is the advice to a user who lacks the privileges for a cleanup.
	Privileges string
}

// Cleanup empties targets, except those that belong to upstream kube-proxy and those that
// o.Skip selects, and logs what it removed. It continues after a failure, and its error
// names everything that is still there, or suspected to be.
func Cleanup(ctx context.Context, targets []Target, o CleanupOptions) error {
	log := klog.FromContext(ctx)
	var errs []error
	var forbidden []string
	for _, p := range targets {
		if p.Upstream {
			continue
		}
		if why := o.Skip(p); why != "" {
			log.Info("Left alone, as "+why+" asks for", "place", p.String())
			continue
		}
		what, err := removeLeftovers(ctx, p)
		switch unchecked := AsUnchecked(err); {
		case unchecked != nil && !unchecked.Suspected:
			log.Info("Warning: not checked, for want of rights; if it was ever in use here, it may be left", "place", p.String(), "reason", err.Error())
		case errtree.Only(err, fs.ErrPermission): // all that is missing are privileges
			forbidden = append(forbidden, p.String())
			log.V(2).Info("Not allowed to clean up", "place", p.String(), "err", err.Error())
		case err != nil:
			errs = append(errs, fmt.Errorf("clean up %s: %w", p, err))
		case what == "":
			log.Info("Nothing to clean up", "place", p.String())
		default:
			log.Info("Cleaned up", "place", p.String(), "removed", what)
		}
	}
	if len(forbidden) > 0 {
		errs = append(errs, fmt.Errorf("clean up %s: %w: %s", strings.Join(forbidden, ", "), fs.ErrPermission, o.Privileges))
	}
	return errors.Join(errs...)
}
