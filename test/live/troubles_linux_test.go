// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"cmp"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// trouble is a fault that stops a connection, of a kind that operators meet. Somebody who
// asks the commands has to be told its cause.
type trouble struct {
	name string
	// plant and mend are scripts for the node.
	plant, mend string
	// begin plants what a script cannot. It returns what mends it.
	begin func(*testing.T, *troubled) (mend func())
	// from is the host whose connection fails, shopper if empty. It dials to, the ClusterIP
	// of shop/web if empty.
	from, to string
	// tells are the commands that must not end with 0, of columns.
	tells string
	// says is the cause, in the words of one command at least.
	says []string
	// modes are the modes in which it stops the connection, "" for all.
	modes string
}

// troubled is a node with a proxy that is asked.
type troubled struct {
	*cluster
	proxy *program.Proxy
	test  *testing.T // which has the proxy
	// codes and said are what the commands ended with and printed when asked last.
	codes [len(columns)]int
	said  [len(columns)]string
}

// The services of the node: web has its endpoint on the other node, near on this one.
const (
	webIP  = "10.96.0.10:80"
	nearIP = "10.96.0.11:80"
)

var columns = [...]string{"status", "doctor", "explain", "probe"}

// forwarded are the modes in which the kernel forwards a packet of the client, and answered those
// in which it forwards the answer to it.
const (
	forwarded = "nftables iptables"
	answered  = forwarded + " ipvs"
)

