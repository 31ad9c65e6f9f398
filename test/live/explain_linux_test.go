// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// wayFaults stop packets of a pod, or answers to it, beside the rules. Service near has the
// endpoint web-1 on this node, far has web-3 on another, and other has web-2.
var wayFaults = []struct {
	name, do, undo string
	to             string
	want           []string
	modes          string // the modes for which it counts, "" for all
}{
	{"ip_forward", "sysctl -qw net.ipv4.ip_forward=0", "sysctl -qw net.ipv4.ip_forward=1", far,
		[]string{"net.ipv4.ip_forward is 0", "fix sysctl -w net.ipv4.ip_forward=1"}, "nftables iptables"},
	{"forwarding of an interface", "sysctl -qw net.ipv4.conf.veth-shopper.forwarding=0", "sysctl -qw net.ipv4.conf.veth-shopper.forwarding=1", far,
		[]string{"net.ipv4.conf.veth-shopper.forwarding is 0, so the node forwards nothing that comes in by veth-shopper", "fix sysctl -w net.ipv4.conf.veth-shopper.forwarding=1"}, "nftables iptables"},
	{"forwarding of answers", "sysctl -qw net.ipv4.conf.eth0.forwarding=0", "sysctl -qw net.ipv4.conf.eth0.forwarding=1", far,
		[]string{"net.ipv4.conf.eth0.forwarding is 0", "also no answers of 10.244.2.11 to 10.244.1.13"}, "nftables iptables ipvs"},
	{"strict filter", "sysctl -qw net.ipv4.conf.eth0.rp_filter=1; " + marked + "; ip route add 10.244.2.0/24 via 192.0.2.11 table 77; ip route add 10.244.2.11 dev veth-web-2",
		"sysctl -qw net.ipv4.conf.eth0.rp_filter=0; " + unmarked + "; ip route del 10.244.2.11 dev veth-web-2", far,
		[]string{"rp_filter of interface eth0 is 1 (strict), and the node reaches it by veth-web-2", "fix sysctl -w net.ipv4.conf.eth0.rp_filter=2"}, "nftables iptables"},
	{"strict filter, and the routes lead to another pod", "sysctl -qw net.ipv4.conf.veth-shopper.rp_filter=1; ip route replace 10.244.1.13 dev veth-web-2",
		"sysctl -qw net.ipv4.conf.veth-shopper.rp_filter=0; ip route replace 10.244.1.13 dev veth-shopper", near,
		[]string{"rp_filter of interface veth-shopper is 1 (strict), and the node reaches it by veth-web-2", "fix sysctl -w net.ipv4.conf.veth-shopper.rp_filter=2"}, "nftables iptables userspace"},
	{"rule from", "ip rule add from 10.244.1.13 lookup 77; ip route add default via 192.0.2.1 table 77", "ip rule del lookup 77; ip route flush table 77", near,
		[]string{`rule "from 10.244.1.13 lookup 77" sends packets of 10.244.1.13 to 10.244.1.11 to table 77: via 192.0.2.1, interface eth0, and not direct, interface veth-web-1`, "look ip rule; ip route show table 77"}, "nftables iptables"},
	{"rule iif", "ip rule add iif veth-shopper lookup 77; ip route add default via 192.0.2.1 table 77", "ip rule del lookup 77; ip route flush table 77", near,
		[]string{`rule "from all iif veth-shopper lookup 77" sends packets of 10.244.1.13 to 10.244.1.11 to table 77`}, "nftables iptables"},
	{"rule fwmark", marked + "; ip route add default via 192.0.2.1 table 77", unmarked, near,
		[]string{`rule "from all fwmark 0x70000/0x70000 lookup 77" sends packets of 10.244.1.13`}, "nftables iptables"},
	{"rule for answers", "ip rule add from 10.244.1.11 lookup 77; ip route add default via 192.0.2.1 table 77", "ip rule del lookup 77; ip route flush table 77", near,
		[]string{`rule "from 10.244.1.11 lookup 77" sends answers of 10.244.1.11 to 10.244.1.13 to table 77`}, "nftables iptables"},
	{"blackhole", "ip route add blackhole 10.244.2.11", "ip route del blackhole 10.244.2.11", far,
		[]string{"the node has no route for packets", "to 10.244.2.11: blackhole 10.244.2.11/32"}, ""},
	{"unreachable by a rule", "ip rule add from 10.244.1.13 lookup 77; ip route add unreachable default table 77", "ip rule del lookup 77; ip route flush table 77", far,
		[]string{`unreachable 0.0.0.0/0 of table 77, by rule "from 10.244.1.13 lookup 77"`}, "nftables iptables"},
	{"rule that prohibits", "ip rule add to 10.244.2.11 prohibit", "ip rule del to 10.244.2.11 prohibit", far,
		[]string{`prohibit, by rule "from all to 10.244.2.11 prohibit"`}, ""},
	{"dead next hop", "ip route add 10.244.2.11 via 192.0.2.99", "ip route del 10.244.2.11", far,
		[]string{"nobody answers ARP for 192.0.2.99 on interface eth0", "look ip neighbour show 192.0.2.99 dev eth0"}, ""},
	{"answers dropped", "nft 'add table inet other; add chain inet other c { type filter hook prerouting priority 0; }; add rule inet other c ip saddr 10.244.2.11 tcp sport 8080 tcp flags syn,ack / syn,ack drop'", "nft delete table inet other", far,
		[]string{"of chain c of table inet other drops answers of 10.244.2.11:8080", "look nft -a list chain inet other c"}, ""},
	{"forwarding of IPv6", "sysctl -qw net.ipv6.conf.all.forwarding=0", "sysctl -qw net.ipv6.conf.all.forwarding=1", far6,
		[]string{"net.ipv6.conf.all.forwarding is 0, so the node forwards nothing", "fix sysctl -w net.ipv6.conf.all.forwarding=1"}, "nftables iptables"},
	{"rule of IPv6", "ip -6 rule add iif veth-shopper lookup 77; ip -6 route add unreachable default table 77", "ip -6 rule del lookup 77; ip -6 route flush table 77", far6,
		[]string{`unreachable ::/0 of table 77, by rule "from all iif veth-shopper lookup 77"`}, "nftables iptables"},
	{"dead next hop of IPv6", "ip -6 route add fd00:10:244:2::11 via 2001:db8:2::99", "ip -6 route del fd00:10:244:2::11", far6,
		[]string{"nobody answers neighbour solicitations for 2001:db8:2::99 on interface eth0"}, ""},
	{"no carrier", "(other end) ip link set eth0 down", "", "10.96.0.12:80", []string{"interface veth-web-2 has no carrier, its other end is down or unplugged", "look ip link show veth-web-2"}, ""},
	{"interface down", "ip link set veth-web-1 down", "", near,
		[]string{"10.244.1.11 is an endpoint on this node, and only the default route leads there, via 192.0.2.1, interface eth0"}, ""},
}

