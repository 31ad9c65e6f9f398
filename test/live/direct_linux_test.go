// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"fmt"
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

// run starts the proxy of a node. As in a pod, it may only read /proc/sys.
func (c *directCluster) run(t *testing.T, node string, more ...string) {
	t.Helper()
	args := append([]string{"--manifests=" + c.dir, "--hostname-override=" + node, "--proxy-mode=nftables", "--cluster-cidr=" + netlab.ClusterCIDR, "--iptables-sync-period=2s"}, more...)
	cmd := kubeProxy.Command(args...)
	const readOnly = `mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys && exec "$0" "$@"`
	c.proxies[node] = program.Start(t, c.Host(node), exec.Command("unshare", append([]string{"--mount", "sh", "-c", readOnly, cmd.Path}, cmd.Args[1:]...)...))
}

// awaitLead waits until a node leads packets, and knows that by itself.
func (c *directCluster) awaitLead(t *testing.T, node string) {
	t.Helper()
	kit.Until(t, node+" leads", func() bool {
		for _, family := range []string{"ip", "ip6"} {
			if out := c.on(t, node, "nft list map "+family+" kube-direct marks"); !strings.Contains(out, " : 0x6b64") {
				return false
			}
		}
		report := reportOf(t, c.proxies[node], program.MetricsAddr)
		return report.Conditions["lacking-IPv4"]+report.Conditions["lacking-IPv6"] == ""
	})
}

