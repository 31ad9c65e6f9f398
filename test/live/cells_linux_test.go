// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/test/judge"
	"kubeproxy/test/netlab"
)

// kinds are the four kinds of addresses of an app.
var kinds = []service.Kind{service.ClusterIP, service.NodePort, service.ExternalIP, service.LoadBalancerIP}

// cells returns every combination of a host, an app and an address.
func (c *cluster) cells(hosts []*netlab.Host, apps ...app) []judge.Call {
	var all []judge.Call
	for _, a := range apps {
		for _, k := range kinds {
			for _, f := range service.Families {
				all = append(all, c.dials(hosts, a, k, f)...)
			}
		}
	}
	return all
}

func (c *cluster) dials(hosts []*netlab.Host, a app, k service.Kind, f service.Family) []judge.Call {
	var all []judge.Call
	for _, h := range hosts {
		for _, p := range c.protocols() {
			if !slices.Contains(a.protocols(), p) {
				continue
			}
			x := judge.Call{From: h, To: a.at(k, f), ToNode: k == service.NodePort, Proto: p}
			x.Name = fmt.Sprintf("%s of %s", k, a.name)
			all = append(all, x)
		}
	}
	return all
}

// only returns the cells of one protocol.
func only(p service.Protocol, cells []judge.Call) []judge.Call {
	return slices.DeleteFunc(cells, func(x judge.Call) bool { return x.Proto != p })
}

// check makes the connections of all cells and compares the results with package route.
func (c *cluster) check(t *testing.T, want *service.Snapshot, cells []judge.Call) {
	t.Helper()
	j := c.judge(want)
	before := c.kernel.Taken(t)
	j.Check(t, cells)
	if made, taken := j.Taken.Load(), c.kernel.Taken(t)-before; taken < made {
		t.Errorf("%d connections were taken at connect, want at least %d", taken, made)
	}
}

func (c *cluster) judge(want *service.Snapshot) judge.Judge {
	return judge.Judge{
		Lab: c.Lab, Want: want, Bridge: c.mode.bridge, Relayed: c.mode.userspace,
		Accelerated: c.accelerated, Taken: new(atomic.Uint64),
	}
}
