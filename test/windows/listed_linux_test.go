// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"kubeproxy/test/hns"
	"kubeproxy/test/program"
)

// remote returns the identity of the remote endpoint with an address, "" without one.
func (n *node) remote(ip string) string {
	for _, e := range n.hns.Objects(hns.Endpoint) {
		if e.Remote() && len(e.IPs()) == 1 && e.IPs()[0].String() == ip {
			return e.ID()
		}
	}
	return ""
}

// TestListedEndpointsStay makes a pod of another node unready and ready, terminates and
// removes it. Its endpoint in HNS stays the same until the pod is removed.
func TestListedEndpointsStay(t *testing.T) {
	for _, v := range []hns.Version{{Major: 13, Minor: 3}, {Major: 15, Minor: 5}} {
		t.Run(v.String(), func(t *testing.T) {
			n := newNode(t, hns.Options{Version: v})
			web := app{"web", 10, []string{"10.244.1.11", "10.244.2.11"}}
			with := func(c discoveryv1.EndpointConditions) {
				s := web.slice()
				s.Endpoints[1].Conditions = c
				n.write(t, web.name+".yaml", program.Manifest[any](t, web.service(), s))
			}
			yes, no := true, false
			n.save(t, web)
			n.start(t)
			n.awaitProgrammed(t, web)
			id := n.remote("10.244.2.11")
			n.idle = []string{"10.244.2.11"} // exists without a load balancer
			for name, c := range map[string]discoveryv1.EndpointConditions{
				"not ready":   {Ready: &no, Serving: &no},
				"terminating": {Ready: &no, Serving: &yes, Terminating: &yes},
			} {
				with(c)
				n.awaitProgrammed(t, web.on("10.244.1.11"))
				n.checkIdle(t, name)
				if got := n.remote("10.244.2.11"); got != id {
					t.Errorf("%s: endpoint %q, want %q", name, got, id)
				}
				n.save(t, web)
				n.awaitProgrammed(t, web)
				if got := n.remote("10.244.2.11"); got != id {
					t.Errorf("after %s: endpoint %q, want %q", name, got, id)
				}
			}
			n.idle = nil
			n.save(t, web.on("10.244.1.11"))
			n.awaitProgrammed(t, web.on("10.244.1.11")) // without leftovers
			n.stop(t)
		})
	}
}
