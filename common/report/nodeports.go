// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"

	"kubeproxy/common/health"
	"kubeproxy/common/service"
)

// nodePorts shows that no address serves NodePorts.
type nodePorts struct{ health *health.Monitor }

// Report implements Reporter.
func (n nodePorts) Report(r Round) {
	n.health.SetCondition("node-port-addresses-"+r.Family.String(), ClosedNodePorts(r.Snapshot, r.Family))
}

// ClosedNodePorts reports that no address serves the NodePorts of f in s, because the
// addresses of the node are unknown. It returns nothing if they are known, or if f has no
// Services.
func ClosedNodePorts(s *service.Snapshot, f service.Family) string {
	if !s.NodePortsClosed(f) {
		return ""
	}
	return fmt.Sprintf("no %s address answers NodePorts: nodePortAddresses is %q, and no Node named %q with an address is known; "+
		"addresses that answered before still do; set hostnameOverride to the Node's name, or nodePortAddresses to CIDRs or %q", f, "primary", s.Node.Name, "all")
}