const (
	near, far, far6 = "10.96.0.10:80", "10.96.0.11:80", "[fd00:10:96::b]:80"
	// marked has packets of the pod follow table 77 by a mark.
	marked   = "nft 'add table ip other; add chain ip other c { type filter hook prerouting priority mangle; }; add rule ip other c iifname veth-shopper meta mark set meta mark or 0x70000'; ip rule add fwmark 0x70000/0x70000 lookup 77"
	unmarked = "nft delete table ip other; ip rule del lookup 77; ip route flush table 77"
)

// TestExplainWay has the node drop packets beside all rules, and requires that explain says so, and
// finds nothing once that is over.
func TestExplainWay(t *testing.T) {
	inModes(t, []string{"nftables", "iptables-nft", "userspace"}, explainsWay)
}

func TestIPVSExplainWay(t *testing.T) { withIPVS(t, explainsWay) }

func explainsWay(t *testing.T, m mode) {
	c := newCluster(t, m)
	c.sh(t, "sysctl -qw net.ipv4.neigh.eth0.retrans_time_ms=50 net.ipv6.neigh.eth0.retrans_time_ms=50 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.eth0.rp_filter=0\n")
	web := app{name: "near", number: 10, plain: true}.on(c.Host("web-1"))
	c.start(t, web, app{name: "far", number: 11, plain: true}.on(c.Host("web-3")),
		app{name: "other", number: 12, plain: true}.on(c.Host("web-2")))
	pod := c.Host("shopper")
	answers := func(to string) bool {
		a, err := pod.Ask(t.Context(), netlab.Query{Proto: "tcp", To: netip.MustParseAddrPort(to), Timeout: 400 * time.Millisecond})
		return err == nil && a.Outcome == netlab.Answered
	}
	family := strings.TrimSuffix(m.proxyMode(), "-nft")
	kit.Until(t, "the node to know the pod as a neighbour", func() bool { return answers(near) })
	for _, f := range wayFaults {
		if f.modes != "" && !strings.Contains(f.modes, family) {
			continue
		}
		c.sh(t, "conntrack -F 2>/dev/null\n")
		from := pod.IPv4
		if f.to == far6 {
			from = pod.IPv6
		}
		c.explain(t, asked{from.String(), f.to, 0, []string{agrees}})
		if line, inPod := strings.CutPrefix(f.do, "(other end) "); inPod {
			out, err := program.Run(t, c.Host("web-2"), exec.Command("sh", "-c", line))
			if err != nil {
				t.Fatal(err, out)
			}
		} else {
			c.sh(t, f.do+"\n")
		}
		kit.Check(t, !answers(f.to), "%s: the Service answers", f.name)
		c.explain(t, asked{from.String(), f.to, 1, f.want})
		if f.undo != "" {
			c.sh(t, f.undo+"\n")
			kit.Until(t, "the Service to answer again", func() bool { return answers(f.to) })
		}
	}
	code, out := c.runExplain(t, pod.IPv4.String(), far, "--interface", "veth-shoper")
	if code != 2 || !strings.Contains(out, `this node has no interface "veth-shoper": want one of`) || !strings.Contains(out, "did you mean veth-shopper?") {
		t.Errorf("an unknown interface: exit %d\n%s", code, out)
	}
}

