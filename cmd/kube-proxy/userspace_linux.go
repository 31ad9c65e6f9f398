// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"sync"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/config"
	"kubeproxy/platform/linux/userspace"
)

// newUserspace returns mode userspace. Its families share the file limit of the process.
func newUserspace() dataplane {
	limits := sync.OnceValues(func() (*userspace.Limits, error) {
		files, err := userspace.RaiseFileLimit()
		if err != nil {
			return nil, err
		}
		return userspace.NewLimits(files), nil
	})
	return dataplane{
		mode:  config.Userspace,
		probe: func(c *config.Config, f service.Family) error { return userspace.Probe(f, userspaceOptions(c)) },
		create: func(c *config.Config, f service.Family) (reconcile.Backend, error) {
			l, err := limits()
			if err != nil {
				return nil, err
			}
			return userspace.New(f, userspaceOptions(c), l)
		},
		audit: func(c *config.Config, f service.Family) (reconcile.Backend, error) {
			return userspace.NewAudit(f, userspaceOptions(c))
		},
		ownedTargets: func(c *config.Config, f service.Family) ([]string, error) {
			all, err := ownedByIPTables(nil, f)
			if a := c.ListenAddr(); a.IsValid() && service.FamilyOf(a) == f {
				return all, err // an earlier process's address may go
			}
			return append(all, userspace.Leftovers{Family: f}.String()), err
		},
	}
}
