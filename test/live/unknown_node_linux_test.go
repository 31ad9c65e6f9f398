// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"slices"
	"testing"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// While the Node is not known, no primary address answers NodePorts, but for those
// that answered before a restart.
func TestNodePortsOfAnUnknownNode(t *testing.T) {
	t.Parallel()
	for name, m := range switchableModes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, web := unknownNode(t, m)
			p := c.launchAll(t)
			c.nodePorts(t, web, netlab.Refused)
			c.write(t, "node.yaml", program.Manifest[any](t, node()))
			c.nodePorts(t, web, netlab.Answered)
			p.Stop(t)
			c.remove(t, "node.yaml")
			p = c.launchAll(t)
			c.stayOpen(t, web)
			p.Stop(t)
		})
	}
}

// NodePorts of another mode or of kube-proxy stay in force, too, until the Node is known.
func TestTakeoverWithAnUnknownNode(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ from, to string }{
		{"iptables-nft", "iptables-nft"}, {"iptables-legacy", "nftables"}, {"nftables", "iptables-legacy"}, {"nftables", "nftables"},
	} {
		t.Run(tc.from+" to "+tc.to, func(t *testing.T) {
			t.Parallel()
			c, web := unknownNode(t, switchableModes()[tc.to])
			c.installUpstream(t, tc.from, web)
			c.nodePorts(t, web, netlab.Answered)
			p := c.launchAll(t)
			c.stayOpen(t, web)
			c.write(t, "node.yaml", program.Manifest[any](t, node()))
			if tc.from != tc.to || tc.from == "nftables" {
				p.AwaitLog(t, "Removed what an earlier service proxy left", "IPv4")
				p.AwaitLog(t, "Removed what an earlier service proxy left", "IPv6")
			}
			c.stayOpen(t, web)
			p.Stop(t)
		})
	}
}

// unknownNode is a cluster with a Service and without the Node.
func unknownNode(t *testing.T, m mode) (*cluster, app) {
	t.Helper()
	m.flags = append(slices.Clone(m.flags), "--nodeport-addresses=primary")
	c := newCluster(t, m)
	c.remove(t, "node.yaml")
	web := app{name: "web", number: 10, plain: true}.on(c.Host("web-1"), c.Host("web-3"))
	c.save(t, web)
	return c, web
}

// launchAll starts the proxy and waits until it has programmed both families.
func (c *cluster) launchAll(t *testing.T) *program.Proxy {
	t.Helper()
	p := c.launch(t)
	for _, f := range service.Families {
		p.AwaitLog(t, `"Programmed"`, c.mode.proxyMode()+" "+f.String())
	}
	return p
}

func (c *cluster) askNodePort(t *testing.T, a app, f service.Family) netlab.Outcome {
	t.Helper()
	got, err := c.Host("customer").Ask(t.Context(), netlab.Query{Proto: "tcp", To: a.at(service.NodePort, f)})
	if err != nil {
		t.Fatal(err)
	}
	return got.Outcome
}

// nodePorts waits until the NodePort of a is answered, or not.
func (c *cluster) nodePorts(t *testing.T, a app, want netlab.Outcome) {
	t.Helper()
	for _, f := range service.Families {
		kit.Until(t, f.String()+" NodePort to be "+want.String(), func() bool { return c.askNodePort(t, a, f) == want })
	}
}

// stayOpen asks the NodePort of a for longer than a takeover takes.
func (c *cluster) stayOpen(t *testing.T, a app) {
	t.Helper()
	for until := time.Now().Add(2 * time.Second); time.Now().Before(until); {
		for _, f := range service.Families {
			if got := c.askNodePort(t, a, f); got != netlab.Answered {
				t.Fatalf("%s NodePort is %s while the Node is not known", f, got)
			}
		}
	}
}
