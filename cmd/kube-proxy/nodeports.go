// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"kubeproxy/common/service"
)

// closedNodePorts reports that no address serves the NodePorts of f in s, because the
// addresses of the node are unknown. It returns nothing if they are known, or if f has no
// Services.
func closedNodePorts(s *service.Snapshot, f service.Family) string {
	if !s.NodePortsClosed(f) {
		return ""
	}
	return fmt.Sprintf("no %s address answers NodePorts: nodePortAddresses is %q, and no Node named %q with an address is known; "+
		"addresses that answered before still do; set hostnameOverride to the Node's name, or nodePortAddresses to CIDRs or %q", f, "primary", s.Node.Name, "all")
}

// reportNodePorts updates the condition about closed NodePorts.
func (o *statusReporter) reportNodePorts(f service.Family, s *service.Snapshot) {
	o.health.SetCondition("node-port-addresses-"+f.String(), closedNodePorts(s, f))
}
