// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package backendtest

import (
	"net/netip"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/route"
	"kubeproxy/common/service"
)

// Outcome is what a node does with a connection.
type Outcome struct {
	Action  route.Action
	Targets []netip.AddrPort        // translated destinations, sorted
	Masq    map[netip.AddrPort]bool // whether it is masqueraded on the way to each target
}

// Expect returns the outcome that v asks for. Connections to endpoints for which hairpin
// returns true are masqueraded, too.
func Expect(v route.Verdict, hairpin func(service.Endpoint) bool) Outcome {
	o := Outcome{Action: v.Action}
	if v.Action != route.Forward {
		return o
	}
	o.Masq = map[netip.AddrPort]bool{}
	for _, e := range v.Endpoints {
		o.Targets = append(o.Targets, e.Addr)
		o.Masq[e.Addr] = v.Masquerades(e) || hairpin(e)
	}
	return o
}

// Diff returns how got differs from want.
func Diff(want, got Outcome) string {
	return cmp.Diff(want, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }))
}