// TestExplainBridge has pods on a bridge, and a program of the node as an endpoint.
func TestExplainBridge(t *testing.T) {
	t.Parallel()
	m := defaultMode()
	m.bridge = "br-pods"
	c := newCluster(t, m)
	const setting = "net/bridge/bridge-nf-call-iptables"
	_, err := os.Stat("/proc/sys/" + setting)
	filters := err == nil // else nothing a test may load
	if filters {
		c.set(t, setting, "1")
	}
	c.start(t, app{name: "near", number: 10, plain: true}.on(c.Host("web-1")), app{name: "far", number: 11, plain: true}.on(c.Host("web-3")),
		app{name: "host", number: 12, plain: true}.on(c.Node))
	pod := c.Host("shopper").IPv4.String()
	says := func(to string, code int, want ...string) {
		t.Helper()
		c.explain(t, asked{pod, to, code, want})
	}
	says(far, 0, agrees)
	nft(t, c.Node, "table bridge corp { chain c { type filter hook forward priority 0; }; }\n")
	says(far, 0, "as far as this can be told", "table bridge corp may drop it (its base chains are not followed)", "look nft list table bridge corp")
	nft(t, c.Node, "delete table bridge corp\ntable netdev corp { chain c { type filter hook ingress device eth0 priority 0; }; chain other { type filter hook ingress device lo priority 0; }; }\n")
	says(far, 0, "table netdev corp may drop it")
	nft(t, c.Node, "delete table netdev corp\n")
	says("10.96.0.12:80", 1, "no program listens at 192.0.2.10:8080/tcp, which is an address of this node", "look ss -lntp sport = :8080")
	c.listen(t, "0.0.0.0:8080")
	says("10.96.0.12:80", 0, agrees, "route to 192.0.2.10:8080: to the node itself")
	if !filters {
		says(near, 1, "the module br_netfilter is not loaded")
		return
	}
	says(near, 0, agrees)
	c.set(t, setting, "0")
	says(near, 0, "as far as this can be told", "net.bridge.bridge-nf-call-iptables is 0") // by the gateway: /32
	for _, h := range []*netlab.Host{c.Host("shopper"), c.Host("web-1"), c.Node} {
		line := "ip route add 10.244.1.0/24 dev eth0"
		if h == c.Node {
			line = "ip addr add 10.244.1.250/24 dev br-pods"
		}
		if out, err := program.Run(t, h, exec.Command("sh", "-c", line)); err != nil {
			t.Fatal(err, out)
		}
	}
	says(near, 1, "the client and 10.244.1.11 are on bridge br-pods, and net.bridge.bridge-nf-call-iptables is 0", "fix sysctl -w net.bridge.bridge-nf-call-iptables=1")
	a, err := c.Host("shopper").Ask(t.Context(), netlab.Query{Proto: "tcp", To: netip.MustParseAddrPort(near), Timeout: time.Second})
	kit.Check(t, err == nil && a.Outcome != netlab.Answered, "%s, %v: want no answer", a.Outcome, err)
}

