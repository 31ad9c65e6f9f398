// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"net/netip"

	"kubeproxy/common/service"
)

// claims count what several ports share, and external addresses that one has for
// itself: a forwarded health check comes after those.
type claims struct {
	vips   map[netip.Addr]int
	listed map[netip.Addr]int
	shared map[Key]int
	plain  map[Key]int
}

func newClaims() claims {
	return claims{map[netip.Addr]int{}, map[netip.Addr]int{}, map[Key]int{}, map[Key]int{}}
}

// add counts w in (n is 1) or out (n is -1).
func (c claims) add(w DesiredState, n int) {
	for _, t := range w.VIPs {
		if c.vips[t.Addr] += n; c.vips[t.Addr] == 0 {
			delete(c.vips, t.Addr)
		}
	}
	for _, a := range w.Listed {
		if c.listed[a] += n; c.listed[a] == 0 {
			delete(c.listed, a)
		}
	}
	for _, x := range w.LoadBalancers {
		of := c.plain
		if x.Shared {
			of = c.shared
		} else if x.Flags&VIPExternalIP == 0 || !x.VIP.IsValid() {
			continue
		}
		if of[x.Key] += n; of[x.Key] == 0 {
			delete(of, x.Key)
		}
	}
}

// retains reports that e, which no load balancer is to have, stays for connections
// of before: its address is listed, it leads there, and no pod of this node has it.
func (n *state) retains(e *Endpoint) bool {
	a := e.Addrs[0]
	if n.claims.listed[a] == 0 || n.model.endpointAt(a, Local) != nil {
		return false
	}
	t, err := n.site.target(service.Endpoint{Addr: netip.AddrPortFrom(a, 0), Remote: true})
	return err == nil && !misrouted(e, t)
}
