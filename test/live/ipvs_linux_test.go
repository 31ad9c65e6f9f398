// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipvs"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// needIPVS skips t if the kernel lacks IPVS.
func needIPVS(t *testing.T) {
	t.Helper()
	if !ipvs.Installed() {
		t.Skip("the kernel has no IPVS; make vm runs this on one that has")
	}
}

// withIPVS runs test in mode ipvs.
func withIPVS(t *testing.T, test func(*testing.T, mode)) {
	t.Helper()
	needIPVS(t)
	t.Parallel()
	m := defaultMode()
	m.flags = append(m.flags, "--proxy-mode=ipvs")
	m.ipvs = true
	test(t, m)
}

// withoutIPVS runs test in each mode but ipvs.
func withoutIPVS(t *testing.T, test func(*testing.T, mode)) {
	t.Helper()
	t.Parallel()
	for name, m := range switchableModes() {
		if m.ipvs {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, m)
		})
	}
}

// eachIPVSVariant runs test in mode ipvs with each variant of iptables, one at a time:
// the longer a check of the kernel takes, the more rarely the proxy makes one.
func eachIPVSVariant(t *testing.T, test func(t *testing.T, m mode, variant string)) {
	t.Helper()
	needIPVS(t)
	for _, v := range variants(t) {
		t.Run(v, func(t *testing.T) { test(t, switchableModes()["ipvs"], v) })
	}
}

// useVariant makes a variant of iptables the node's, like a kubelet that uses it.
func (c *cluster) useVariant(t *testing.T, variant string) {
	t.Helper()
	c.restore(t, service.IPv4, variant, "*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n")
	c.setMode(t, c.mode)
	c.commands = program.IPTables(t, variant)
}

func TestIPVSEveryCell(t *testing.T) { withIPVS(t, everyCell) }
func TestIPVSModes(t *testing.T)     { withIPVS(t, everyMode) }

func TestIPVSBridge(t *testing.T) {
	withIPVS(t, func(t *testing.T, m mode) { onBridge(t, m.withoutPodDetection()) })
}

// TestIPVSLongConnections checks that long connections outlive restarts of the proxy, an
// endpoint that leaves and comes back, and a restart in between.
func TestIPVSLongConnections(t *testing.T) {
	withIPVS(t, func(t *testing.T, m mode) {
		c := newCluster(t, m)
		all := app{name: "web", number: 10}.on(c.webs()...)
		less := app{name: "web", number: 10}.on(c.webs()[1:]...)
		p := c.start(t, all)
		lines := c.converse(t, "tcp", all, 2)
		calls := c.cells([]*netlab.Host{c.Host("shopper"), c.Host("customer")}, all)
		for _, end := range []func(){func() { p.Stop(t) }, func() { p.Kill() }} {
			end()
			lines.checkSameServer(t)
			p = c.launch(t)
			p.AwaitLogs(t, `"Programmed"`, "FAMILY", "changed=false")
			lines.checkSameServer(t)
		}
		c.check(t, c.awaitProgrammed(t, less), calls)
		lines.checkSameServer(t)
		p.Stop(t)
		p = c.launch(t)
		p.AwaitLogs(t, `"Programmed"`, "FAMILY")
		c.check(t, c.awaitProgrammed(t), calls)
		lines.checkSameServer(t)
		c.check(t, c.awaitProgrammed(t, all), calls)
		lines.checkSameServer(t)
	})
}

// TestIPVSHostPorts checks that a program of the node that listens on all addresses is
// not reachable through those of Services.
func TestIPVSHostPorts(t *testing.T) {
	withIPVS(t, func(t *testing.T, m mode) {
		c := newCluster(t, m)
		const port = 9999
		var listener net.Listener
		err := c.Node.Do(func() (err error) {
			listener, err = net.Listen("tcp", ":9999")
			return err
		})
		kit.Must(t, err)
		t.Cleanup(func() { listener.Close() })
		web := app{name: "web", number: 10}.on(c.Host("web-1"))
		c.start(t, web)
		for _, x := range c.cells([]*netlab.Host{c.Host("shopper"), c.Host("customer"), c.Node}, web) {
			if x.ToNode || x.Proto != service.TCP {
				continue
			}
			x.To = netip.AddrPortFrom(x.To.Addr(), port)
			if a, err := x.From.Ask(t.Context(), x.Query()); err != nil || a.Outcome != netlab.Refused {
				t.Errorf("%s: %s %s, %v; want refused", x, a.Outcome, a.Backend, err)
			}
		}
	})
}

