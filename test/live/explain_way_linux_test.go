// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

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
	for _, name := range []string{"nftables", "iptables-nft", "userspace"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			explainsWay(t, modeNamed(name))
		})
	}
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
	for _, f := range wayFaults {
		if f.modes != "" && (!strings.Contains(f.modes, family) || m.userspace) {
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
