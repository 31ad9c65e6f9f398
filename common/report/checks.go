// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"maps"
	"net/netip"
	"slices"
	"sync"

	"kubeproxy/common/health/servicecheck"
	"kubeproxy/common/service"
)

// checks updates the health check servers of Services from the programmed snapshots.
type checks struct {
	servers     *checkServers
	failing     func(namespace, name string) bool
	unavailable map[service.Family]string // as in servicestate.Store

	mu         sync.Mutex
	programmed [2]*service.Snapshot
	counts     map[uint16]*checkCount // by healthCheckNodePort
	desired    servicecheck.Desired
}

// checkCount counts, for one Service and each family, its ports and their local ready
// endpoints.
type checkCount struct {
	name         service.PortName
	ports, ready [2]int
}

func newChecks(s *checkServers, failing func(namespace, name string) bool, unavailable map[service.Family]string) *checks {
	return &checks{servers: s, failing: failing, unavailable: unavailable, counts: map[uint16]*checkCount{}}
}

// Report implements Reporter.
func (c *checks) Report(r Round) { c.update(r.Family, r.Snapshot) }

// update takes over the differences between s and the previous snapshot of f.
func (c *checks) update(f service.Family, s *service.Snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for change := range service.Diff(c.programmed[f], s, f) {
		c.add(change.Old, -1)
		c.add(change.New, 1)
	}
	c.programmed[f] = s
	want := c.desiredChecks(s.Node)
	if sameDesired(want, c.desired) {
		return
	}
	c.desired = want
	c.servers.showProblems(c.servers.Sync(want))
}

func (c *checks) add(p *service.Port, n int) {
	if p == nil || p.HealthCheck == 0 {
		return
	}
	k := c.counts[p.HealthCheck]
	if k == nil {
		k = &checkCount{}
		c.counts[p.HealthCheck] = k
	}
	k.ports[p.Family] += n
	if n > 0 {
		k.name, k.ready[p.Family] = p.Name, p.LocalReady
	}
	if k.ports == [2]int{} {
		delete(c.counts, p.HealthCheck)
	}
}

func (c *checks) desiredChecks(node *service.Node) servicecheck.Desired {
	want := servicecheck.Desired{Addrs: c.addrs(node), Checks: map[uint16]servicecheck.Check{}, Within: node.NodePorts}
	for port, k := range c.counts {
		x := servicecheck.Check{
			Namespace: k.name.Namespace, Name: k.name.Name,
			Unprogrammed: c.failing(k.name.Namespace, k.name.Name),
		}
		for _, f := range service.Families {
			if k.ports[f] > 0 {
				x.Families = append(x.Families, f)
				x.LocalEndpoints[f] = k.ready[f]
			}
		}
		want.Checks[port] = x
	}
	return want
}

// addrs returns the listen addresses of health checks, which are those of NodePorts. The
// addresses in a prefix come and go, so a prefix of more than one address means the
// wildcard address of its family.
func (c *checks) addrs(node *service.Node) []netip.Addr {
	all := [...]netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
	var addrs []netip.Addr
	for _, f := range service.Families {
		if c.unavailable[f] != "" {
			continue
		}
		prefixes := node.NodePortPrefixes(f)
		if slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return !p.IsSingleIP() }) {
			addrs = append(addrs, all[f])
			continue
		}
		for _, p := range prefixes {
			addrs = append(addrs, p.Addr())
		}
	}
	return addrs
}

func sameDesired(a, b servicecheck.Desired) bool {
	return slices.Equal(a.Addrs, b.Addrs) && slices.Equal(a.Within, b.Within) && maps.EqualFunc(a.Checks, b.Checks, func(x, y servicecheck.Check) bool {
		return x.Namespace == y.Namespace && x.Name == y.Name && x.LocalEndpoints == y.LocalEndpoints &&
			x.Unprogrammed == y.Unprogrammed && slices.Equal(x.Families, y.Families)
	})
}
