// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
)

// checkedApps is the number of Services with a health check: more than fit into one
// chain.
const checkedApps = 20

// checkedApp is the manifest of the n-th of them.
const checkedApp = `apiVersion: v1
kind: Service
metadata: {name: checked-NUMBER, namespace: shop}
spec:
  type: LoadBalancer
  clusterIPs: [10.96.1.NUMBER, "fd00:10:96::1:NUMBER"]
  ipFamilies: [IPv4, IPv6]
  externalTrafficPolicy: Local
  healthCheckNodePort: PORT
  ports: [{name: http, port: 80, targetPort: 8080}, {name: https, port: 443, targetPort: 8443}]
---
`

// TestIPTablesHealthChecksAreLetIn checks that health checks are answered on a node whose
// firewall drops everything else, see kubernetes/kubernetes#97225. No other port of the
// node opens.
func TestIPTablesHealthChecksAreLetIn(t *testing.T)  { eachVariant(t, letsHealthChecksIn) }
func TestUserspaceHealthChecksAreLetIn(t *testing.T) { withUserspace(t, letsHealthChecksIn) }
func TestIPVSHealthChecksAreLetIn(t *testing.T)      { withIPVS(t, letsHealthChecksIn) }

func letsHealthChecksIn(t *testing.T, m mode) {
	m.flags = append(m.flags, "--nodeport-addresses="+nodePrefixes)
	m.trackOptions.NodePorts = prefixes(strings.Split(nodePrefixes, ",")...)
	c := newCluster(t, m)
	other, spare := uint16(30199), netip.MustParseAddr("192.0.2.77")
	if _, err := c.Node.Echo("", other); err != nil {
		t.Fatal(err)
	}
	kit.Must(t, c.Node.AddAddr(spare))
	c.dropInput(t)
	var all strings.Builder
	for n := range checkedApps {
		all.WriteString(strings.NewReplacer("NUMBER", fmt.Sprint(n+1), "PORT", fmt.Sprint(30100+n)).Replace(checkedApp))
	}
	c.write(t, "checked.yaml", []byte(all.String()))
	c.start(t)
	customer := c.Host("customer")
	for _, n := range []int{0, 7, checkedApps - 1} {
		for _, at := range []string{"192.0.2.10", "[2001:db8:2::10]"} {
			url := fmt.Sprintf("http://%s:%d/", at, 30100+n)
			want := fmt.Sprintf("checked-%d", n+1)
			kit.Until(t, url+" to be answered", func() bool { return healthCheckOwner(customer, url) == want })
		}
	}
	closed := []netip.AddrPort{
		netip.AddrPortFrom(netip.MustParseAddr("192.0.2.10"), other),
		netip.AddrPortFrom(spare, 30100), // where NodePorts do not answer
	}
	for _, at := range closed {
		got, err := customer.Ask(t.Context(), netlab.Query{Proto: "tcp", To: at, Timeout: netlab.SilenceTimeout})
		if err != nil || got.Outcome != netlab.TimedOut {
			t.Errorf("%s: %s, %v; want the node's own policy to hold", at, got.Outcome, err)
		}
	}
	c.write(t, "checked.yaml", nil)
	c.awaitProgrammed(t)
	if got := healthCheckOwner(customer, "http://192.0.2.10:30100/"); got != "" {
		t.Errorf("a health check of no Service is answered for %s", got)
	}
}

// nodePrefixes contain the addresses of the node that answer NodePorts.
const nodePrefixes = "192.0.2.10/32,2001:db8:2::10/128"

// dropInput makes the node drop packets from outside, as an administrator may do. Local
// traffic and IPv6 neighbour discovery go on.
func (c *cluster) dropInput(t *testing.T) {
	t.Helper()
	for _, args := range [][]string{
		{"iptables", "-w", "-A", "INPUT", "-i", "lo", "-j", "ACCEPT"},
		{"iptables", "-w", "-P", "INPUT", "DROP"},
		{"ip6tables", "-w", "-A", "INPUT", "-i", "lo", "-j", "ACCEPT"},
		{"ip6tables", "-w", "-A", "INPUT", "-p", "ipv6-icmp", "-j", "ACCEPT"},
		{"ip6tables", "-w", "-P", "INPUT", "DROP"},
	} {
		c.iptables(t, "", args[0], args[1:]...)
	}
}