// ipvsTamperings are changes of others to the state of mode ipvs for web.
var ipvsTamperings = []string{
	"ipvsadm -D -t 10.96.0.10:80",
	"ipvsadm -C",
	"ipvsadm -a -t 10.96.0.10:80 -r 192.0.2.99:80 -m",
	"ip route del table local local 10.96.0.10 dev kube-ipvs0",
	"ip link delete kube-ipvs0",
	"ipset del KUBE-VS-VIRTUAL-IPS 10.96.0.10",
	"ipset add KUBE-VS-DROPPED 10.96.0.10,tcp:80",
	"ipset flush KUBE-VS-CLUSTER-IPS",
	"ipset del KUBE-VS-VIRTUAL-SERVERS 10.96.0.10,udp:80",
	"ipset flush KUBE-VS-VIRTUAL-SERVERS",
	"ipset flush KUBE-VS-NODE-IPS",
	"ip link set kube-ipvs0 down",
	"ipvsadm -E -t 10.96.0.10:80 -s wlc",
	"ipvsadm -E -u 10.96.0.10:80 -s rr -p 300 -M 255.255.255.0",
}

// TestIPVSDrift checks that changes to virtual servers, addresses, ipsets and rules are
// repaired long before the sync period is over, logged, counted by the metrics, and shown
// by status. A set that rules refer to cannot be removed.
func TestIPVSDrift(t *testing.T) {
	eachIPVSVariant(t, func(t *testing.T, m mode, variant string) {
		m.flags = append(m.flags, "--ipvs-sync-period=1h")
		c := newCluster(t, m)
		c.useVariant(t, variant)
		web := app{name: "web", number: 10}.on(c.webs()...)
		p := c.start(t, web)
		want := c.want(t)
		c.sh(t, "if ipset destroy KUBE-VS-VIRTUAL-SERVERS; then exit 1; fi\n")
		for _, deed := range ipvsTamperings {
			c.tamperIPVSAndAwaitRepair(t, p, deed)
			c.awaitSnapshot(t, want)
		}
		c.check(t, want, c.cells([]*netlab.Host{c.Host("shopper"), c.Host("customer")}, web))
		out, err := program.Run(t, c.Node, exec.Command(kubeProxy.Path, "status", "-o=json"))
		var d struct {
			Health struct {
				Status map[string]struct{ DriftFound, DriftRepaired int }
			}
		}
		if err == nil {
			err = json.Unmarshal([]byte(out), &d)
		}
		n, _ := p.Metric(t, driftMetric, "ip_family", "IPv4")
		s := d.Health.Status["IPv4"]
		all := s.DriftRepaired + d.Health.Status["IPv6"].DriftRepaired
		if err != nil || all < len(ipvsTamperings) || s.DriftFound < s.DriftRepaired || s.DriftRepaired != int(n) {
			t.Errorf("status reports %+v, %v; the metric is %v, in\n%s", s, err, n, out)
		}
	})
}

const driftMetric = "kubeproxy_drift_repaired_total"

// tamperIPVSAndAwaitRepair makes a change, and requires that p repairs and reports it. An
// interface belongs to both families, so the first one that checks repairs it.
func (c *cluster) tamperIPVSAndAwaitRepair(t *testing.T, p *program.Proxy, deed string) {
	t.Helper()
	repaired := func() (n float64) {
		for _, f := range service.Families {
			v, _ := p.Metric(t, driftMetric, "ip_family", f.String())
			n += v
		}
		return n
	}
	reported, before := p.Log.Count("Others had altered our rules"), repaired()
	c.sh(t, deed+"\n")
	kit.Until(t, deed+" is in "+driftMetric, func() bool { return repaired() > before })
	kit.Until(t, deed+" is in the log", func() bool { return p.Log.Count("Others had altered our rules") > reported })
}

