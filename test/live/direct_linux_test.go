// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// directCluster is a cluster with four nodes, of which two have pods, and a proxy on each.
type directCluster struct {
	*cluster
	web     app
	proxies map[string]*program.Proxy
	before  []string // what was there before the proxies, by node
}

var directNodes = []string{netlab.NodeName, netlab.OtherName, "node-c", "node-d"}

func newDirectCluster(t *testing.T) *directCluster {
	t.Helper()
	c := &directCluster{cluster: &cluster{dir: t.TempDir(), mode: defaultMode()}, proxies: map[string]*program.Proxy{}}
	c.Lab = netlab.Start(t, netlab.Config{Pods: locals, Remote: remotes, Clients: outside, Nodes: directNodes[2:]})
	for _, h := range c.webs() {
		_, err := h.Echo("", target)
		kit.Must(t, err)
	}
	var nodes []*corev1.Node
	for _, name := range directNodes {
		n := node()
		n.Name, n.Spec.PodCIDRs = name, nil
		n.Status.Addresses[0].Address, n.Status.Addresses[1].Address = c.Host(name).IPv4.String(), c.Host(name).IPv6.String()
		nodes = append(nodes, n)
	}
	c.write(t, "nodes.yaml", program.Manifest(t, nodes...))
	c.web = app{name: "web", number: 10, plain: true}.on(c.webs()...)
	c.saveAnnotated(t, c.web, track.AnnotationDirectReturn, "on")
	for _, name := range directNodes {
		c.before = append(c.before, c.on(t, name, traces))
		c.run(t, name)
	}
	for _, name := range directNodes {
		c.awaitLead(t, name)
	}
	return c
}

// traces shows what direct return may leave.
const traces = "ip link; ip rule; ip -6 rule; nft list tables | grep direct; ip route show table all | grep -w -e 107 -e encap; ip -6 route show table all | grep -w -e 107 -e encap"

// run starts the proxy of a node.
func (c *directCluster) run(t *testing.T, node string) {
	t.Helper()
	c.proxies[node] = kubeProxy.Start(t, c.Host(node), "--manifests="+c.dir, "--hostname-override="+node, "--proxy-mode=nftables", "--cluster-cidr="+netlab.ClusterCIDR)
}

// awaitLead waits until a node leads packets.
func (c *directCluster) awaitLead(t *testing.T, node string) {
	t.Helper()
	kit.Until(t, node+" leads", func() bool {
		for _, family := range []string{"ip", "ip6"} {
			if out := c.on(t, node, "nft list map "+family+" kube-direct marks"); !strings.Contains(out, " : 0x6b64") {
				return false
			}
		}
		return true
	})
}

// on returns what a command prints on a node.
func (c *directCluster) on(t *testing.T, node, command string) string {
	t.Helper()
	out, _ := program.Run(t, c.Host(node), exec.Command("sh", "-c", command))
	return out
}

// ingress has the router send the customer's packets for the Service to a node.
func (c *directCluster) ingress(t *testing.T, node string) {
	t.Helper()
	for _, w := range ways() {
		if w.kind == service.LoadBalancerIP {
			kit.Must(t, c.Host("customer").Lead(c.Host(node), c.web.at(w.kind, w.family).Addr()))
		}
	}
}

// held are open conversations, with the first answer of each.
type held struct {
	conns  []*netlab.Conn
	before []netlab.Answer
}

func (c *directCluster) open(t *testing.T, w way, n int) (h held) {
	t.Helper()
	for range n {
		conn, a, err := c.Host("customer").Open(t.Context(), netlab.Query{Proto: w.proto, To: c.web.at(w.kind, w.family)})
		if err == nil && a.Outcome == netlab.Answered {
			a, err = conn.Ask(t.Context())
		}
		if err != nil || a.Outcome != netlab.Answered || a.Masqueraded() {
			t.Fatalf("%v: %+v, %v", w, a, err)
		}
		h.conns, h.before = append(h.conns, conn), append(h.before, a)
	}
	return h
}

// live returns how many still have the same endpoint, which sees the same client.
func (h held) live(t *testing.T) (n int) {
	for i, conn := range h.conns {
		if a, err := conn.Ask(t.Context()); err == nil && a.Outcome == netlab.Answered && a.Backend == h.before[i].Backend && a.Client == h.before[i].Client {
			n++
		}
	}
	return n
}

// TestDirectReturn has the router change the ingress node of open connections. The new one is one
// without endpoints, one with some, one whose proxy is killed and starts again, and the first one again.
func TestDirectReturn(t *testing.T) {
	t.Parallel()
	const each = 20
	c := newDirectCluster(t)
	c.ingress(t, "node-c")
	all := map[way]held{}
	for _, w := range ways() {
		if w.kind == service.LoadBalancerIP {
			all[w] = c.open(t, w, each)
		}
	}
	stay := func(what string) {
		t.Helper()
		for w, h := range all {
			if n := h.live(t); n != each {
				t.Errorf("%s, %v: %d of %d connections live", what, w, n, each)
			}
		}
	}
	if out := c.on(t, "node-c", "cat /proc/net/nf_conntrack | grep -e dst=203.0 -e dst=2001:0db8:0203"); out != "" {
		t.Errorf("the ingress node tracks\n%s", out)
	}
	c.ingress(t, "node-d")
	stay("another node")
	c.proxies["node-d"].Kill()
	stay("its proxy is killed")
	c.run(t, "node-d")
	c.proxies["node-d"].AwaitLogs(t, `"Programmed"`, "nftables FAMILY")
	stay("its proxy is back")
	c.awaitLead(t, "node-d")
	stay("it is sure of its peers")
	c.proxies[netlab.OtherName].Kill()
	c.run(t, netlab.OtherName)
	c.proxies[netlab.OtherName].AwaitLogs(t, `"Programmed"`, "nftables FAMILY")
	stay("the proxy of endpoints is back")
	c.awaitLead(t, netlab.OtherName)
	stay("it is sure of its peers, too")
	c.ingress(t, netlab.NodeName)
	stay("a node with endpoints")
	c.ingress(t, "node-c")
	stay("the first node again")
	kit.Must(t, c.Host("node-c").Unplug())
	c.ingress(t, "node-d")
	stay("the first node is gone")
	c.saveAnnotated(t, c.web, track.AnnotationDirectReturn, "off")
	for i, name := range directNodes {
		if name != "node-c" {
			kit.Until(t, "nothing is left on "+name, func() bool { return c.on(t, name, traces) == c.before[i] })
		}
	}
}