// faultModes are modes in which faults of endpoints are tried.
var faultModes = []string{"nftables", "iptables-nft", "userspace"}

// TestExplainEvidence has connections that ended, that nobody answers, and that a rule of
// others leads astray, and looks at what explain makes of their entries.
func TestExplainEvidence(t *testing.T) {
	for _, name := range faultModes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, modeNamed(name))
			web := app{name: "web", number: 10, plain: true}
			c.start(t, web.on(c.Host("web-3")))
			c.awaitProgrammed(t)
			to, client := "10.96.0.10:80", c.Host("shopper").IPv4.String()
			ask := func(times int, outcome netlab.Outcome) {
				t.Helper()
				for range times {
					q := netlab.Query{Proto: "tcp", To: netip.MustParseAddrPort(to)}
					if outcome != netlab.Answered {
						q.Timeout = netlab.SilenceTimeout
					}
					a, err := c.Host("shopper").Ask(t.Context(), q)
					kit.Check(t, err == nil && a.Outcome == outcome, "%s, %v; want %s", a.Outcome, err, outcome)
				}
			}
			c.endedConnections(t, web, func() { ask(3, netlab.Answered) })

			nft(t, c.Node, "table ip other { chain nat { type nat hook prerouting priority -110; ip daddr 10.96.0.10 tcp dport 80 dnat ip to 192.0.2.77:1; }; }\n")
			ask(4, netlab.TimedOut)
			code, out := c.runExplain(t, client, to)
			text := strings.Join(strings.Fields(out), " ")
			rule, entries := strings.Index(text, "gives packets to 10.96.0.10:80 another destination, and"), strings.Index(text, " entries of connection tracking lead to 192.0.2.77:1, which is no endpoint for it")
			fixes := regexp.MustCompile(`(?m)^  fix  (conntrack .*)$`).FindAllStringSubmatch(out, -1)
			kit.Need(t, code == 1 && rule >= 0 && entries >= rule && len(fixes) == 1,
				"exit %d, %d commands; want the rule, the entries and one command in\n%s", code, len(fixes), out)
			nft(t, c.Node, "delete table ip other\n")
			ask(1, netlab.Answered)
			c.explain(t, asked{client, to, 0, []string{" connections: tracked to 192.0.2.77:1, not answered", agrees}})
			c.shell(t, fixes[0][1])
			if _, out := c.runExplain(t, client, to); strings.Contains(out, "192.0.2.77") || !strings.Contains(out, ", ended") {
				t.Errorf("%q deletes other entries in\n%s", fixes[0][1], out)
			}

			if name == "userspace" { // which answers its clients itself
				return
			}
			nft(t, c.Host("web-1"), "table ip drops { chain in { type filter hook input priority 0; tcp dport 8080 drop; }; }\n")
			ask(3, netlab.TimedOut)
			c.explain(t, asked{client, to, 0, []string{" connections: tracked to 10.244.1.11:8080, not answered yet", agrees,
				"But look further: ", " connections of the last minute to 10.244.1.11:8080 got no answer"}})
		})
	}
}

// endedConnections has connections to an endpoint end, which then goes.
func (c *cluster) endedConnections(t *testing.T, web app, connect func()) {
	t.Helper()
	connect()
	c.awaitProgrammed(t, web.on(c.Host("web-1")))
	code, out := c.runExplain(t, c.Host("shopper").IPv4.String(), "10.96.0.10:80")
	if code != 0 || !strings.Contains(out, " connections: tracked to ") || !strings.Contains(out, ", ended") || strings.Contains(out, "go on to") || strings.Contains(out, "Rules of others") {
		t.Errorf("exit %d, want three that ended, and no rules of others in\n%s", code, out)
	}
}

// probeFault is what the only endpoint has, or the way to it, and what a probe from web-2 finds.
type probeFault struct {
	name, endpoint, to string
	rules, at          string // of nft, and the host that has them
	code               int
	want               []string
}

