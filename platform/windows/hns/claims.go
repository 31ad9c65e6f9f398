// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"net/netip"

	"kubeproxy/common/service"
)

// claims counts the objects that several Service ports share, and the external addresses
// that one port has for itself. The latter take precedence over forwarded health checks.
type claims struct {
	vips   map[netip.Addr]int
	listed map[netip.Addr]int
	shared map[Key]int
	plain  map[Key]int
	// preserved counts those in shared that a port needs with preserveFlags.
	preserved map[Key]int
}

func newClaims() claims {
	return claims{map[netip.Addr]int{}, map[netip.Addr]int{}, map[Key]int{}, map[Key]int{}, map[Key]int{}}
}

// add adds w if n is 1, and removes it if n is -1.
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
			if x.Flags&preserveFlags != 0 {
				c.preserved[x.Key] += n
			}
		} else if x.Flags&VIPExternalIP == 0 || !x.VIP.IsValid() {
			continue
		}
		if of[x.Key] += n; of[x.Key] == 0 {
			delete(of, x.Key)
		}
	}
}

// shareFlags gives a load balancer that several ports share the flags that one of them needs.
func shareFlags(units []unit, preserved func(Key) bool) {
	for _, u := range units {
		for i := range u.desired {
			if x := &u.desired[i]; x.Shared && preserved(x.Key) {
				x.Flags |= preserveFlags
			}
		}
	}
}

// retains reports whether e stays for existing connections although no load balancer
// needs it. That is so if an EndpointSlice lists its address, its route is correct, and
// no local pod has the address.
func (n *state) retains(e *Endpoint) bool {
	a := e.Addrs[0]
	if n.claims.listed[a] == 0 || n.model.endpointAt(a, Local) != nil {
		return false
	}
	t, err := n.site.target(service.Endpoint{Addr: netip.AddrPortFrom(a, 0), Remote: true})
	return err == nil && !misrouted(e, t)
}
