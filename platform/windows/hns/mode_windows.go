// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"time"

	"k8s.io/klog/v2"

	"kubeproxy/common/condition"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/takeover"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
)

// system has no probe, as the network may be created later.
func system() *mode.System {
	return &mode.System{Open: openFamilies, Targets: leftoverTargets, Prepare: prepare, Pending: unprepared, Dump: Dump, ReadBack: readBack}
}

// grace is how long a round may go on when the proxy stops. HNS may hang
// (kubernetes-sigs/image-builder#566), and a first round of thousands of calls takes
// minutes. The next process continues where this one stopped.
const grace = 3 * time.Second

// openFamilies makes no call to HNS.
func openFamilies(ctx context.Context, s mode.Setup, families []service.Family) ([]*mode.Backend, error) {
	calls := newMeter()
	h, err := newHost(ctx, s, Metered(WithTimeout(NewDriver(), s.Condition(condition.Dataplane), s.Progress), calls.call))
	if err != nil {
		return nil, err
	}
	h.OnShortage(s.Condition(condition.DynamicPorts))
	return mode.Each(families, func(f service.Family) (*mode.Backend, error) {
		return &mode.Backend{
			Backend: newBackend(h, f, s), Family: f, Collectors: calls.collectors(), Grace: grace,
			Tracer: func() (mode.Tracer, error) { return newBackend(h, f, s), nil },
		}, nil
	})
}

// readBack makes no change, and saves nothing in the state file.
func readBack(ctx context.Context, s mode.Setup, f service.Family, want *service.Snapshot) (held, wanted reconcile.Objects, err error) {
	h, err := newHost(ctx, s, WithTimeout(NewDriver(), s.Condition(condition.Dataplane), s.Progress))
	if err != nil {
		return nil, nil, err
	}
	return newBackend(h, f, s).ReadBack(ctx, want)
}

func newBackend(h *Host, f service.Family, s mode.Setup) *Backend {
	return New(h, f, OptionsOf(s.Config), sectionOf(s.Config).SyncPeriod)
}

func newHost(ctx context.Context, s mode.Setup, d Driver) (*Host, error) {
	node, err := s.NodeName()
	if err != nil {
		return nil, err
	}
	log := klog.FromContext(ctx)
	return NewHost(d, FileStore(StateFile()), node, func(s string) { log.Info("HNS: " + s) }), nil
}

// newLoggedHost returns a host that logs when HNS does not answer.
func newLoggedHost(ctx context.Context, s mode.Setup) (*Host, error) {
	log := klog.FromContext(ctx)
	return newHost(ctx, s, WithTimeout(NewDriver(), func(text string) { log.Info(cmp.Or(text, "HNS answers again")) }, func() {}))
}

func leftoverTargets(ctx context.Context, s mode.Setup) ([]takeover.Target, error) {
	h, err := newLoggedHost(ctx, s)
	if err != nil {
		return nil, err
	}
	var all []takeover.Target
	for _, f := range service.Families {
		all = append(all, takeover.Target{Leftovers: &ownObjects{Backend: newBackend(h, f, s), family: f}, Family: f})
	}
	return all, nil
}

// ownObjects are a backend's HNS objects, which Remove finds out. It implements takeover.Leftovers.
type ownObjects struct {
	*Backend
	family  service.Family
	removed bool
}

func (l *ownObjects) String() string { return "kernelspace " + l.family.String() }

func (l *ownObjects) Find(context.Context) (string, error) {
	if l.removed {
		return "", nil
	}
	return "all that this proxy made", nil
}

func (l *ownObjects) Remove(ctx context.Context) error {
	err := l.Cleanup(ctx)
	if l.removed = err == nil; l.removed {
		err = SettingsFile().Save(nil)
	}
	return err
}

// prepare selects the network and reserves the source VIP, for a proxy without privileges.
func prepare(ctx context.Context, s mode.Setup) error {
	h, err := newLoggedHost(ctx, s)
	if err != nil {
		return err
	}
	if err := newBackend(h, service.IPv4, s).Prepare(ctx, configuredNode(s.Config)); err != nil {
		return fmt.Errorf("prepare HNS: %w", err)
	}
	return nil
}

// unprepared lists what prepare would create.
func unprepared(ctx context.Context, s mode.Setup) ([]string, error) {
	h, err := newLoggedHost(ctx, s)
	if err != nil {
		return nil, err
	}
	lines, err := newBackend(h, service.IPv4, s).Pending(ctx, configuredNode(s.Config))
	if err != nil {
		return nil, fmt.Errorf("look at HNS: %w", err)
	}
	return lines, nil
}

// configuredNode is the own Node as far as the configuration knows it.
func configuredNode(c *config.Config) *service.Node {
	node := &service.Node{}
	if ip := c.NodeIP(); ip.IsValid() {
		node.Addrs = []netip.Addr{ip}
	}
	return node
}
