// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"

	"kubeproxy/common/service"
	"kubeproxy/config"
)

// primaryFamily returns the IP family without which the proxy does not start.
func primaryFamily(c *config.Config) service.Family {
	if a, err := netip.ParseAddr(c.BindAddress); err == nil && a.Unmap().Is6() {
		return service.IPv6
	}
	return service.IPv4
}

// familiesOf returns the families that probe accepts, and why the others are missing. It
// fails if the primary family is missing.
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

// reportUnknownPods reports that pods of a family cannot be distinguished from other
// clients, because the Node lacks the podCIDRs that the configuration relies on.
func (o *statusReporter) reportUnknownPods(f service.Family, s *service.Snapshot) {
	text := ""
	if o.podsFromNode.Load() && s.Len(f) > 0 && !s.Node.Pods.Known(f) {
		text = "the Node " + o.node + " has no podCIDRs of " + f.String() + ", so clients that are no pods are not masqueraded: detectLocalMode NodeCIDR wants one"
	}
	o.health.SetCondition("pods-"+f.String(), text)
}

// reportUnavailable reports that rounds of f do nothing, as the node lacks the family. It
// reports nothing while the family has no Services.
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

// setUnavailable reports in conditions, log and status which families are not programmed.
func (o *statusReporter) setUnavailable(unavailable map[service.Family]string) {
	for f, reason := range unavailable {
		o.health.SetCondition("family-"+f.String(), reason)
		o.log.Info("Warning: Services are not programmed for a family", "family", f.String(), "err", reason)
	}
	o.services.Unavailable, o.checks.unavailable = unavailable, unavailable
}
