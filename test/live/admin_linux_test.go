// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"net"
	"net/http"
	"testing"

	"kubeproxy/test/program"
)

// TestPagesForTheNode checks that a metrics server on every address of the node gives
// Prometheus elsewhere the metrics alone. Services and the configuration are for the node.
func TestPagesForTheNode(t *testing.T) {
	m := defaultMode()
	m.flags = append(m.flags[:len(m.flags):len(m.flags)], "--metrics-bind-address=0.0.0.0:10249")
	c := newCluster(t, m)
	p := c.start(t)
	node := c.Node.IPv4.String()
	for path, elsewhere := range map[string]int{
		"/metrics": http.StatusOK, "/proxyMode": http.StatusOK,
		"/services": http.StatusForbidden, "/configz": http.StatusForbidden, "/statusz": http.StatusForbidden, "/flagz": http.StatusForbidden,
	} {
		if status := p.Status(t, program.MetricsAddr, path); status != http.StatusOK {
			t.Errorf("%s on the node = %d", path, status)
		}
		page, err := program.Fetch(t.Context(), c.clientHosts()[0], net.JoinHostPort(node, "10249"), path)
		if err != nil || page.Status != elsewhere {
			t.Errorf("%s from elsewhere = %d, %v; want %d", path, page.Status, err, elsewhere)
		}
	}
}