var troubles = []trouble{
	{name: "IP forwarding is off", plant: "echo 0 > /proc/sys/net/ipv4/ip_forward", mend: "echo 1 > /proc/sys/net/ipv4/ip_forward",
		tells: "status doctor explain", says: []string{"ip_forward"}, modes: answered},
	{name: "the client's interface does not forward", plant: "echo 0 > /proc/sys/net/ipv4/conf/veth-shopper/forwarding", mend: "echo 1 > /proc/sys/net/ipv4/conf/veth-shopper/forwarding",
		tells: "explain", says: []string{"net.ipv4.conf.veth-shopper.forwarding"}, modes: forwarded},
	{name: "the interface of the replies does not forward", plant: "echo 0 > /proc/sys/net/ipv4/conf/eth0/forwarding", mend: "echo 1 > /proc/sys/net/ipv4/conf/eth0/forwarding",
		tells: "doctor explain", says: []string{"net.ipv4.conf.eth0.forwarding"}, modes: answered},
	{name: "strict rp_filter, and the routes lead to the client elsewhere", from: "customer", to: "192.0.2.10:30010",
		plant: "ip link add stray type veth peer name lost; ip link set lost up; ip link set stray up; ip route add 192.0.2.100/32 dev stray; cd /proc/sys/net/ipv4/conf; echo 0 > all/rp_filter; echo 1 > eth0/rp_filter",
		mend:  "ip link del stray; cd /proc/sys/net/ipv4/conf; echo 0 > eth0/rp_filter; echo 2 > all/rp_filter", tells: "explain", says: []string{"rp_filter of interface eth0 is 1 (strict), and the node reaches it by stray"}},
	{name: "the routes lead to the client elsewhere", from: "customer", to: "192.0.2.10:30010",
		plant: "ip link add stray type veth peer name lost; ip link set lost up; ip link set stray up; ip route add 192.0.2.100/32 dev stray",
		mend:  "ip link del stray", tells: "explain", says: []string{"nobody answers ARP for 192.0.2.100 on interface stray", "it answers on eth0"}},
	{name: "a rule by source selects another table", plant: "ip rule add from 10.244.1.13 to 10.244.2.0/24 lookup 77; ip route add blackhole default table 77",
		mend: "ip rule del from 10.244.1.13 to 10.244.2.0/24 lookup 77; ip route flush table 77", tells: "explain", says: []string{"table 77"}, modes: answered},
	{name: "a rule by interface selects another table", plant: "ip rule add iif veth-shopper to 10.244.2.0/24 lookup 77; ip route add unreachable default table 77",
		mend: "ip rule del iif veth-shopper to 10.244.2.0/24 lookup 77; ip route flush table 77", tells: "explain", says: []string{"table 77"}, modes: answered},
	{name: "a rule by mark selects another table", from: "customer", to: "192.0.2.10:30011",
		plant: "ip rule add fwmark 0x4000/0x4000 to 10.244.1.0/24 lookup 77; ip route add prohibit default table 77",
		mend:  "ip rule del fwmark 0x4000/0x4000 to 10.244.1.0/24 lookup 77; ip route flush table 77", tells: "explain", says: []string{"table 77"}, modes: answered},
	{name: "a rule takes the replies", plant: "ip rule add iif eth0 to 10.244.1.13 lookup 77; ip route add blackhole default table 77",
		mend: "ip rule del iif eth0 to 10.244.1.13 lookup 77; ip route flush table 77", tells: "explain", says: []string{"table 77"}, modes: answered},
	{name: "the route to the endpoint is a black hole", plant: "ip route add blackhole 10.244.2.11/32", mend: "ip route del blackhole 10.244.2.11/32",
		tells: "doctor explain", says: []string{"10.244.2.11", "blackhole"}},
	{name: "the node of the endpoint is dead", begin: func(t *testing.T, c *troubled) func() {
		down := func(state string) {
			kit.Must(t, c.Other.Do(func() error { return exec.Command("ip", "link", "set", "eth0", state).Run() }))
		}
		down("down")
		return func() {
			down("up")
			kit.Must(t, c.Other.Do(func() error {
				return exec.Command("sh", "-c", "ip route replace 10.244.1.0/24 via 192.0.2.10; ip route replace default via 192.0.2.10").Run()
			}))
		}
	}, says: []string{"192.0.2.11"}, tells: "probe"},
	{name: "the interface of the endpoint is down", to: nearIP, plant: "ip link set veth-web-1 down", mend: "ip link set veth-web-1 up; ip route replace 10.244.1.11 dev veth-web-1; ip addr replace fd00:10:244:1::1/128 dev veth-web-1 nodad; ip route replace fd00:10:244:1::11 dev veth-web-1",
		tells: "doctor explain", says: []string{"10.244.1.11"}},
	{name: "nothing listens at the endpoint", to: "10.96.0.12:80", begin: func(t *testing.T, c *troubled) func() {
		return c.withApp(t, app{name: "deaf", number: 12, plain: true}.on(c.Host("web-2")), "8080", "8081")
	}, tells: "probe", says: []string{"10.244.1.12:8081", "refused"}},
	{name: "the endpoint does not answer", to: nearIP, begin: func(t *testing.T, c *troubled) func() {
		nft(t, c.Host("web-1"), "table inet silent { chain in { type filter hook input priority 0; tcp dport 8080 drop; }; }\n")
		return func() { nft(t, c.Host("web-1"), "delete table inet silent\n") }
	}, tells: "probe", says: []string{"10.244.1.11:8080"}},
	{name: "a reply is dropped", plant: "nft 'table inet other { chain back { type filter hook forward priority 0; ip saddr 10.244.2.11 tcp sport 8080 drop; }; }'",
		mend: "nft delete table inet other", tells: "doctor explain", says: []string{"chain back of table inet other"}, modes: answered},
	{name: "a policy drops what is forwarded", plant: "nft 'table inet corp { chain through { type filter hook forward priority 0; policy drop; }; }'",
		mend: "nft delete table inet corp", tells: "doctor explain", says: []string{"policy", "table inet corp"}, modes: answered},
	{name: "a rule of iptables drops it", plant: "iptables-nft -I FORWARD -d 10.244.2.11 -j DROP", mend: "iptables-nft -D FORWARD -d 10.244.2.11 -j DROP",
		tells: "doctor explain", says: []string{"chain FORWARD of table", "drops packets to 10.244.2.11:8080"}, modes: forwarded},
	{name: "a program drops it before connection tracking", plant: "nft 'table inet early { chain pre { type filter hook prerouting priority -400; ip saddr 10.244.1.13 ip daddr 10.96.0.0/16 drop; }; }'",
		mend: "nft delete table inet early", tells: "explain", says: []string{"chain pre of table inet early"}},
	{name: "a netdev chain drops it", plant: "nft 'table netdev early { chain in { type filter hook ingress device veth-shopper priority 0; ip daddr 10.96.0.0/16 drop; }; }'",
		mend: "nft delete table netdev early", tells: "probe", says: []string{"netdev early"}},
	{name: "another program translates it first", plant: "nft 'table inet other { chain nat { type nat hook prerouting priority -110; ip daddr 10.96.0.10 tcp dport 80 dnat ip to 192.0.2.77:1; }; }'",
		mend: "nft delete table inet other", tells: "doctor explain", says: []string{"chain nat of table inet other"}},
	{name: "an IPsec policy blocks it", plant: "for d in fwd out; do ip xfrm policy add dir $d src 0.0.0.0/0 dst 10.244.2.11/32 action block; done", mend: "ip xfrm policy flush",
		tells: "doctor explain", says: []string{"IPsec policy from 0.0.0.0/0 to 10.244.2.11/32"}},
	{name: "a queueing discipline drops it", plant: "tc qdisc add dev eth0 root tbf rate 8bit burst 20 limit 20", mend: "tc qdisc del dev eth0 root",
		tells: "probe", says: []string{"queueing discipline tbf of interface eth0"}},
	{name: "the routes have a black hole for the client", plant: "ip route replace blackhole 10.244.1.13/32", mend: "ip route replace 10.244.1.13/32 dev veth-shopper",
		tells: "explain", says: []string{"no route for answers of", "to 10.244.1.13: blackhole"}},
	{name: "the node has lost its address", from: "customer", to: "192.0.2.10:30010", plant: "ip addr del 192.0.2.10/24 dev eth0; ip addr add 192.0.2.12/24 dev eth0; ip route replace 10.244.2.0/24 via 192.0.2.11; ip route replace default via 192.0.2.1",
		mend: "ip addr del 192.0.2.12/24 dev eth0; ip addr add 192.0.2.10/24 dev eth0; ip route replace 10.244.2.0/24 via 192.0.2.11; ip route replace default via 192.0.2.1", tells: "doctor explain", says: []string{"no interface of this node has the address 192.0.2.10"}},
	{name: "no address answers the NodePort", from: "customer", to: "192.0.2.10:30010", begin: func(t *testing.T, c *troubled) func() {
		return c.restarted(t, "--nodeport-addresses=10.9.0.0/16")
	}, tells: "doctor", says: []string{"10.9.0.0/16"}},
	{name: "the slice has the port by another name", to: "10.96.0.13:80", begin: func(t *testing.T, c *troubled) func() {
		return c.withApp(t, app{name: "named", number: 13, plain: true}.on(c.Host("web-1")), "- name: lines\n  port: 8080", "- name: http\n  port: 8080")
	}, tells: "status doctor", says: []string{"none named lines"}},
	{name: "the slice is of no Service", to: "10.96.0.13:80", begin: func(t *testing.T, c *troubled) func() {
		return c.withApp(t, app{name: "named", number: 13, plain: true}.on(c.Host("web-1")), "kubernetes.io/service-name: named", "kubernetes.io/service-name: nmaed")
	}, tells: "doctor", says: []string{"nmaed"}},
	{name: "the proxy is dead, and a rule is gone", begin: func(t *testing.T, c *troubled) func() {
		c.proxy.Kill()
		kit.Until(t, "the proxy to be dead", c.proxy.Ended)
		c.sh(t, c.mode.shown().altered)
		return func() { c.proxy = c.launch(c.test); c.awaitProgrammed(t) }
	}, tells: "status doctor explain", says: []string{"no proxy runs"}, from: "node"},
	{name: "the proxy hangs, and a rule is gone", begin: func(t *testing.T, c *troubled) func() {
		kit.Must(t, netlab.Pause(c.proxy.Pid()))
		c.sh(t, c.mode.shown().altered)
		return func() { kit.Must(t, syscall.Kill(c.proxy.Pid(), syscall.SIGCONT)) }
	}, tells: "status doctor explain", says: []string{"does not answer"}, from: "node"},
}