// awaitProbes waits until the process of a node has the port of probes.
func (c *directCluster) awaitProbes(t *testing.T, node string) {
	t.Helper()
	owner := fmt.Sprintf("pid=%d,", c.proxies[node].Pid())
	kit.Until(t, "the process probes from "+node, func() bool {
		return strings.Count(c.on(t, node, "ss -lunp sport = :10256"), owner) == len(service.Families)
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

// strict has a node of endpoints filter by reverse path. It and the ingress node say so, and new connections are
// translated.
func (c *directCluster) strict(t *testing.T) {
	t.Helper()
	says := func(node, what string) func() bool {
		return func() bool {
			text := reportOf(t, c.proxies[node], program.MetricsAddr).Conditions["lacking-IPv4"]
			return strings.Contains(text, what) && (text == "") == (what == "")
		}
	}
	const name = "sysctl -w net.ipv4.conf.all.rp_filter="
	c.on(t, netlab.OtherName, name+"1")
	kit.Until(t, "the ingress node lacks the other one", says("node-d", netlab.OtherName))
	kit.Until(t, "that one says why", says(netlab.OtherName, "rp_filter"))
	for _, w := range ways() {
		if w.kind == service.LoadBalancerIP {
			a, err := c.Host("customer").Ask(t.Context(), netlab.Query{Proto: w.proto, To: c.web.at(w.kind, w.family)})
			if err != nil || a.Outcome != netlab.Answered || a.Masqueraded() != (w.family == service.IPv4) {
				t.Errorf("%v: %+v, %v", w, a, err)
			}
		}
	}
	c.on(t, netlab.OtherName, name+"2")
	kit.Until(t, "the ingress node leads again", says("node-d", ""))
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
	c.ingress(t, "node-d")
	first := c.proxies["node-d"]
	c.run(t, "node-d", "--healthz-bind-address="+secondHealth, "--metrics-bind-address="+secondMetrics)
	c.awaitProbes(t, "node-d")
	stay("a second process took over")
	c.proxies["node-d"].Stop(t)
	c.proxies["node-d"] = first
	stay("it ended")
	c.awaitProbes(t, "node-d")
	c.awaitLead(t, "node-d")
	stay("the first one is sure of its peers")
	kit.Must(t, c.Host("node-c").Unplug())
	c.ingress(t, "node-d")
	stay("the first node is gone")
	c.strict(t)
	c.saveAnnotated(t, c.web, track.AnnotationDirectReturn, "off")
	for i, name := range directNodes {
		if name != "node-c" {
			kit.Until(t, "nothing is left on "+name, func() bool { return c.on(t, name, traces) == c.before[i] })
		}
	}
}

// ask runs a command of the program on a node.
func (c *directCluster) ask(t *testing.T, node string, args ...string) (code int, out string) {
	t.Helper()
	cmd := exec.Command(kubeProxy.Path, args...)
	out, err := program.Run(t, c.Host(node), cmd)
	kit.Need(t, err == nil || cmd.ProcessState != nil, "%v", err)
	return cmd.ProcessState.ExitCode(), out
}

// directFaults are what keeps packets from getting through, what takes it away, and what explain says of it there. The
// proxy of node-d is dead.
var directFaults = []struct{ name, node, do, undo, want string }{
	{"strict reverse path filter", netlab.OtherName, "sysctl -qw net.ipv4.conf.all.rp_filter=1", "sysctl -qw net.ipv4.conf.all.rp_filter=0", "rp_filter of interface kube-direct is 1 (strict)"},
	{"firewall before the tunnel", netlab.OtherName, drops("input", "udp dport 4790"), "nft delete table inet other", "of chain c of table inet other drops packets to 192.0.2.11:4790"},
	{"firewall against answers", netlab.OtherName, drops("forward", "tcp sport 8080"), "nft delete table inet other", "of chain c of table inet other drops answers of 10.244.2.11:8080"},
	{"firewall behind the tunnel", "node-c", drops("output", "udp dport 4790"), "nft delete table inet other", "of chain c of table inet other drops packets to 192.0.2.10:4790"},
	{"firewall for what is forwarded", "node-c", drops("forward", `oifname "kube-direct"`), "nft delete table inet other", "of chain c of table inet other drops packets to 203.0.0.10:80"},
	{"no route", "node-d", "ip route flush table all proto 107", "", "into the tunnel: they leave "},
	{"another mark", "node-d", "nft flush map ip kube-direct marks", "", "marks lacks the element 203.0.0.10 . tcp . 80 . "},
	{"device down", "node-d", "ip link set kube-direct down", "", "device kube-direct, the tunnel for direct return, is down"},
	{"no device", "node-d", "ip link del kube-direct", "", "device kube-direct, the tunnel for direct return, is missing"},
	{"another rule", "node-d", "nft add rule ip kube-direct lead accept", "", "chain lead has 1 rules that are not kube-proxy's"},
	{"no table", "node-d", "nft delete table ip kube-direct", "", "there is no table ip kube-direct"},
}

// drops is a command that has other rules drop packets.
func drops(hook, match string) string {
	return fmt.Sprintf("nft 'add table inet other; add chain inet other c { type filter hook %s priority 0; }; add rule inet other c %s drop'", hook, match)
}

// TestDirectReturnExplain asks for both halves, breaks what they need, and asks again.
func TestDirectReturnExplain(t *testing.T) {
	t.Parallel()
	c := newDirectCluster(t)
	from, to := c.Host("customer").IPv4.String(), c.web.at(service.LoadBalancerIP, service.IPv4).String()
	explain := func(node string, code int, want ...string) {
		t.Helper()
		args := []string{"explain", from, to}
		if node == "node-d" {
			args = append(args, "--without-proxy", "--manifests="+c.dir, "--hostname-override="+node, "--proxy-mode=nftables", "--cluster-cidr="+netlab.ClusterCIDR)
		}
		got, out := c.ask(t, node, args...)
		for _, text := range want {
			kit.Check(t, got == code && strings.Contains(strings.Join(strings.Fields(out), " "), text), "%s: exit %d, want %d and %q\n%s", node, got, code, text, out)
		}
	}
	c.proxies["node-d"].Kill()
	through := "route to 10.244.2.11:8080: through tunnel kube-direct to node node-b, 192.0.2.11, which translates it and answers the client"
	for _, n := range []string{"node-c", "node-d"} {
		explain(n, 0, through, "route to 10.244.1.11:8080: through tunnel kube-direct to node node-a, 192.0.2.10", agrees)
	}
	explain(netlab.OtherName, 0, "what other nodes send through the tunnel for this client is translated to one of 2 endpoints: 10.244.2.1",
		"the answer leaves this node directly, with source "+to, agrees)
	for _, f := range directFaults {
		t.Log(f.name)
		if out := c.on(t, f.node, f.do); out != "" {
			t.Errorf("%s: %s", f.do, out)
		}
		explain(f.node, 1, f.want)
		if f.undo != "" {
			c.on(t, f.node, f.undo)
			kit.Until(t, "explain to agree again", func() bool {
				code, _ := c.ask(t, f.node, "explain", from, to)
				return code == 0
			})
		}
	}
	c.on(t, netlab.OtherName, drops("input", "udp dport 4790"))
	kit.Until(t, "node-b is no peer", func() bool {
		_, out := c.ask(t, "node-c", "explain", from, to)
		return strings.Contains(strings.Join(strings.Fields(out), " "), "is off, so the rules translate: node \"node-b\": 192.0.2.11 does not answer through the tunnel")
	})
	explain("node-c", 1, "masqueraded")
	_, out := c.ask(t, "node-c", "status", "svc/shop/web")
	want := "direct return is off, and the rules translate: node \"node-b\": 192.0.2.11 does not answer through the tunnel"
	kit.Check(t, strings.Contains(strings.Join(strings.Fields(out), " "), want), "status lacks %q:\n%s", want, out)
}