// TestIPVSSharedMark checks the condition that another program uses the bit of the mark for
// masquerading, while a rule of policy routing says so, as that of wg-quick.
func TestIPVSSharedMark(t *testing.T) {
	withIPVS(t, func(t *testing.T, m mode) {
		m.flags = append(m.flags, "--ipvs-sync-period=1s")
		c := newCluster(t, m)
		p := c.start(t, app{name: "web", number: 10, plain: true}.on(c.Host("web-1")))
		shows := func() bool {
			out, _ := program.Run(t, c.Node, exec.Command(kubeProxy.Path, "status")) // it fails while there are conditions
			return strings.Contains(string(p.Fetch(t, program.HealthAddr, "/healthz").Body), "shared-mark-IPv4") && strings.Contains(string(out), "fwmark 0xca6c")
		}
		kit.Check(t, !shows(), "the condition is there before the rule")
		c.shell(t, "ip rule add not fwmark 51820 table 51820")
		kit.Until(t, "the condition", shows)
		c.shell(t, "ip rule del not fwmark 51820 table 51820")
		kit.Until(t, "the condition to go", func() bool { return !shows() })
	})
}

// TestIPVSRender checks that ip, ipvsadm, ipset and iptables accept the output of render,
// print the same state, and that the proxy programs the same.
func TestIPVSRender(t *testing.T) {
	eachIPVSVariant(t, func(t *testing.T, m mode, variant string) {
		m.flags, m.scheduler = append(m.flags, "--ipvs-scheduler=mh"), "mh"
		// The Node does not contain the node's other addresses, so render does not know
		// them.
		m.flags = append(m.flags, "--nodeport-addresses=192.0.2.10/32,2001:db8:2::10/128")
		m.trackOptions.NodePorts = prefixes("192.0.2.10/32", "2001:db8:2::10/128")
		c := newCluster(t, m)
		c.commands = program.IPTables(t, variant)
		c.save(t, c.matrix()...)
		args := append([]string{"render", "--manifests=" + c.dir, "--hostname-override=node-a"}, m.flags...)
		out, err := exec.Command(kubeProxy.Path, args...).Output()
		kit.Must(t, err)
		rendered := c.pipe(t, string(out))
		routes := c.routesIPVS(t)
		kit.Same(t, "the commands have something else than they were given (-given +have)", rendered, c.savedState(t))
		c.sh(t, "ipvsadm -C\n")
		c.cleanUp(t, "", 0)
		for command, lines := range c.savedState(t) {
			kit.Check(t, len(lines) == 0, "after a cleanup, %s still has\n%s", command, strings.Join(lines, "\n"))
		}
		c.useVariant(t, variant)
		c.start(t)
		kit.Same(t, "the proxy makes something else (-rendered +made)", rendered, c.savedState(t))
		kit.Same(t, "the proxy makes other routes (-rendered +made)", routes, c.routesIPVS(t))
	})
}

// saveCommands print the state of a command in the form that it accepts.
var saveCommands = map[string]string{
	"grep ^- | ipvsadm -R": "ipvsadm -S -n",
	"ipset restore":        "ipset save",
	"iptables-restore":     "iptables-save",
	"ip6tables-restore":    "ip6tables-save",
}

// pipe passes the parts of text to their commands, and returns the lines of those that
// can print them again, as savedState does.
func (c *cluster) pipe(t *testing.T, text string) map[string][]string {
	t.Helper()
	given, routes := map[string]string{}, 0
	for part := range strings.SplitSeq(text, "# for ") {
		command, input, _ := strings.Cut(part, "\n")
		if command == "" {
			continue
		}
		c.sh(t, "cat <<'INPUT' | "+command+"\n"+input+"INPUT\n")
		if strings.HasPrefix(command, "ip -") {
			routes++
			continue
		}
		kit.Check(t, saveCommands[command] != "", "there is a part for %q", command)
		given[command] += input
	}
	if len(given) != len(saveCommands) || routes != len(service.Families) {
		t.Errorf("there are parts for %d commands and %d times routes, want %d and %d:\n%s", len(given), routes, len(saveCommands), len(service.Families), text)
	}
	all := map[string][]string{}
	for command, input := range given {
		all[command] = linesIPVS(input)
	}
	return all
}

