// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"

	"kubeproxy/common/service"
	"kubeproxy/config"
)

// primaryFamily is the one that the node cannot do without.
func primaryFamily(c *config.Config) service.Family {
	if a, err := netip.ParseAddr(c.BindAddress); err == nil && a.Unmap().Is6() {
		return service.IPv6
	}
	return service.IPv4
}

// familiesOf returns the families that probe finds no fault with, and why
// the others are missing. Without the primary one it fails.
func familiesOf(c *config.Config, probe func(service.Family) error) ([]service.Family, map[service.Family]string, error) {
	var found []service.Family
	unavailable := map[service.Family]string{}
	primary := primaryFamily(c)
	for _, f := range service.Families {
		err := probe(f)
		switch {
		case err == nil:
			found = append(found, f)
		case f == primary:
			return nil, nil, fmt.Errorf("%s is the primary family by bindAddress %s and cannot be programmed: %w", f, c.BindAddress, err)
		default:
			unavailable[f] = err.Error()
		}
	}
	return found, unavailable, nil
}

// reportUnknownPods says that a family's pods cannot be told from other clients,
// though the Node was to say how.
func (o *statusReporter) reportUnknownPods(f service.Family, s *service.Snapshot) {
	text := ""
	if o.podsFromNode.Load() && s.Len(f) > 0 && !s.Node.Pods.Known(f) {
		text = "the Node " + o.node + " has no podCIDRs of " + f.String() + ", so clients that are no pods are not masqueraded: detectLocalMode NodeCIDR wants one"
	}
	o.health.SetCondition("pods-"+f.String(), text)
}

// reportUnavailable says that a round of f had nothing to do, as the node cannot have
// the family, which nobody minds who has no Services in it.
func (o *statusReporter) reportUnavailable(f service.Family, s *service.Snapshot, reason string) {
	if s.Len(f) == 0 {
		reason = ""
	}
	before := o.unavailable[f]
	if reason == "" && before == "" {
		return
	}
	o.unavailable[f] = reason
	o.health.SetCondition("family-"+f.String(), reason)
	if reason != "" && reason != before {
		o.log.Info("Warning: Services are not programmed for a family", "family", f.String(), "err", reason)
	}
}

// setUnavailable says which families are not programmed, wherever somebody may look.
func (o *statusReporter) setUnavailable(unavailable map[service.Family]string) {
	for f, reason := range unavailable {
		o.health.SetCondition("family-"+f.String(), reason)
		o.log.Info("Warning: Services are not programmed for a family", "family", f.String(), "err", reason)
	}
	o.services.Unavailable, o.checks.unavailable = unavailable, unavailable
}
