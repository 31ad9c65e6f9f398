// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"net/netip"

	"kubeproxy/common/condition"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/takeover"
	"kubeproxy/config"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/platform/mode"
)

var _ mode.Repeater = (*Tracer)(nil)

func system() *mode.System {
	return &mode.System{
		Probe:     func(c *config.Config, f service.Family) error { return Probe(f, optionsOf(c)) },
		Open:      open,
		Owned:     owned,
		Targets:   targets,
		ReadBack:  mode.ReadBack(newAudit),
		Conntrack: true, Translates: true,
	}
}

// open returns backends that share the process's file limit, also with listeners on ::1.
func open(_ context.Context, s mode.Setup, families []service.Family) ([]*mode.Backend, error) {
	files, err := RaiseFileLimit()
	if err != nil {
		return nil, err
	}
	limits := NewLimits(files)
	limits.Observe(s.DetailedCondition(condition.Relay))
	return mode.Each(families, func(f service.Family) (*mode.Backend, error) {
		b, err := New(f, optionsOf(s.Config), limits)
		if err != nil {
			return nil, err
		}
		attempted := func(name service.PortName, e netip.AddrPort, err error) { s.Attempted(f, name, e, err) }
		b.ObserveAttempts(attempted)
		x := &mode.Backend{
			Backend: b, Family: f, Relay: b,
			Audit:  func() (reconcile.Backend, error) { return newAudit(s.Config, f) },
			Tracer: func() (mode.Tracer, error) { return NewTracer(b) },
		}
		if s.Config.CountTraffic {
			x.Traffic = b.CountTraffic()
		}
		if f == service.IPv6 {
			mark := 1 << *s.Config.IPTables.MasqueradeBit // bypasses the rules that redirect to the listeners of b
			x.Localhost = NewLocalhost(f, mark, LocalhostParts{
				Limits:    func() (*Limits, error) { return limits, nil },
				Attempted: attempted,
			})
		}
		return x, nil
	})
}

// newAudit assumes listeners where the rules lead: only their process knows.
func newAudit(c *config.Config, f service.Family) (*Audit, error) { return NewAudit(f, optionsOf(c)) }

// owned leaves out an earlier process's address if listeners have a configured one.
func owned(c *config.Config, f service.Family) ([]string, error) {
	all, err := iptables.Owned(c, f)
	if a := c.ListenAddr(); a.IsValid() && service.FamilyOf(a) == f {
		return all, err
	}
	return append(all, Leftovers{Family: f}.String()), err
}

func targets(context.Context, mode.Setup) ([]takeover.Target, error) {
	var all []takeover.Target
	for _, f := range service.Families {
		all = append(all, takeover.Target{Leftovers: Leftovers{Family: f}, Family: f})
	}
	return all, nil
}