// savedState is what commands print of virtual servers, ipsets and rules.
func (c *cluster) savedState(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for command, saver := range saveCommands {
		all[command] = linesIPVS(c.sh(t, saver+"\n"))
	}
	return all
}

// defaultsInListing matches defaults that commands add.
var defaultsInListing = regexp.MustCompile(` (bucketsize|initval) \S+|\[\d+:\d+\]`)

// podGatewayEntries are addresses of the node towards its pods. The Node does not contain
// them, so render does not know them.
var podGatewayEntries = []string{"add KUBE-VS-NODE-IPS 10.244.1.1", "add KUBE-VS6-NODE-IPS fd00:10:244:1::1"}

// linesIPVS returns the lines of mode ipvs in text, in an order that does not depend on
// their program: rules of a chain keep theirs.
func linesIPVS(text string) []string {
	type line struct{ chain, text string }
	var lines []line
	table := ""
	for s := range strings.Lines(text) {
		s = strings.TrimSpace(defaultsInListing.ReplaceAllString(s, ""))
		name, isTable := strings.CutPrefix(s, "*")
		fields := strings.Fields(s)
		switch {
		case isTable:
			table = name
		case table != "" && strings.Contains(s, "KUBE-V"):
			chain, _ := strings.CutPrefix(fields[0], ":")
			if chain == "-A" {
				chain = "rule of " + fields[1]
			}
			lines = append(lines, line{table + " " + chain, table + " " + s})
		case table == "" && len(fields) > 0 && fields[0] != "#" && !slices.Contains(podGatewayEntries, s):
			lines = append(lines, line{s, s})
		}
	}
	slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(a.chain, b.chain) })
	var all []string
	for _, l := range lines {
		all = append(all, l.text)
	}
	return all
}

// routesIPVS returns the routes of mode ipvs.
func (c *cluster) routesIPVS(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, ip := range []string{"ip", "ip -6"} {
		for route := range strings.Lines(c.sh(t, ip+" route show table local proto 107\n")) {
			all = append(all, strings.TrimSpace(route))
		}
	}
	slices.Sort(all)
	return all
}

// emulatedPause is the pause of clients in a machine with an emulated processor.
const emulatedPause = 100 * time.Millisecond

// TestIPVSSwitch switches between ipvs and every other mode that needs no process. No
// connection may be lost. IPVS itself loses some SCTP connections, independent of the
// switch.
func TestIPVSSwitch(t *testing.T) {
	needIPVS(t)
	t.Parallel()
	newCluster(t, switchableModes()["ipvs"]).switchThrough(t, []string{"ipvs", "nftables", "ipvs", "iptables-legacy", "ipvs", "iptables-nft", "ipvs"}, emulatedPause, service.SCTP)
}

// TestIPVSUserspaceSwitch does the same with mode userspace.
func TestIPVSUserspaceSwitch(t *testing.T) {
	needIPVS(t)
	t.Parallel()
	switchThroughUserspace(t, []string{"ipvs", "userspace-nft", "ipvs", "userspace-legacy"}, emulatedPause)
}

// TestIPVSRulesEnd checks that what mode ipvs refused and dropped is served after a
// switch, by Services or by programs of the node, although virtual servers stay for their
// open connections.
func TestIPVSRulesEnd(t *testing.T) {
	needIPVS(t)
	t.Parallel()
	c := newCluster(t, switchableModes()["ipvs"])
	web := app{name: "web", number: 10}.on(c.webs()...)
	empty, gone := app{name: "empty", number: 11}, app{name: "gone", number: 12}
	away := app{name: "away", number: 13, internal: "Local", external: "Local"}.on(c.Host("web-3"))
	fenced := app{name: "fenced", number: 14, ranges: []string{"192.0.2.77/32", "2001:db8:2::77/128"}}.on(c.webs()...)
	p := c.start(t, web, empty, gone, away, fenced)
	c.awaitProgrammed(t)
	lines := c.converse(t, "tcp", web, 1)
	p.Stop(t)
	c.setMode(t, switchableModes()["nftables"])
	p = c.launch(t)
	p.AwaitLogs(t, "takes no new connections from now on", "FAMILY")
	fenced.ranges = nil
	c.save(t, web, empty.on(c.webs()...), away.on(c.Host("web-1")), fenced)
	c.remove(t, "gone.yaml")
	want := c.awaitProgrammed(t)
	c.check(t, want, c.cells(c.clientHosts(), web, empty, away, fenced))
	_, err := c.Node.Echo("", gone.nodePort())
	kit.Must(t, err)
	for _, f := range service.Families {
		for _, x := range c.dials([]*netlab.Host{c.Host("customer")}, gone, service.NodePort, f) {
			if a, err := x.From.Ask(t.Context(), x.Query()); err != nil || a.Backend != c.Node.Name {
				t.Errorf("%s, which a program of the node serves now: %s %s, %v", x, a.Outcome, a.Backend, err)
			}
		}
	}
	lines.checkSameServer(t)
}

