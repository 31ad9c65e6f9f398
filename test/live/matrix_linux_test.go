// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"net/netip"
	"slices"
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/test/judge"
	"kubeproxy/test/netlab"
)

// clientHosts are a client of each kind: a pod, a pod that serves itself, the node, and a
// host outside.
func (c *cluster) clientHosts() []*netlab.Host {
	return []*netlab.Host{c.Host("shopper"), c.Host("web-1"), c.Node, c.Host("customer")}
}

// matrix is a Service for each combination of policies and places of endpoints.
func (c *cluster) matrix() []app {
	one, two, three := c.Host("web-1"), c.Host("web-2"), c.Host("web-3")
	spread := app{name: "cluster", number: 10}.on(one, two, three)
	local := app{name: "local", number: 11, internal: "Local", external: "Local"}
	inside := app{name: "local-inside", number: 12, internal: "Local", external: "Cluster"}
	outside := app{name: "local-outside", number: 13, internal: "Cluster", external: "Local"}
	away := app{name: "away", number: 14, internal: "Local", external: "Local"}
	empty := app{name: "empty", number: 15}
	deaf := app{name: "deaf", number: 16, internal: "Local", external: "Local"}.with(one, unready).with(three, ended)
	sticky := app{name: "sticky", number: 17, sticky: 600}.on(one, two, three)
	stickyLocal := app{name: "sticky-local", number: 18, internal: "Local", external: "Local", sticky: 600}
	closed := app{name: "closed", number: 19, ranges: []string{"192.0.2.100/32", "2001:db8:2::100/128"}}.on(one, three)
	return []app{
		spread, local.on(one, two, three), inside.on(one, two, three), outside.on(one, two, three), away.on(three),
		empty, deaf, sticky, stickyLocal.on(one, two, three), closed,
	}
}

// TestEveryCell connects every kind of client to every kind of address, under every
// policy, over every protocol, in both families.
func TestEveryCell(t *testing.T) {
	t.Parallel()
	everyCell(t, defaultMode())
}

func everyCell(t *testing.T, m mode) {
	c := newCluster(t, m)
	apps := c.matrix()
	c.save(t, apps...)
	c.start(t)
	want := c.awaitProgrammed(t)
	cells := c.cells(c.clientHosts(), apps...)
	if len(cells) != 10*4*4*2*len(c.protocols()) {
		t.Fatalf("%d cells", len(cells))
	}
	c.check(t, want, cells)
}

// TestSCTP does the same over SCTP alone, on a kernel that has it.
func TestSCTP(t *testing.T) {
	t.Parallel()
	everySCTPCell(t, defaultMode())
}

func everySCTPCell(t *testing.T, m mode) {
	if !netlab.SCTP() {
		t.Skip("this kernel has no sockets for SCTP")
	}
	c := newCluster(t, m)
	apps := c.matrix()
	c.save(t, apps...)
	c.start(t)
	c.check(t, c.awaitProgrammed(t), only(service.SCTP, c.cells(c.clientHosts(), apps...)))
}

// TestModes checks each way to identify pods, and masquerading of all traffic, in one
// cluster whose proxy restarts with other flags.
func TestModes(t *testing.T) {
	t.Parallel()
	everyMode(t, defaultMode())
}

// everyMode is for a cluster whose usual mode is m.
func everyMode(t *testing.T, m mode) {
	fromInterfaces, fromNode, all := m.withoutPodDetection(), m.withoutPodDetection(), m
	fromInterfaces.flags = append(fromInterfaces.flags, "--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=veth-")
	fromInterfaces.trackOptions.Pods.InterfacePrefix = "veth-"
	fromNode.flags = append(fromNode.flags, "--detect-local-mode=NodeCIDR")
	fromNode.trackOptions.PodsFromNode = true
	all.flags = append(slices.Clip(all.flags), "--masquerade-all", "--iptables-masquerade-bit=3")
	all.trackOptions.MasqueradeAll = true
	all.bit = 3
	everywhere, one := m, m
	everywhere.flags = append(slices.Clip(everywhere.flags), "--nodeport-addresses=0.0.0.0/0,::/0")
	everywhere.trackOptions.NodePorts = prefixes("0.0.0.0/0", "::/0")
	one.flags = append(slices.Clip(one.flags), "--nodeport-addresses=10.244.1.0/28,fd00:10:244:1::/112")
	one.trackOptions.NodePorts = prefixes("10.244.1.0/28", "fd00:10:244:1::/112")
	// No client is known as a pod, so none is masqueraded at a ClusterIP, and answers
	// from the other node would bypass this one.
	blind := m.withoutPodDetection()
	c := newCluster(t, m)
	web := app{name: "web", number: 10}.on(c.Host("web-1"), c.Host("web-2"))
	local := app{name: "local", number: 11, external: "Local"}.on(c.Host("web-1"), c.Host("web-3"))
	c.save(t, web, local)
	for _, next := range []struct {
		name string
		mode mode
	}{
		{"interface names", fromInterfaces}, {"the node's pod network", fromNode}, {"masquerade all", all},
		{"NodePorts everywhere", everywhere}, {"NodePorts at one address", one}, {"no pods known", blind},
	} {
		t.Run(next.name, func(t *testing.T) {
			c.setMode(t, next.mode)
			p := c.start(t)
			want := c.awaitProgrammed(t)
			cells := c.cells(c.clientHosts(), web)
			if want.Node.Pods.Known(service.IPv4) {
				cells = append(cells, c.cells(c.clientHosts(), local)...)
			}
			c.check(t, want, cells)
			c.checkNodePorts(t, want, web)
			p.Stop(t)
		})
	}
}

// checkNodePorts dials the NodePort of a at every address that node-a has.
func (c *cluster) checkNodePorts(t *testing.T, want *service.Snapshot, a app) {
	t.Helper()
	at := []string{"192.0.2.10", "2001:db8:2::10", "10.244.1.1", "fd00:10:244:1::1", "127.0.0.1", "::1"}
	for _, h := range []*netlab.Host{c.Host("shopper"), c.Node} {
		for _, s := range at {
			x := judge.Call{From: h, Proto: service.TCP, ToNode: true, Name: "NodePort of " + a.name}
			x.To = netip.AddrPortFrom(netip.MustParseAddr(s), a.nodePort())
			if h != c.Node && x.To.Addr().IsLoopback() {
				continue
			}
			if err := c.judge(want).Try(t.Context(), x); err != nil {
				t.Errorf("%s: %v", x, err)
			}
		}
	}
}

// TestBridge checks that pods on a bridge are identified by its name.
func TestBridge(t *testing.T) {
	t.Parallel()
	onBridge(t, mode{})
}

func onBridge(t *testing.T, m mode) {
	m.bridge = "br-pods"
	m.flags = append(m.flags, "--detect-local-mode=BridgeInterface", "--pod-bridge-interface=br-pods")
	m.trackOptions.Pods.Interface = "br-pods"
	c := newCluster(t, m)
	web := app{name: "web", number: 10}.on(c.Host("web-1"), c.Host("web-2"), c.Host("web-3"))
	local := app{name: "local", number: 11, external: "Local"}.on(c.Host("web-1"), c.Host("web-3"))
	c.save(t, web, local)
	c.start(t)
	c.check(t, c.awaitProgrammed(t), c.cells(c.clientHosts(), web, local))
}
