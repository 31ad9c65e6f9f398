// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"fmt"
	"strings"
	"testing"

	"kubeproxy/test/hns"
	"kubeproxy/test/kit"
)

// TestDynamicPorts has more Services than the default number of dynamic ports on Windows
// can serve without direct server return. HNS returns the same code as for ports in use
// by programs. The proxy reports the shortage and the remedy, which works. See
// https://learn.microsoft.com/troubleshoot/windows-server/networking/default-dynamic-port-range-tcpip-chang
func TestDynamicPorts(t *testing.T) {
	const usual, block, more = 16384, 64, 4
	n := newNode(t, hns.Options{})
	n.hns.LimitPorts(usual)
	var all []app
	for i := range usual/block + more {
		all = append(all, app{name: fmt.Sprintf("app-%d", i), number: 1 + i, pods: []string{"10.244.2.11"}})
	}
	n.write(t, "all.yaml", manyAppsManifest(t, all))
	n.start(t)
	n.awaitLoadBalancers(t, len(all)-more)
	n.await(t, "the condition", func() bool {
		return has(string(n.health(t).Body), "4 load balancers over IPv4 and TCP are missing", "64 dynamic ports", "--enable-dsr")
	})
	_, status := n.run(t, "status")
	if !has(status, "dynamic-ports", "load balancers over IPv4 and TCP are missing", "--enable-dsr", "netsh int ipv4 set dynamicportrange tcp") {
		t.Errorf("status says\n%s", status)
	}
	if body := n.fetch(t, "/services"); !has(body, "no 64 dynamic TCP ports of the node are left") || strings.Contains(body, "listens there") {
		t.Errorf("/services does not say why")
	}
	// The slower a listing is, the longer is the pause until the next one.
	before := n.hns.Calls()
	for i := range 2 {
		kit.Until(t, fmt.Sprintf("resync %d", i+1), func() bool { return n.hns.Calls().Sub(before).Lists(hns.LoadBalancer) > i })
	}
	if calls := n.hns.Calls().Sub(before); calls["HcnCreateLoadBalancer"] > more {
		t.Errorf("HNS is asked in vain again and again: %s", calls)
	}
	n.stop(t)
	n.start(t, "--enable-dsr")
	n.awaitLoadBalancers(t, len(all))
	n.await(t, "the end of the condition", func() bool { return !strings.Contains(string(n.health(t).Body), "dynamic ports") })
	n.stop(t)
}