// TestIPVSSwitchByReload switches to mode ipvs and back by a changed configuration file.
func TestIPVSSwitchByReload(t *testing.T) {
	needIPVS(t)
	t.Parallel()
	v, path := newVolume(t, "mode: nftables\n")
	to := func(name string) mode {
		m := switchableModes()[name]
		m.flags = append(defaultMode().flags, "--config="+path)
		return m
	}
	c := newCluster(t, to("nftables"))
	web := app{name: "web", number: 10}.on(c.webs()...)
	p := c.start(t, web)
	loads, lines := c.loadsAt(t, emulatedPause, web), c.converseTo(t, "tcp", web)
	for i, name := range []string{"ipvs", "iptables-nft", "ipvs", "nftables"} {
		text := map[string]string{"ipvs": "mode: ipvs\n", "nftables": "mode: nftables\n", "iptables-nft": "mode: iptables\niptables: {localhostNodePorts: false}\n"}[name]
		v.mount(t, fmt.Sprintf("..next-%d", i), text)
		err := p.Wait(t)
		kit.Need(t, err == nil, "the proxy ended with %v, want exit status 0", err)
		said := "Removed what an earlier service proxy left"
		if c.mode.ipvs {
			said = "takes no new connections from now on"
		}
		c.setMode(t, to(name))
		p = c.launch(t)
		p.AwaitLogs(t, said, "FAMILY")
		c.awaitProgrammed(t)
		lines.checkSameServer(t)
		lines = append(lines, c.converseTo(t, "tcp", web)...)
	}
	lossless(t, loads, service.SCTP)
}

func wantWords(t *testing.T, said string, words ...string) {
	t.Helper()
	for _, word := range words {
		kit.Check(t, strings.Contains(said, word), "no word of %q:\n%s", word, said)
	}
}

// TestIPVSCleanup checks that a cleanup removes the state of every mode, and leaves
// foreign virtual servers, addresses, ipsets and rules unchanged. It names what it cannot
// remove, and continues.
func TestIPVSCleanup(t *testing.T) {
	needIPVS(t)
	t.Parallel()
	c := newCluster(t, switchableModes()["ipvs"])
	c.installForeignRules(t)
	c.sh(t, foreignIPVS)
	theirs := c.listIPVS(t)
	c.installLeftovers(t)
	const remove = "clean up virtual servers of IPVS for %s: remove virtual servers of IPVS for %[1]s: the command %s-restore is missing"
	wantWords(t, c.cleanUp(t, t.TempDir(), 1),
		fmt.Sprintf(remove, service.IPv4, "iptables-nft"), fmt.Sprintf(remove, service.IPv6, "ip6tables-nft"),
		"clean up iptables-nft: the command iptables-nft-restore is missing", "clean up ip6tables-legacy: the command ip6tables-legacy-restore is missing",
	)
	wantWords(t, c.cleanUp(t, "", 0),
		`"Cleaned up" place="virtual servers of IPVS for IPv4" removed="`, `"Cleaned up" place="virtual servers of IPVS for IPv6" removed="`,
	)
	kit.Same(t, "after a cleanup (-what others have +all)", theirs, c.listIPVS(t))
	c.checkOnlyMode(t, "no mode")
	again := c.cleanUp(t, "", 0)
	kit.Check(t, !strings.Contains(again, "Cleaned up"), "a second cleanup found something:\n%s", again)
}

