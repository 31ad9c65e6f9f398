// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package mode

import (
	"fmt"

	"kubeproxy/common/ipaddr"
	"kubeproxy/common/service"
	"kubeproxy/config"
)

// PrimaryFamily returns the IP family without which the proxy does not start.
func PrimaryFamily(c *config.Config) service.Family {
	if a, err := ipaddr.Parse(c.BindAddress); err == nil && a.Is6() {
		return service.IPv6
	}
	return service.IPv4
}

// familiesOf returns the families that probe accepts, and why the others are missing. It
// fails if the primary family is missing.
func familiesOf(c *config.Config, probe func(service.Family) error) ([]service.Family, map[service.Family]string, error) {
	var found []service.Family
	unavailable := map[service.Family]string{}
	primary := PrimaryFamily(c)
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