// withApp adds an app, with a text of its manifest replaced.
func (c *cluster) withApp(t *testing.T, a app, old, next string) (remove func()) {
	t.Helper()
	text := strings.ReplaceAll(string(a.yaml(t)), old, next)
	kit.Need(t, text != string(a.yaml(t)), "no %q in\n%s", old, text)
	c.write(t, a.name+".yaml", []byte(text))
	return func() { c.remove(t, a.name+".yaml") }
}

// inhabit runs a process on a host, by which a probe finds its network.
func (c *cluster) inhabit(t *testing.T, host string) {
	t.Helper()
	sleep := exec.Command("sleep", "inf")
	kit.Must(t, c.Host(host).Start(sleep))
	t.Cleanup(func() { _ = sleep.Process.Kill(); _ = sleep.Wait() })
}

// restarted restarts the proxy with one more flag.
func (c *troubled) restarted(t *testing.T, flag string) (mend func()) {
	t.Helper()
	before := c.mode.flags
	again := func(flags []string) {
		c.proxy.Stop(t)
		c.mode.flags = flags
		c.proxy = c.launch(c.test)
		c.proxy.AwaitLog(t, `"Programmed"`, "IPv4")
	}
	again(append(slices.Clip(before), flag))
	return func() { again(before) }
}

// client returns the host that x is about, and its name for explain.
func (c *troubled) client(x trouble) (h *netlab.Host, name string) {
	switch x.from {
	case "node":
		return c.Node, "node"
	case "":
		h = c.Host("shopper")
	default:
		h = c.Host(x.from)
	}
	return h, h.IPv4.String()
}

// connects dials as x's client.
func (c *troubled) connects(t *testing.T, x trouble) bool {
	t.Helper()
	h, _ := c.client(x)
	a, err := h.Ask(t.Context(), netlab.Query{Proto: "tcp", To: x.target(), Timeout: time.Second})
	return err == nil && a.Outcome == netlab.Answered
}

func (x trouble) target() netip.AddrPort {
	if x.to == "" {
		return netip.MustParseAddrPort(webIP)
	}
	return netip.MustParseAddrPort(x.to)
}

