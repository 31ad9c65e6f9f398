// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"sync"

	"k8s.io/klog/v2"

	"kubeproxy/cmd/kube-proxy/internal/agent"
	"kubeproxy/platform/linux/userspace"
)

// addLocalhost gives the backends of x their listeners on loopback addresses. A listener
// opens in the first round that needs it. All listeners and the relay of mode userspace
// share the file limit of the process.
func addLocalhost(x *agent.Selected, log klog.Logger) {
	limits := sync.OnceValues(func() (*userspace.Limits, error) {
		files, err := userspace.RaiseFileLimit()
		if err != nil {
			return nil, err
		}
		l := userspace.NewLimits(files)
		if x.ReportRelayShortage != nil {
			l.Observe(x.ReportRelayShortage)
		}
		return l, nil
	})
	for _, b := range x.Backends {
		if !relaysLocalhost(x.Config, b.Family) {
			continue
		}
		parts := userspace.LocalhostParts{Limits: limits, Unreached: agent.LogUnreached(log, b.Family)}
		mark := 0
		if u, ok := b.Backend.(*userspace.Backend); ok {
			parts.Limits = func() (*userspace.Limits, error) { return u.Limits(), nil }
			mark = 1 << *x.Config.IPTables.MasqueradeBit // bypasses the rules that redirect to its listeners
		}
		b.Localhost = userspace.NewLocalhost(b.Family, mark, parts)
	}
}