var probeFaults = []probeFault{
	{"all works", "web-3", "10.96.0.10:80", "", "", 0, []string{
		"Dialed over tcp: FROM TO RESULT TIME PACKETS here endpoint 10.244.2.11:8080 connected", "client endpoint 10.244.2.11:8080 connected", "1500 bytes arrive", "client 10.96.0.10:80 connected", agrees}},
	{"all works over UDP", "web-1", "10.96.0.10:80/udp", "", "", 0, []string{"Dialed over udp", "client 10.96.0.10:80 answered"}},
	{"all works over IPv6", "web-3", "[fd00:10:96::a]:80", "", "", 0, []string{"client endpoint [fd00:10:244:2::11]:8080 connected", "1500 bytes arrive"}},
	{"nothing listens", "shopper", "10.96.0.10:80", "", "", 1, []string{"client endpoint 10.244.1.13:8080 refused",
		"The probe fails: endpoint 10.244.1.13:8080 refuses connections: nothing listens on port 8080/tcp there", "advice compare targetPort"}},
	{"nothing listens over UDP", "shopper", "10.96.0.10:80/udp", "", "", 1, []string{"client endpoint 10.244.1.13:8080 refused", "nothing listens on port 8080/udp there"}},
	{"the endpoint drops", "web-1", "10.96.0.10:80", "table ip t { chain in { type filter hook input priority 0; tcp dport 8080 drop; }; }", "web-1", 1,
		[]string{"client endpoint 10.244.1.11:8080 timed out ", "endpoint 10.244.1.11:8080 does not answer within "}},
	{"the endpoint drops over UDP", "web-1", "10.96.0.10:80/udp", "table ip t { chain in { type filter hook input priority 0; udp dport 8080 drop; }; }", "web-1", 0,
		[]string{"client endpoint 10.244.1.11:8080 no answer ", "no answer over UDP may also come from a program that works"}},
	{"the endpoint drops the client", "web-3", "10.96.0.10:80", "table ip t { chain in { type filter hook input priority 0; ip saddr 10.244.1.12 tcp dport 8080 drop; }; }", "web-3", 1,
		[]string{"endpoint 10.244.2.11:8080 answers the node, and not the client: timed out"}},
	{"the way refuses", "web-3", "10.96.0.10:80", "table ip t { chain in { type filter hook forward priority 0; tcp dport 8080 reject with icmp host-unreachable; }; }", "node-b", 1,
		[]string{"no route", "endpoint 10.244.2.11:8080 cannot be reached: no route to host"}},
	{"large packets are lost", "web-3", "10.96.0.10:80", "table ip t { chain in { type filter hook forward priority 0; ip daddr 10.244.2.11 ip length > 1400 drop; }; }", "node-b", 1,
		[]string{"1500 bytes lost", "packets of 1500 bytes get lost on the way to endpoint 10.244.2.11:8080, small ones arrive"}},
	{"large answers are lost", "web-3", "10.96.0.10:80", "table ip t { chain in { type filter hook forward priority 0; ip saddr 10.244.2.11 ip length > 1400 drop; }; }", "node-b", 1,
		[]string{"1500 bytes lost back", "packets of 1500 bytes get lost on the way back from endpoint 10.244.2.11:8080, small ones arrive"}},
	{"the client drops", "web-3", "10.96.0.10:80", "table ip t { chain out { type filter hook output priority 0; ip daddr 10.96.0.10 drop; }; }", "web-2", 1,
		[]string{"the Service fails at 10.96.0.10:80, though its endpoints answer: timed out", "nsenter --net=/", " nft list ruleset"}},
	{"closed ports are silent", "web-3", "10.96.0.10:80", "table ip t { chain in { type filter hook input priority 0; udp dport 33434 drop; }; }", "web-3", 0,
		[]string{"whether large packets arrive was not told"}},
	{"the Service fails", "web-3", "10.96.0.10:80", "table ip t { chain in { type filter hook prerouting priority -300; ip daddr 10.96.0.10 drop; }; }", "node-a", 1,
		[]string{"the Service fails at 10.96.0.10:80, though its endpoints answer: timed out"}},
}

