// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package program

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"kubeproxy/common/health/servicestate"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/userspace"
	"kubeproxy/test/netlab"
)

// NewUserspaceKernel looks at h, where the mode is userspace. Only the proxy itself knows
// which endpoints the listeners have, so it is asked as well.
func NewUserspaceKernel(t testing.TB, h *netlab.Host, o userspace.Options) *Kernel {
	t.Helper()
	k := newKernel(t, h, func(f service.Family) (reconcile.Backend, error) {
		return userspace.NewAudit(f, o)
	})
	k.proxyDiff = notProgrammed
	k.tracked = k.trackedSnapshot
	return k
}

// trackedSnapshot returns the snapshot that conntrack entries follow.
func (k *Kernel) trackedSnapshot(ctx context.Context, f service.Family, want *service.Snapshot) (to *service.Snapshot, err error) {
	err = k.host.Do(func() (err error) {
		to, err = k.backends[f].(*userspace.Audit).Tracked(ctx, want)
		return err
	})
	return to, err
}

// notProgrammed returns the differences from want that the proxy on h reports.
func notProgrammed(ctx context.Context, h *netlab.Host, want *service.Snapshot) string {
	page, err := Fetch(ctx, h, MetricsAddr, "/services")
	if err != nil {
		return err.Error()
	}
	var all struct{ Services []servicestate.Service }
	if err := json.Unmarshal(page.Body, &all); err != nil {
		return fmt.Sprintf("%v in %s", err, page.Body)
	}
	seen := map[string]bool{}
	for _, s := range all.Services {
		for _, p := range s.Ports {
			seen[fmt.Sprintf("%s/%s %s %s %s: %d", s.Namespace, s.Name, p.Port, strings.ToLower(p.Protocol), p.Family, p.Endpoints)] = p.State == servicestate.Programmed || p.State == servicestate.Limited
		}
	}
	n := 0
	for _, f := range service.Families {
		for p := range want.Ports(f) {
			n++
			line := fmt.Sprintf("%s/%s %s %s %s: %d", p.Name.Namespace, p.Name.Name, p.Name.Port, p.Name.Protocol, f, len(p.Cluster))
			if !seen[line] {
				return "not in force: " + line
			}
		}
	}
	if n != len(seen) {
		return fmt.Sprintf("%d ports are known, want %d", len(seen), n)
	}
	return ""
}
