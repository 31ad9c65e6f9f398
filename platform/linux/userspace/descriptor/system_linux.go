// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package descriptor

import (
	"context"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/takeover"
	"kubeproxy/config"
	iptablesmode "kubeproxy/platform/linux/iptables/descriptor"
	"kubeproxy/platform/linux/userspace"
	"kubeproxy/platform/mode"
)

func system() *mode.System {
	return &mode.System{
		Probe:     func(c *config.Config, f service.Family) error { return userspace.Probe(f, options(c)) },
		Open:      open,
		Owned:     owned,
		Targets:   targets,
		ReadBack:  mode.ReadBack(newAudit),
		Conntrack: true, Translates: true,
	}
}

// open returns backends that share the file limit of the process, also with the listeners
// on ::1.
func open(_ context.Context, s mode.Setup, families []service.Family) ([]*mode.Backend, error) {
	files, err := userspace.RaiseFileLimit()
	if err != nil {
		return nil, err
	}
	limits := userspace.NewLimits(files)
	limits.Observe(s.DetailedCondition(mode.RelayCondition))
	return mode.Each(families, func(f service.Family) (*mode.Backend, error) {
		b, err := userspace.New(f, options(s.Config), limits)
		if err != nil {
			return nil, err
		}
		unreached := func(name service.PortName, clients int, err error) { s.Unreached(f, name, clients, err) }
		b.ObserveUnreached(unreached)
		x := &mode.Backend{
			Backend: b, Family: f, Relay: relay{b},
			Audit:  func() (reconcile.Backend, error) { return newAudit(s.Config, f) },
			Tracer: func() (mode.Tracer, error) { return userspace.NewTracer(b) },
		}
		if s.Config.CountTraffic {
			x.Traffic = b.CountTraffic()
		}
		if f == service.IPv6 {
			mark := 1 << *s.Config.IPTables.MasqueradeBit // bypasses the rules that redirect to the listeners of b
			x.Localhost = userspace.NewLocalhost(f, mark, userspace.LocalhostParts{
				Limits:    func() (*userspace.Limits, error) { return limits, nil },
				Unreached: unreached,
			})
		}
		return x, nil
	})
}

// newAudit assumes that listeners exist where the rules lead, because only the process
// that has them knows.
func newAudit(c *config.Config, f service.Family) (*userspace.Audit, error) {
	return userspace.NewAudit(f, options(c))
}

// owned leaves out the address of an earlier process if the configuration has another
// address for the listeners.
func owned(c *config.Config, f service.Family) ([]string, error) {
	all, err := iptablesmode.Owned(c, f)
	if a := c.ListenAddr(); a.IsValid() && service.FamilyOf(a) == f {
		return all, err
	}
	return append(all, userspace.Leftovers{Family: f}.String()), err
}

func targets(context.Context, mode.Setup) ([]takeover.Target, error) {
	var all []takeover.Target
	for _, f := range service.Families {
		all = append(all, takeover.Target{Leftovers: userspace.Leftovers{Family: f}, Family: f})
	}
	return all, nil
}
