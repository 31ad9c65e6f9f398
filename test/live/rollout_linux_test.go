// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/test/netlab"
)

// connections is the least number of connections while endpoints change.
const connections = 10_000

// TestRollout changes endpoints all the time. No connection is lost, neither to the
// endpoint that stays nor to the others, which end only after they were removed.
func TestRollout(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	one, two, three, four := c.Host("web-1"), c.Host("web-2"), c.Host("web-3"), c.Host("web-4")
	web := app{name: "web", number: 10}
	sticky := app{name: "sticky", number: 11, sticky: 60, external: "Local"}
	stages := [][]*netlab.Host{{one, two, three}, {one, three, four}, {one}, {four, one}, {two, one}, {one, two, three, four}}
	c.save(t, web.on(stages[0]...), sticky.on(stages[0]...))
	p := c.start(t)

	var loads []*netlab.Load
	for _, l := range []struct {
		from *netlab.Host
		app  app
		kind service.Kind
	}{
		{c.Host("shopper"), web, service.ClusterIP}, {c.Host("customer"), web, service.NodePort},
		{c.Node, web, service.ClusterIP}, {c.Host("customer"), sticky, service.LoadBalancerIP},
	} {
		for _, f := range service.Families {
			loads = append(loads, l.from.Load(t.Context(), netlab.LoadConfig{
				Query: netlab.Query{Proto: "tcp", To: l.app.at(l.kind, f)}, Workers: 2,
			}))
		}
	}
	made := 0
	for stage := 1; made < connections || stage <= 2*len(stages); stage++ {
		hosts := stages[stage%len(stages)]
		c.save(t, web.on(hosts...), sticky.on(hosts...))
		c.awaitProgrammed(t)
		made = 0
		for _, l := range loads {
			made += l.Report().Connections
		}
	}
	for i, l := range loads {
		if r := l.Stop(); r.Lost() > 0 || r.Connections == 0 {
			t.Errorf("load %d: %s", i, r)
		}
	}
	p.Stop(t)
}

// TestOpenConnectionsOutliveRollout checks that an open connection goes on after its
// endpoint was removed, until the endpoint itself ends.
func TestOpenConnectionsOutliveRollout(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	web := app{name: "web", number: 10}.on(c.Host("web-1"))
	c.save(t, web)
	c.start(t)
	open := c.converse(t, "tcp", web, 1)
	c.save(t, web.on(c.Host("web-3")))
	c.awaitProgrammed(t)
	open.checkSameServer(t)
	c.remove(t, "web.yaml")
	c.awaitProgrammed(t)
	open.checkSameServer(t)
}
