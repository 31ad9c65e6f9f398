// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package toymode is a mode for tests, with the least that a mode must have. It keeps
// what it programs in memory. Tests add its Descriptor to a table of modes, or use a
// table with no other mode.
package toymode

import (
	"context"
	"fmt"

	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/takeover"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
)

// Toy is a mode of Linux for IPv4.
type Toy struct {
	// Programmed receives each snapshot that is programmed.
	Programmed chan *service.Snapshot
	// Broken, if set, is why the mode cannot work.
	Broken error

	name string
}

// New returns a mode of a name.
func New(name string) *Toy { return &Toy{Programmed: make(chan *service.Snapshot, 100), name: name} }

// Mode describes the mode. It is the first to try if none is configured.
func (t *Toy) Mode() mode.Descriptor {
	return mode.Descriptor{
		Mode:        config.Mode{Name: v1alpha1.ProxyMode(t.name), OS: config.Linux},
		DefaultRank: -1,
		Needs:       "nothing",
		Leaves:      "nothing",
		Section: func(c *config.Config) mode.Section {
			return mode.Section{MinSyncPeriod: c.IPTables.MinSyncPeriod.Duration, SyncPeriod: c.IPTables.SyncPeriod.Duration}
		},
		Render: func(want *service.Snapshot, _ mode.Rendering) (reconcile.Objects, any, error) {
			return reconcile.Objects{{Text: changes(want).String()}}, nil, nil
		},
		System: &mode.System{Probe: t.probe, Open: t.open, Targets: noTargets},
	}
}

// changes has one for each Service port.
func changes(want *service.Snapshot) reconcile.Changes {
	var all reconcile.Changes
	for p := range want.Ports(service.IPv4) {
		all = append(all, reconcile.Change{Text: fmt.Sprintf("%s has %d endpoints", p.Name, len(p.Cluster)), Port: p.Name, Named: true})
	}
	return all
}

func (t *Toy) probe(_ *config.Config, f service.Family) error {
	if f == service.IPv6 {
		return fmt.Errorf("mode %s has no %s", t.name, f)
	}
	return t.Broken
}

func (t *Toy) open(_ context.Context, _ mode.Setup, families []service.Family) ([]*mode.Backend, error) {
	return mode.Each(families, func(f service.Family) (*mode.Backend, error) {
		return &mode.Backend{Backend: &backend{programmed: t.Programmed}, Family: f}, nil
	})
}

func noTargets(context.Context, mode.Setup) ([]takeover.Target, error) { return nil, nil }

// backend programs memory.
type backend struct {
	reconcile.Base
	programmed chan<- *service.Snapshot
	last       *service.Snapshot
}

// Plan implements reconcile.Backend.
func (b *backend) Plan(_ context.Context, want *service.Snapshot) (reconcile.Plan, error) {
	return plan{b, want}, nil
}

// Cleanup implements reconcile.Backend.
func (b *backend) Cleanup(context.Context) error { return nil }

// plan is a reconcile.Plan.
type plan struct {
	backend *backend
	want    *service.Snapshot
}

// Changes implements reconcile.Plan.
func (p plan) Changes() reconcile.Changes { return changes(p.want) }

// Empty implements reconcile.Plan.
func (p plan) Empty() bool { return p.want == p.backend.last }

// Outcome implements reconcile.Plan.
func (p plan) Outcome() reconcile.Outcome { return reconcile.Outcome{} }

// Apply implements reconcile.Plan.
func (p plan) Apply(context.Context) reconcile.Outcome {
	p.backend.last = p.want
	p.backend.programmed <- p.want
	return p.Outcome()
}