// sh runs a shell script on the node.
func (c *cluster) sh(t *testing.T, text string) string {
	t.Helper()
	cmd := program.With(exec.Command("bash", "-e", "-o", "pipefail"), c.commands)
	cmd.Stdin = strings.NewReader(text)
	out, err := program.Run(t, c.Node, cmd)
	kit.Need(t, err == nil, "%v\n%s\nof\n%s", err, out, text)
	return out
}

// upstreamIPVS is a script that installs the state of kube-proxy in mode ipvs for a: an
// interface with addresses, virtual servers on them and on the node's addresses for
// NodePorts, ipsets, and iptables rules that use them. See pkg/proxy/ipvs in
// kubernetes/kubernetes.
func upstreamIPVS(f service.Family, variant string, a app) string {
	version, family, prefix, tables := "-4", "inet", "KUBE-", "iptables"
	if f == service.IPv6 {
		version, family, prefix, tables = "-6", "inet6", "KUBE-6-", "ip6tables"
	}
	var b strings.Builder
	cluster := a.address(service.ClusterIP, f)
	fmt.Fprintf(&b, "ip link show kube-ipvs0 >/dev/null 2>&1 || ip link add kube-ipvs0 type dummy\n")
	fmt.Fprintf(&b, "ip %s addr add %s/%d dev kube-ipvs0\n", version, cluster, cluster.BitLen())
	for _, set := range []string{"LOOP-BACK hash:ip,port,ip", "CLUSTER-IP hash:ip,port", "LOAD-BALANCER-SOURCE-CIDR hash:ip,port,net", "NODE-PORT-LOCAL-SCTP-HASH hash:ip,port"} {
		name, kind, _ := strings.Cut(prefix+set, " ")
		fmt.Fprintf(&b, "ipset create %s %s family %s\n", name[:min(31, len(name))], kind, family)
	}
	node := [2]string{"192.0.2.10", "2001:db8:2::10"}[f]
	for _, proto := range []string{"tcp", "udp"} {
		ports := prefix + "NODE-PORT-" + strings.ToUpper(proto)
		fmt.Fprintf(&b, "ipset create %s bitmap:port range 0-65535\nipset add %s %d\n", ports, ports, a.nodePort())
		fmt.Fprintf(&b, "ipset add %sCLUSTER-IP %s,%s:80\n", prefix, cluster, proto)
		for _, at := range []string{netip.AddrPortFrom(cluster, 80).String(), netip.AddrPortFrom(netip.MustParseAddr(node), a.nodePort()).String()} {
			fmt.Fprintf(&b, "ipvsadm -A -%c %s -s rr\n", proto[0], at)
			for _, to := range a.backends(f) {
				fmt.Fprintf(&b, "ipvsadm -a -%c %s -r %s -m -w 1\n", proto[0], at, to)
			}
		}
	}
	fmt.Fprintf(&b, `%s-%s-restore --noflush %[4]s <<'END'
*nat
:KUBE-SERVICES - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-POSTROUTING - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-SERVICES -m set --match-set %[3]sCLUSTER-IP dst,dst -j KUBE-MARK-MASQ
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT
-A KUBE-NODE-PORT -p tcp -m set --match-set %[3]sNODE-PORT-TCP dst -j KUBE-MARK-MASQ
-A KUBE-NODE-PORT -p udp -m set --match-set %[3]sNODE-PORT-UDP dst -j KUBE-MARK-MASQ
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
COMMIT
END
`, tables, variant, prefix, program.AwaitLock)
	return b.String()
}

// foreignIPVS is IPVS state of others: a virtual server on an address of the node, one on
// an address of their own, some with names and ports like kube-proxy's, and ipsets.
const foreignIPVS = `ip link add dummy-mine type dummy
ip link set dummy-mine up
ip addr add 198.51.100.77/32 dev dummy-mine
ipvsadm -A -t 192.0.2.10:8443 -s wlc
ipvsadm -a -t 192.0.2.10:8443 -r 10.244.1.9:443 -m -w 7
ipvsadm -A -u 198.51.100.77:53 -s sh -p 60
ipvsadm -a -u 198.51.100.77:53 -r 10.244.1.9:53 -m -w 3
ipvsadm -A -f 77 -s rr
ipvsadm -A -t [2001:db8:2::10]:8443 -s rr
ipset create mine hash:ip
ipset add mine 192.0.2.3
ipset create KUBE-MINE hash:ip
ipset create KUBE-IPVS-IPS hash:net
iptables-legacy --wait=60 -A INPUT -m set --match-set mine src -j ACCEPT
`

