// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"kubeproxy/config"
)

// cleanup removes what any mode ever installed, except in targets that skip selects, and
// prints what it removed. It continues after a failure, and its error names everything
// that is still there.
func cleanup(ctx context.Context, c *config.Config, skip func(cleanupTarget) bool) error {
	all, err := cleanupTargets(c)
	if err != nil {
		return fmt.Errorf("clean up: %w", err)
	}
	log := klog.FromContext(ctx)
	var errs []error
	var forbidden []string
	for _, p := range all {
		if p.upstream {
			continue
		}
		if skip(p) {
			log.Info("Left alone, as --cleanup-ipvs=false asks for", "place", p.String())
			continue
		}
		what, err := removeLeftovers(ctx, p)
		switch {
		case onlyForbidden(err):
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
		errs = append(errs, fmt.Errorf("clean up %s: %w: %s", strings.Join(forbidden, ", "), fs.ErrPermission, cleanupPrivileges))
	}
	return errors.Join(errs...)
}

// onlyForbidden returns whether missing privileges are the only cause of err.
func onlyForbidden(err error) bool {
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		return !slices.ContainsFunc(many.Unwrap(), func(err error) bool { return !onlyForbidden(err) })
	}
	if one := errors.Unwrap(err); one != nil && errors.Is(err, fs.ErrPermission) {
		return onlyForbidden(one)
	}
	return errors.Is(err, fs.ErrPermission)
}
