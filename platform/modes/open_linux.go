// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package modes

import (
	"context"
	"sync"

	"kubeproxy/common/service"
	"kubeproxy/config"
	"kubeproxy/platform/linux/sysctl"
	"kubeproxy/platform/linux/userspace"
	"kubeproxy/platform/mode"
)

// withHints returns d with a probe whose errors name a reason outside of the mode, if there is one.
func withHints(d mode.Descriptor) mode.Descriptor {
	if d.System == nil || d.System.Probe == nil || !d.System.Conntrack {
		return d
	}
	probe, files := d.System.Probe, sysctl.Host()
	s := *d.System
	s.Probe = func(c *config.Config, f service.Family) error { return sysctl.WithConntrackHint(files, probe(c, f)) }
	d.System = &s
	return d
}

// accompany adds to backends what Linux needs in every mode: socket acceleration, the
// cleanup of connection tracking, and listeners on loopback addresses. A listener opens in the first round that
// needs it. All listeners share the file limit of the process.
func accompany(ctx context.Context, d mode.Descriptor, s mode.Setup, backends []*mode.Backend) {
	limits := sync.OnceValues(func() (*userspace.Limits, error) {
		files, err := userspace.RaiseFileLimit()
		if err != nil {
			return nil, err
		}
		l := userspace.NewLimits(files)
		l.Observe(s.DetailedCondition(mode.RelayCondition))
		return l, nil
	})
	for _, b := range backends {
		accelerate(s.Config, b)
		if d.System.Conntrack {
			c := newConntrackCleaner(ctx, b)
			b.Conntrack = c
			if d.System.Translates {
				b.Backend = retiring{b.Backend, c}
			}
		}
		if b.Localhost == nil && d.ListensOnLocalhost(b.Family) {
			unreached := func(name service.PortName, clients int, err error) { s.Unreached(b.Family, name, clients, err) }
			b.Localhost = userspace.NewLocalhost(b.Family, 0, userspace.LocalhostParts{Limits: limits, Unreached: unreached})
		}
	}
}
