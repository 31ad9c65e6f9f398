// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"net/netip"
	"testing"

	"kubeproxy/common/service"
)

// A prefix that holds only loopback addresses gets no rule, because none could match.
func TestNoRuleForLoopbackAddresses(t *testing.T) {
	node := &service.Node{NodePorts: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/32")}}
	for _, f := range service.Families {
		want := len(dispatchRules(f, node))
		more := *node
		more.NodePorts = append(more.NodePorts, netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128"))
		if got := len(dispatchRules(f, &more)); got != want {
			t.Errorf("%s: %d rules, want %d", f, got, want)
		}
	}
}
