// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"sync"

	"k8s.io/klog/v2"

	"kubeproxy/platform/linux/userspace"
)

// addLocalhost gives the backends of x their listeners on loopback addresses. A listener
// opens in the first round that needs it. All listeners and the relay of mode userspace
// share the file limit of the process.
func (x *selectedMode) addLocalhost(log klog.Logger) {
	limits := sync.OnceValues(func() (*userspace.Limits, error) {
		files, err := userspace.RaiseFileLimit()
		if err != nil {
			return nil, err
		}
		l := userspace.NewLimits(files)
		if x.reportRelayShortage != nil {
			l.Observe(x.reportRelayShortage)
		}
		return l, nil
	})
	for _, b := range x.backends {
		if !relaysLocalhost(x.config, b.family) {
			continue
		}
		parts := userspace.LocalhostParts{Limits: limits, Unreached: logUnreached(log, b.family)}
		mark := 0
		if u, ok := b.Backend.(*userspace.Backend); ok {
			parts.Limits = func() (*userspace.Limits, error) { return u.Limits(), nil }
			mark = 1 << *x.config.IPTables.MasqueradeBit // bypasses the rules that redirect to its listeners
		}
		b.localhost = userspace.NewLocalhost(b.family, mark, parts)
	}
}