// TestProbe has faults of endpoints that the rules of the node do not show.
func TestProbe(t *testing.T) {
	for _, name := range faultModes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, modeNamed(name))
			web := app{name: "web", number: 10, plain: true}
			p := c.start(t, web.on(c.Host("web-1")))
			c.inhabit(t, "web-2")
			c.inhabit(t, "customer")
			for _, f := range probeFaults {
				t.Run(f.name, func(t *testing.T) {
					if c.mode.proxyMode() == "userspace" && strings.Contains(f.rules, "ip saddr 10.244.1.12") {
						return // as above
					}
					c.awaitProgrammed(t, web.on(c.Host(f.endpoint)))
					c.probes(t, f)
				})
			}
			p.AwaitLog(t, "explain --probe dials", `client="10.244.1.12"`, `destination="10.96.0.10:80/tcp"`, `service="shop/web"`, "endpoints=1")
			c.onePacket(t, web)
		})
	}
}

// probes makes a fault, and looks at what a probe from web-2 finds.
func (c *cluster) probes(t *testing.T, f probeFault) {
	t.Helper()
	if f.rules != "" {
		nft(t, c.Host(f.at), f.rules)
		t.Cleanup(func() { nft(t, c.Host(f.at), "delete table ip t\n") })
	}
	client := c.Host("web-2").IPv4
	if strings.HasPrefix(f.to, "[") {
		client = c.Host("web-2").IPv6
	}
	code, out := c.runExplain(t, client.String(), f.to, "--probe")
	text := strings.Join(strings.Fields(out), " ")
	if c.mode.proxyMode() == "userspace" { // endpoints hear from the node
		text += strings.ReplaceAll(text, "here endpoint", "client endpoint")
	}
	for _, w := range f.want {
		kit.Check(t, code == f.code && strings.Contains(text, w),
			"exit %d, want %d; want %q in\n%s", code, f.code, w, out)
	}
}

// onePacket counts the packets of a probe. A client that is elsewhere is not dialed from.
func (c *cluster) onePacket(t *testing.T, web app) {
	t.Helper()
	web1 := c.Host("web-1")
	c.awaitProgrammed(t, web.on(web1))
	nft(t, web1, "table ip t { chain in { type filter hook input priority 0; tcp dport 8080 counter drop; }; }\n")
	code, out := c.runExplain(t, "10.244.2.99", "10.244.1.11:8080", "--probe")
	if counted := nft(t, web1, "list table ip t\n"); code != 1 || !strings.Contains(counted, "counter packets 1 bytes") || !strings.Contains(out, "not dialed from the client 10.244.2.99") {
		t.Errorf("exit %d, packets: %s\n%s", code, counted, out)
	}
}

// says waits until a command of kube-proxy exits with code and prints all words.
func (c *cluster) says(t *testing.T, line string, code int, words ...string) {
	t.Helper()
	var got int
	var out string
	defer func() {
		if t.Failed() {
			t.Logf("%s: exit %d\n%s", line, got, out)
		}
	}()
	kit.Until(t, line+" to say "+strings.Join(words, ", "), func() bool {
		got, out = c.ask(t, strings.Fields(line)...)
		flat := strings.Join(strings.Fields(out), " ")
		return got == code && !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(flat, w) })
	})
}

// TestNodePortsAtNoAddress has NodePorts that none of the node's addresses answers: no
// command calls them served, and all give the reason.
func TestNodePortsAtNoAddress(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"--proxy-mode=nftables", "--proxy-mode=iptables"} {
		t.Run(flag, func(t *testing.T) {
			m := defaultMode()
			m.flags = append(slices.Clip(m.flags), flag, "--nodeport-addresses=10.9.0.0/16,fd09::/64")
			c := newCluster(t, m)
			c.save(t, app{name: "web", number: 10}.on(c.webs()...))
			p := c.launch(t)
			const why = "nodePortAddresses 10.9.0.0/16 has none of 192.0.2.10"
			c.says(t, "status", 0, "node-port-addresses-IPv4 no IPv4 address answers NodePorts: "+why, "1 with a port that serves no client")
			c.says(t, "status shop/web", 0, "node:30010 lines NodePort Cluster 4 at no address: "+why, "10.96.0.10:80 lines ClusterIP Cluster 4 served")
			c.says(t, "status --failing", 0, "shop/web", "at no address: "+why)
			c.says(t, "explain outside 192.0.2.10:30010", 0, "NodePort 30010 of service shop/web is not at this address: "+why)
			n, _ := p.Metric(t, "kubeproxy_unserved_services", "reason", "noAddress")
			kit.Check(t, n == 1, "kubeproxy_unserved_services at no address is %v, want 1", n)
			if n := p.Status(t, program.HealthAddr, "/healthz"); n != 200 {
				t.Errorf("/healthz %d, want 200", n)
			}
			d := c.diagnose(t)
			kit.Check(t, d.has("proxy-condition"), "doctor does not know: %+v", d)
		})
	}
}