// ask asks all commands about x's connection. A dial is asked for where only it can know.
func (c *troubled) ask(t *testing.T, x trouble) {
	t.Helper()
	_, name := c.client(x)
	explain := []string{"explain", name, x.target().String()}
	for i, args := range [len(columns)][]string{{"status"}, {"doctor"}, explain, append(explain, "--probe")} {
		c.codes[i], c.said[i] = 0, ""
		if columns[i] == "probe" && !x.tell("probe") {
			continue
		}
		cmd := c.command()
		if args[0] == "doctor" {
			cmd = c.command(append([]string{"--manifests=" + c.dir}, c.mode.flags...)...)
			args = append(args, cmd.Args[1:]...)
		}
		cmd.Args = append([]string{kubeProxy.Path}, args...)
		c.codes[i], c.said[i] = c.exit(t, cmd)
	}
}

func (x trouble) tell(command string) bool { return slices.Contains(strings.Fields(x.tells), command) }

// named returns whether all commands that tell of x do not end with 0, and the cause is said.
func (c *troubled) named(x trouble) bool {
	said := false
	for i, out := range c.said {
		if x.tell(columns[i]) && c.codes[i] == 0 {
			return false
		}
		text := strings.Join(strings.Fields(out), " ")
		lacks := func(w string) bool { return !strings.Contains(text, w) }
		said = said || c.codes[i] > 0 && !slices.ContainsFunc(x.says, lacks)
	}
	return said
}

func (c *troubled) String() string {
	var s strings.Builder
	for i, name := range columns {
		fmt.Fprintf(&s, "%s: exit %d\n%s\n", name, c.codes[i], c.said[i])
	}
	return s.String()
}

// TestTroubles plants one fault after the other. Each stops a connection, and one of the
// commands names its cause. Once it is mended, none finds anything.
func TestTroubles(t *testing.T) {
	t.Parallel()
	rows := [][]string{{"fault", "found by", "modes"}}
	for _, x := range troubles {
		by := strings.ReplaceAll(strings.ReplaceAll(x.tells, " ", ", "), "probe", "explain --probe")
		rows = append(rows, []string{x.name, by, cmp.Or(strings.ReplaceAll(x.modes, " ", ", "), "all")})
	}
	table := kit.Table(rows)
	kit.Check(t, strings.Contains(string(kit.ReadFile(t, insightPage)), table), "%s lacks\n%s", insightPage, table)
	troublesIn(t, defaultMode())
}

func TestIPTablesTroubles(t *testing.T)  { eachVariant(t, troublesIn) }
func TestUserspaceTroubles(t *testing.T) { withUserspace(t, troublesIn) }
func TestIPVSTroubles(t *testing.T)      { withIPVS(t, troublesIn) }

func troublesIn(t *testing.T, m mode) {
	m.plain = true
	c := &troubled{cluster: newCluster(t, m), test: t}
	c.inhabit(t, "shopper")
	c.proxy = c.start(t, app{name: "web", number: 10, plain: true}.on(c.Host("web-3")), app{name: "near", number: 11, plain: true}.on(c.Host("web-1")))
	for _, x := range troubles {
		if x.modes == "" || slices.Contains(strings.Fields(x.modes), m.proxyMode()) {
			t.Run(x.name, func(t *testing.T) { c.suffers(t, x) })
		}
	}
}

// suffers plants x, and mends it.
func (c *troubled) suffers(t *testing.T, x trouble) {
	mend := func() { c.sh(t, x.mend+"\n") }
	if x.begin != nil {
		mend = x.begin(t, c)
	} else {
		c.connects(t, x) // so that the node knows the client
		c.sh(t, x.plant+"\n")
	}
	c.sh(t, "conntrack -F 2>/dev/null\n")
	kit.Check(t, kit.Soon(func() bool { return !c.connects(t, x) }), "the client connects in spite of it")
	kit.Check(t, kit.Soon(func() bool { c.ask(t, x); return c.named(x) }), "no command says %q:\n%s", x.says, c)
	if testing.Verbose() {
		fmt.Println(c)
	}
	mend()
	c.sh(t, "conntrack -F 2>/dev/null\n")
	whole := trouble{from: x.from}
	if x.to == nearIP {
		whole.to = x.to
	}
	kit.Check(t, kit.Soon(func() bool { return c.connects(t, whole) }),
		"the client does not connect after it was mended")
	whatIsFound := func() [len(columns)]int { c.ask(t, whole); return c.codes }
	// Clients go on: what a relay began before may fail after the first of them got through.
	kit.Check(t, kit.Soon(func() bool { return c.connects(t, whole) && whatIsFound() == [len(columns)]int{} }),
		"something is found after it was mended:\n%s", c)
}
