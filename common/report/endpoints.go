// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"kubeproxy/common/health/servicestate"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
)

// endpointsFrom returns how the endpoints of a port are used, as t decided.
func endpointsFrom(t *track.Tracker) func(service.Family, service.PortName) []servicestate.Endpoint {
	return func(f service.Family, name service.PortName) []servicestate.Endpoint {
		var all []servicestate.Endpoint
		for _, c := range t.Choice(f, name).Candidates {
			e := servicestate.Endpoint{
				Address: c.Addr.String(), Node: c.Node, Zone: c.Zone, Local: c.Local, State: c.State(),
				Cluster: servicestate.Use(c.Cluster),
			}
			if c.ForLocal.Why != "" {
				forLocal := servicestate.Use(c.ForLocal)
				e.ForLocal = &forLocal
			}
			all = append(all, e)
		}
		return all
	}
}