// TestRelayThatReachesNoEndpoint kills the process of the only endpoint: each command knows
// that connections fail, until one succeeds again.
func TestRelayThatReachesNoEndpoint(t *testing.T) {
	t.Parallel()
	m := defaultMode()
	m.flags = append(slices.Clip(m.flags), "--proxy-mode=userspace", "--nodeport-addresses=all,localhost")
	c := newCluster(t, m)
	web := app{name: "web", number: 10, plain: true}.on(c.Host("shopper")) // where nobody listens
	c.save(t, web)
	p := c.launch(t)
	p.AwaitLogs(t, `"Programmed"`, "userspace FAMILY")
	dial := func(want netlab.Outcome) {
		t.Helper()
		for range 3 {
			awaitOutcome(t, "the ClusterIP to be "+want.String(), c.Host("web-1"), netlab.Query{Proto: "tcp", To: web.at(service.ClusterIP, service.IPv4)}, want)
		}
	}
	c.says(t, "status shop/web", 0, "served")
	dial(netlab.Broken)
	const why = "connections reached no endpoint: connection refused"
	c.says(t, "status shop/web", 0, "10.96.0.10:80 lines ClusterIP Cluster 1 the last ", why, "ready yes, connection refused ")
	c.says(t, "status", 0, "unreached connections to Services reach no endpoint: shop/web:lines (tcp, IPv4): connection refused", why)
	c.says(t, "status --failing", 0, "shop/web")
	c.says(t, "explain 10.244.1.11 10.96.0.10:80", 1, why, "the latest connection to 10.244.1.13:8080 failed")
	n, _ := p.Metric(t, "kubeproxy_relay_unreached_total", "ip_family", "IPv4")
	kit.Check(t, n >= 3, "kubeproxy_relay_unreached_total is %v, want 3 at least", n)
	d := c.diagnose(t)
	kit.Check(t, d.has("proxy-condition"), "doctor does not know: %+v", d)
	p.AwaitLog(t, `"Warning: connections to a Service fail`)
	_, err := c.Host("shopper").Echo("", target)
	kit.Must(t, err)
	dial(netlab.Answered)
	c.says(t, "status shop/web", 0, "10.96.0.10:80 lines ClusterIP Cluster 1 served", "ready yes it is ready")
	code, out := c.ask(t, "status")
	kit.Check(t, code == 0 && !strings.Contains(out, "unreached"), "status: exit %d\n%s", code, out)
}

// TestManifestThatWasNeverReadable starts with a broken file, alone and beside a good one,
// which is served. The state is called healthy only when each was readable once.
func TestManifestThatWasNeverReadable(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	c.remove(t, "node.yaml")
	c.write(t, "web.yaml", []byte("{"))
	p := c.launch(t)
	is := func(healthz int, synced float64) {
		t.Helper()
		code := p.Status(t, program.HealthAddr, "/healthz")
		if n, found := p.Metric(t, "kubeproxy_source_synced"); code != healthz || n != synced || !found {
			t.Errorf("/healthz %d, kubeproxy_source_synced %v; want %d, %v", code, n, healthz, synced)
		}
	}
	const never = "sources manifests: 1 fault, not yet read in full; what was never read is not served"
	c.says(t, "status", 1, ": not healthy", "nothing was ever programmed", "manifests not synced", never)
	is(503, 0)
	c.write(t, "node.yaml", program.Manifest[any](t, node()))
	c.save(t, app{name: "shop", number: 11}.on(c.webs()...))
	c.says(t, "status", 1, ": not synced, see below", "manifests not synced", never, "shop/shop 80/TCP,80/UDP")
	is(200, 0)
	c.write(t, "web.yaml", app{name: "web", number: 10}.on(c.webs()...).yaml(t))
	c.says(t, "status", 0, ": healthy", "manifests synced", "shop/web")
	is(200, 1)
	c.write(t, "web.yaml", []byte("{"))
	c.says(t, "status", 0, ": healthy", "manifests: 1 fault; what was read before stays in force", "shop/web")
}