// listIPVS lists virtual servers, ipsets and interfaces.
func (c *cluster) listIPVS(t *testing.T) string {
	t.Helper()
	text := c.sh(t, "ipvsadm -S -n\nipset save -sorted\nip -o addr show\n") + c.listAllRules(t)
	return regexp.MustCompile(`(?m) (initval|valid_lft) .*$| bucketsize \d+| hashsize \d+`).ReplaceAllString(text, "")
}

// TestIPVSFromUpstream switches a node from kube-proxy in mode ipvs to this proxy in each
// mode. Connections through virtual servers go on, and foreign state stays unchanged.
func TestIPVSFromUpstream(t *testing.T) {
	needIPVS(t)
	t.Parallel()
	for _, to := range []string{"nftables", "ipvs", "iptables-nft"} {
		t.Run(to, func(t *testing.T) { fromUpstreamIPVS(t, to) })
	}
}

func fromUpstreamIPVS(t *testing.T, to string) {
	c := newCluster(t, switchableModes()[to])
	c.installForeignRules(t)
	c.sh(t, "echo 1 >/proc/sys/net/ipv4/vs/conntrack\n"+foreignIPVS)
	theirs := c.listIPVS(t)
	web := app{name: "web", number: 10}.on(c.Host("web-1"), c.Host("web-3"))
	for _, f := range service.Families {
		c.sh(t, upstreamIPVS(f, "legacy", web))
	}
	c.save(t, web)
	lines := append(c.converseTo(t, "tcp", web), c.converseFrom(t, c.Node, "tcp", web)...) // the node's come from the ClusterIP
	load := c.Host("customer").Load(t.Context(), netlab.LoadConfig{
		Query: netlab.Query{Proto: "tcp", To: web.at(service.NodePort, service.IPv4)}, Pause: emulatedPause,
	})
	p := c.launch(t)
	for _, f := range service.Families {
		p.AwaitLog(t, "Found what an earlier service proxy left", `place="kube-proxy's IPVS for `+f.String(), "4 virtual servers, 1 addresses on kube-ipvs0, 6 ipsets")
	}
	want := c.awaitProgrammed(t)
	done := "takes no new connections from now on"
	if to == "ipvs" { // ours took them over
		done = "Removed what an earlier service proxy left"
	}
	for _, f := range service.Families {
		p.AwaitLog(t, done, `place="kube-proxy's IPVS for `+f.String())
	}
	c.check(t, want, only(service.TCP, c.cells(c.clientHosts()[:1], web)))
	lines.checkSameServer(t)
	r := load.Stop()
	kit.Check(t, r.Lost() <= 0, "load: %s", r)
	for _, o := range lines {
		o.conn.Close()
	}
	if to != "ipvs" { // connections are remembered for two minutes
		for _, f := range service.Families {
			c.awaitGone(t, p, ipvs.Upstream{Family: f})
		}
	}
	p.Stop(t)
	c.cleanUp(t, "", 0)
	kit.Same(t, "after a cleanup (-what others have +all)", theirs, c.listIPVS(t))
}

// awaitGone waits until a place is empty, for as long as IPVS keeps entries of closed
// connections.
func (c *cluster) awaitGone(t *testing.T, p *program.Proxy, place interface {
	finder
	String() string
}) {
	t.Helper()
	deadline := time.After(3 * time.Minute)
	look := time.NewTicker(time.Second) // more often costs an emulated processor too much
	defer look.Stop()
	for c.finds(t, place) != "" {
		select {
		case <-look.C:
		case <-deadline:
			t.Fatalf("%s still has %s", place.String(), c.finds(t, place))
		}
	}
	p.AwaitLog(t, "Removed what an earlier service proxy left", `place="`+place.String())
}
