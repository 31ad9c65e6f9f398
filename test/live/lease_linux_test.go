// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/common/health"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/nftables"
	"kubeproxy/platform/linux/proc"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// leaseAttack is the variable for which this program attacks the lease of its network
// namespace instead of running tests. Its value is one of the attacks below.
const leaseAttack = "KUBEPROXY_TEST_LEASE_ATTACK"

const (
	holdName   = "hold"  // and answer "yielded" to whoever asks
	askForIt   = "ask"   // with what the holder sent on another connection
	floodRoot  = "flood" // as root
	floodUsers = "users" // as another user
)

// attackingLease attacks the lease, if this program is to.
func attackingLease() {
	attack := os.Getenv(leaseAttack)
	if attack == "" {
		return
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	if err != nil || unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DEBUG, 1) == nil {
		fmt.Println("has CAP_NET_ADMIN", err)
		os.Exit(1)
	}
	switch attack {
	case holdName:
		holdLease()
	case askForIt:
		askForLease()
	case floodUsers:
		if err := syscall.Setresuid(65534, 65534, 65534); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fallthrough
	case floodRoot:
		floodLease()
	}
}

// holdLease has the name of the lease, sends proofs back and claims to have yielded.
func holdLease() {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: proc.LeaseName})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("begins")
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			continue
		}
		go func() {
			defer c.Close()
			_, _ = c.Write(append([]byte{2}, make([]byte, 32)...))
			forward(c, c)
			sayLease(c, `{"identity":{},"yielded":true,"inForce":true}`)
			_, _ = io.Copy(io.Discard, c)
		}()
	}
}

// askForLease asks for the lease for ever, with the proof that the holder sent on another
// connection.
func askForLease() {
	fmt.Println("begins")
	for {
		a, b := dialLease(true), dialLease(true)
		if a == nil || b == nil {
			continue
		}
		fd, _ := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
		_, _, _ = a.WriteMsgUnix([]byte{0}, unix.UnixRights(fd), nil)
		_ = unix.Close(fd)
		_, _ = io.ReadFull(a, make([]byte, 33))
		_, _ = io.ReadFull(b, make([]byte, 33))
		forward(a, b)
		sayLease(b, `{"identity":{"mode":"nftables"},"ask":"take"}`)
		answer, _ := io.ReadAll(b)
		if strings.Contains(string(answer), "yielded") {
			fmt.Println("took the lease")
		}
		_ = a.Close()
		_ = b.Close()
	}
}

// floodLease opens connections for ever and says nothing.
func floodLease() {
	fmt.Println("begins")
	var open []net.Conn
	for {
		c := dialLease(false)
		if c == nil {
			time.Sleep(time.Millisecond)
			continue
		}
		if open = append(open, c); len(open) > 400 {
			_ = open[0].Close()
			open = open[1:]
		}
	}
}

// dialLease connects to the holder, nil if there is none.
func dialLease(withAddress bool) *net.UnixConn {
	var from *net.UnixAddr
	if withAddress {
		name := proc.LeaseName + "/client/"
		for len(name) < 108 {
			name += fmt.Sprintf("%x", rand.N(16))
		}
		from = &net.UnixAddr{Net: "unix", Name: name}
	}
	c, err := net.DialUnix("unix", from, &net.UnixAddr{Net: "unix", Name: proc.LeaseName})
	if err != nil {
		return nil
	}
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	return c
}

// forward passes a message with descriptors on.
func forward(from, to *net.UnixConn) {
	text, control := make([]byte, 64), make([]byte, 64)
	if n, m, _, _, err := from.ReadMsgUnix(text, control); err == nil {
		_, _, _ = to.WriteMsgUnix(text[:n], control[:m], nil)
	}
}

// sayLease sends a message as proxies do.
func sayLease(c net.Conn, text string) {
	_, _ = c.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...))
}

// attackLease starts an attack as root of a container: with its usual capabilities, but
// not CAP_NET_ADMIN.
func (c *cluster) attackLease(t *testing.T, attack string) *program.Proxy {
	t.Helper()
	self, err := os.Executable()
	kit.Must(t, err)
	const rights = "-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,+net_bind_service,+net_raw,+sys_chroot,+mknod,+audit_write,+setfcap"
	cmd := exec.Command("setpriv", "--inh-caps=-all", "--bounding-set="+rights, self)
	cmd.Env = append(os.Environ(), leaseAttack+"="+attack)
	p := program.Start(t, c.Node, cmd)
	p.AwaitLog(t, "begins")
	return p
}

// TestLeaseAttacks checks that root without CAP_NET_ADMIN, in the network namespace of the
// node, can neither keep a proxy from programming it, nor take its lease, nor keep two
// proxies from finding each other.
func TestLeaseAttacks(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	web := app{name: "web", number: 10}
	c.save(t, web.on(c.Host("web-1")))
	holder := c.attackLease(t, holdName)
	p := c.start(t)
	c.awaitReached(t, web, "web-1")
	condition := func() string { return reportOf(t, p, program.MetricsAddr).Conditions["other-proxy"] }
	kit.Until(t, "that the proxy names the process", func() bool {
		return strings.Contains(condition(), fmt.Sprintf("may not program this node, process %d (", holder.Pid()))
	})
	kit.Check(t, p.Log.Has("Warning: it is unknown which service proxy programs this node"), "the log does not say it")
	c.save(t, web.on(c.Host("web-2")))
	c.awaitReached(t, web, "web-2")
	holder.Kill()
	kit.Until(t, "that the proxy has the lease", func() bool { return condition() == "" })
	attacks := []*program.Proxy{c.attackLease(t, askForIt), c.attackLease(t, floodRoot), c.attackLease(t, floodUsers)}
	d, q := c.startSecond(t, defaultMode(), web.on(c.Host("web-1")))
	d.awaitReached(t, web, "web-1")
	kit.Until(t, "that the first proxy stands by", func() bool {
		return strings.Contains(condition(), fmt.Sprintf("process %d (", q.Pid()))
	})
	d.save(t, web.on(c.Host("web-2")))
	d.awaitReached(t, web, "web-2")
	for _, a := range attacks {
		kit.Check(t, !a.Log.Has("took the lease") && !a.Ended(), "an attack says\n%s", a.Log)
		a.Kill()
	}
	q.Stop(t)
	kit.Until(t, "that the first proxy is alone", func() bool { return condition() == "" })
}

// secondHealth and secondMetrics are the addresses of the servers of a second proxy.
const secondHealth, secondMetrics = "127.0.0.1:20256", "127.0.0.1:20249"

// startSecond starts a second proxy on c's node, in mode m, with manifests of its own.
func (c *cluster) startSecond(t *testing.T, m mode, apps ...app) (*cluster, *program.Proxy) {
	t.Helper()
	d := &cluster{Lab: c.Lab, dir: t.TempDir()}
	d.setMode(t, m)
	d.write(t, "node.yaml", program.Manifest[any](t, node()))
	d.save(t, apps...)
	args := append([]string{"--manifests=" + d.dir, "--iptables-min-sync-period=10ms"}, m.flags...)
	args = append(args, "--healthz-bind-address="+secondHealth, "--metrics-bind-address="+secondMetrics)
	return d, program.Start(t, c.Node, d.command(args...))
}

// reportOf returns the full health report of a proxy. It checks that load balancers get
// status 200 all the time.
func reportOf(t *testing.T, p *program.Proxy, metrics string) health.Report {
	t.Helper()
	at := program.HealthAddr
	if metrics == secondMetrics {
		at = secondHealth
	}
	if page := p.Fetch(t, at, "/healthz"); page.Status != http.StatusOK || strings.Contains(string(page.Body), "process ") {
		t.Errorf("/healthz at %s: status %d, want 200 and no process\n%s", at, page.Status, page.Body)
	}
	var r struct{ Health health.Report }
	kit.Must(t, json.Unmarshal(p.Fetch(t, metrics, "/services").Body, &r))
	return r.Health
}

func rounds(r health.Report) int {
	n := 0
	for _, s := range r.Status {
		n += s.Rounds
	}
	return n
}

// TestTwoProxies checks that two proxies of one node, in any modes, do not undo each
// other's work. The one that started last programs the node, both report that, and when
// it ends the other one takes over. No connection is lost.
func TestTwoProxies(t *testing.T) {
	t.Parallel()
	for _, pair := range [][2]string{
		{"nftables", "nftables"}, {"nftables", "iptables-nft"}, {"iptables-legacy", "iptables-legacy"},
		{"iptables-nft", "nftables"}, {"userspace", "userspace"},
	} {
		t.Run(strings.Join(pair[:], " and "), func(t *testing.T) {
			t.Parallel()
			twoProxies(t, pair[0], pair[1])
		})
	}
}

// TestIPVSTwoProxies does the same with mode ipvs, where the other one's virtual servers
// count as well.
func TestIPVSTwoProxies(t *testing.T) {
	needIPVS(t)
	t.Parallel()
	for _, second := range []string{"ipvs", "nftables"} {
		t.Run(second, func(t *testing.T) { twoProxies(t, "ipvs", second) })
	}
}

func modeNamed(name string) mode {
	if name == "userspace" {
		return inUserspace("nft")
	}
	return switchableModes()[name]
}

// inModes runs test in each of modes.
func inModes(t *testing.T, names []string, test func(*testing.T, mode)) {
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, modeNamed(name))
		})
	}
}

// withNFTables runs test in mode nftables.
func withNFTables(t *testing.T, test func(*testing.T, mode)) {
	t.Parallel()
	test(t, defaultMode())
}

func twoProxies(t *testing.T, first, second string) {
	c := newCluster(t, modeNamed(first))
	one, two := c.Host("web-1"), c.Host("web-2")
	web := app{name: "web", number: 10}
	p := c.start(t, web.on(one))
	var loads []*netlab.Load
	for _, f := range service.Families {
		loads = append(loads, c.Host("shopper").Load(t.Context(), netlab.LoadConfig{
			Query: netlab.Query{Proto: "tcp", To: web.at(service.ClusterIP, f)}, Workers: 1,
		}))
	}
	d, q := c.startSecond(t, modeNamed(second), web.on(two))
	q.AwaitLogs(t, `"Programmed"`, d.mode.proxyMode()+" FAMILY")
	kit.Until(t, "that the first proxy stands by", func() bool {
		return strings.Contains(reportOf(t, p, program.MetricsAddr).Conditions["other-proxy"], fmt.Sprintf("process %d (", q.Pid()))
	})
	kit.Until(t, "that the second proxy names the first", func() bool {
		return strings.Contains(reportOf(t, q, secondMetrics).Conditions["other-proxy"], fmt.Sprintf("process %d (", p.Pid()))
	})
	before := rounds(reportOf(t, p, program.MetricsAddr))
	for i := range 10 { // changes for the first one only
		c.save(t, app{name: fmt.Sprintf("more-%d", i), number: 20 + i}.on(one))
	}
	d.save(t, app{name: "late", number: 12}.on(two))
	d.awaitReached(t, web, "web-2")
	n := rounds(reportOf(t, p, program.MetricsAddr)) - before
	kit.Check(t, n == 0, "the first proxy did %d rounds while the second one programs the node", n)
	v, ok := p.Metric(t, "kubeproxy_standby")
	kit.Check(t, ok && v == 1, "kubeproxy_standby of the first = %v, %t, want 1", v, ok)
	if n := p.Log.Count("another service proxy programs this node"); n != 1 {
		t.Errorf("said %d times that another proxy programs the node, want once", n)
	}
	q.Stop(t)
	kit.Until(t, "that the first proxy is alone", func() bool {
		r := reportOf(t, p, program.MetricsAddr)
		return r.Conditions["other-proxy"] == "" && r.Standby == ""
	})
	c.awaitReached(t, web, "web-1")
	if first != second {
		p.AwaitLogs(t, "Removed what an earlier service proxy left", "FAMILY")
		c.checkOnlyMode(t, first)
	}
	for i, l := range loads {
		r := l.Stop()
		kit.Check(t, r.Lost() <= 0 && r.Connections != 0, "load %d: %s", i, r)
	}
	kit.Check(t, !p.Log.Has("Others had altered our rules") && !q.Log.Has("Others had altered our rules"),
		"one took the other's rules for alterations of its own")
	p.Stop(t)
}

// awaitReached waits until connections to a reach the host.
func (c *cluster) awaitReached(t *testing.T, a app, host string) {
	t.Helper()
	for _, f := range service.Families {
		kit.Until(t, "that "+host+" answers", func() bool {
			r, err := c.Host("customer").Ask(t.Context(), netlab.Query{Proto: "tcp", To: a.at(service.NodePort, f)})
			return err == nil && r.Backend == host
		})
	}
}

// TestSecondProxyCrashes checks that a proxy with the lease that crashes leaves its rules
// in force, and that the previous one continues from them.
func TestSecondProxyCrashes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	web := app{name: "web", number: 10}
	p := c.start(t, web.on(c.Host("web-1")))
	for range 3 {
		d, q := c.startSecond(t, defaultMode(), web.on(c.Host("web-2")))
		d.awaitReached(t, web, "web-2")
		q.Kill()
		c.awaitReached(t, web, "web-1")
	}
	p.Stop(t)
}

// TestScriptAgainstRules runs a script that breaks the rules in a loop. Its changes are
// repaired, but not each by a round of its own. The script is named, and does not fill
// the log.
func TestScriptAgainstRules(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	web := app{name: "web", number: 10}.on(c.webs()...)
	p := c.start(t, web)
	want := c.awaitProgrammed(t)
	deeds := 0
	kit.Until(t, "a condition that names nft", func() bool {
		nft(t, c.Node, "delete element ip kube-services services { 10.96.0.10 . tcp . 80 }\n")
		deeds++
		c.awaitSnapshot(t, want)
		return strings.Contains(reportOf(t, p, program.MetricsAddr).Conditions["drift-IPv4"], "(nft)")
	})
	before, began := reportOf(t, p, program.MetricsAddr).Status["IPv4"].Rounds, time.Now()
	for range 3 {
		nft(t, c.Node, "delete element ip kube-services services { 10.96.0.10 . tcp . 80 }\n")
		for range 20 {
			nft(t, c.Node, "add chain ip kube-services mine\nadd rule ip kube-services mine counter\n")
		}
		c.awaitSnapshot(t, want)
	}
	// A pause of a second follows each round that repairs something. The news of a change may
	// come after its repair, and cause a round that finds nothing.
	n := reportOf(t, p, program.MetricsAddr).Status["IPv4"].Rounds - before
	took := time.Since(began)
	most := 2*int(took/time.Second) + 8
	kit.Check(t, n <= most, "%d rounds for 63 changes by a script in %s, want %d at most", n, took, most)
	if n := p.Log.Count("Others had altered our rules", "nftables IPv4"); n > 12 {
		t.Errorf("%d lines of the log about %d changes", n, deeds)
	}
	v, ok := p.Metric(t, "kubeproxy_condition", "condition", "drift-IPv4")
	kit.Check(t, ok && v == 1, "kubeproxy_condition of drift-IPv4 = %v, %t, want 1", v, ok)
	c.check(t, want, c.cells(c.clientHosts()[:1], web))
}

// TestCommandsWithRunningProxy checks that a program that rewrites the rules for a while does
// not block commands that end by themselves, which need no lease, and that a cleanup then
// touches nothing.
func TestCommandsWithRunningProxy(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	web := app{name: "web", number: 10}.on(c.webs()...)
	p := c.start(t, web)
	want := c.awaitProgrammed(t)
	for _, args := range [][]string{{"--init-only"}, {"render", "--manifests=" + c.dir}} {
		out, err := program.Run(t, c.Node, c.command(append(args, c.mode.flags...)...))
		kit.Check(t, err == nil, "%v beside a proxy: %v\n%s", args, err, out)
	}
	rules := nft(t, c.Node, "list ruleset\n", "-a")
	refused := fmt.Sprintf("clean up: nothing was removed: process %d ", p.Pid())
	if out := c.cleanUp(t, "", 1); !strings.Contains(out, refused) || !strings.Contains(out, "would make it again; stop it first") {
		t.Errorf("a cleanup beside a proxy says:\n%s", out)
	}
	kit.Same(t, "a cleanup beside a proxy (-before +after)", rules, nft(t, c.Node, "list ruleset\n", "-a"))
	c.awaitSnapshot(t, want)
	r := reportOf(t, p, program.MetricsAddr)
	kit.Check(t, r.Standby == "" && r.Conditions["other-proxy"] == "", "commands count as proxies: %v", r.Conditions)
}

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
				p.AwaitLogs(t, "Removed what an earlier service proxy left", "FAMILY")
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
	p.AwaitLogs(t, `"Programmed"`, c.mode.proxyMode()+" FAMILY")
	return p
}

func (c *cluster) askNodePort(t *testing.T, a app, f service.Family) netlab.Outcome {
	t.Helper()
	got, err := c.Host("customer").Ask(t.Context(), netlab.Query{Proto: "tcp", To: a.at(service.NodePort, f)})
	kit.Must(t, err)
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
			got := c.askNodePort(t, a, f)
			kit.Need(t, got == netlab.Answered, "%s NodePort is %s while the Node is not known", f, got)
		}
	}
}

// named makes a proxy serve the Services labelled mesh. ranges is what ClusterIPs come from.
const named, ranges = "--service-proxy-name=mesh", `apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: kubernetes}
spec: {cidrs: [10.96.0.0/12, "fd00:10:96::/112"]}
`

// A proxy that serves labelled Services runs beside one that serves the rest, and
// beside a table of kube-proxy. It takes nothing from either, at its start, after a
// restart and in a cleanup.
func TestNamedProxy(t *testing.T) {
	t.Parallel()
	inModes(t, []string{"nftables", "iptables-nft", "iptables-legacy"}, namedProxy)
}

func namedProxy(t *testing.T, rest mode) {
	c := newCluster(t, rest)
	web, mesh := app{name: "web", number: 10}.on(c.Host("web-1")), app{name: "mesh", number: 11}.on(c.Host("web-2"))
	c.save(t, web)
	c.label(t, mesh)
	c.write(t, "ranges.yaml", []byte(ranges))
	p := c.start(t)
	nft(t, c.Node, "add table ip kube-proxy\n")
	m := defaultMode()
	m.flags = append(slices.Clone(m.flags), named)
	for _, number := range []int{12, 13} {
		d, q := c.startSecond(t, m, web)
		d.label(t, mesh)
		d.write(t, "ranges.yaml", []byte(ranges))
		q.AwaitLogs(t, `"Programmed"`, "nftables FAMILY")
		c.save(t, app{name: "late", number: number}.on(c.Host("web-1")))
		c.awaitClusterIPs(t, map[string]app{"web-1": web, "web-2": mesh})
		c.awaitProgrammed(t) // nothing of the first one's is gone
		for metrics, x := range map[string]*program.Proxy{program.MetricsAddr: p, secondMetrics: q} {
			if r := reportOf(t, x, metrics); r.Standby != "" || r.Conditions[otherProxy] != "" {
				t.Errorf("%s: stands by for %q, %q", metrics, r.Standby, r.Conditions[otherProxy])
			}
		}
		q.Stop(t)
	}
	out, err := program.Run(t, c.Node, c.command("--cleanup", named))
	kit.Check(t, err == nil, "cleanup: %v\n%s", err, out)
	for table, there := range map[string]bool{nftables.UpstreamTable: true, nftables.TableOf("mesh"): false} {
		if what := c.finds(t, nftables.Leftovers{Family: service.IPv4, Table: table}); (what != "") != there {
			t.Errorf("after the named proxy's cleanup table %s: %q, want it there: %t", table, what, there)
		}
	}
	c.awaitClusterIPs(t, map[string]app{"web-1": web})
	c.awaitProgrammed(t)
	p.Stop(t)
}

const otherProxy = "other-proxy"

// label saves a as a Service of the named proxy.
func (c *cluster) label(t *testing.T, a app) {
	t.Helper()
	const name = "service.kubernetes.io/service-proxy-name"
	s := a.service()
	s.Labels = map[string]string{name: "mesh"}
	c.write(t, a.name+".yaml", program.Manifest[any](t, s, a.slice(service.IPv4), a.slice(service.IPv6)))
}

// awaitClusterIPs waits until the ClusterIPs of the apps reach their hosts.
func (c *cluster) awaitClusterIPs(t *testing.T, all map[string]app) {
	t.Helper()
	for host, a := range all {
		for _, f := range service.Families {
			kit.Until(t, "that "+host+" answers", func() bool {
				r, err := c.Host("shopper").Ask(t.Context(), netlab.Query{Proto: "tcp", To: a.at(service.ClusterIP, f)})
				return err == nil && r.Backend == host
			})
		}
	}
}

// In the other modes the rules of all proxies have the same names, so the named
// proxy does not start.
func TestNamedProxyElsewhere(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	c.start(t, app{name: "web", number: 10}.on(c.Host("web-1")))
	for _, mode := range []string{"iptables", "ipvs", "userspace"} {
		out, err := program.Run(t, c.Node, kubeProxy.Command("--manifests="+c.dir, "--proxy-mode="+mode, named))
		kit.Check(t, err != nil && strings.Contains(out, "mode "+mode+" cannot work with --service-proxy-name mesh"),
			"mode %s: %v\n%s", mode, err, out)
	}
	c.awaitProgrammed(t)
}

// TestFallbackFromIPVS checks that a mode ipvs that cannot work ends with the reason, or
// with the fallback flag continues with the next mode, in which traffic flows. No kernel
// has this scheduler; some have no IPVS at all.
func TestFallbackFromIPVS(t *testing.T) {
	t.Parallel()
	m := defaultMode()
	m.flags = append(m.flags, "--proxy-mode=ipvs", "--ipvs-scheduler=none", "--iptables-localhost-nodeports=false")
	m.iptables = "nft"
	c := newCluster(t, m)
	web := app{name: "web", number: 10}.on(c.webs()...)
	c.save(t, web)
	out, err := program.Run(t, c.Node, c.command(append([]string{"--manifests=" + c.dir}, m.flags...)...))
	said := strings.Split(strings.TrimSpace(out), "\n")
	const sentence = "kube-proxy: mode ipvs cannot work here: IPv4 is the primary family by bindAddress 0.0.0.0 and cannot be programmed: IPVS for IPv4: the kernel has no "
	if last := said[len(said)-1]; err == nil || err.Error() != "exit status 1" || !strings.HasPrefix(last, sentence) || !strings.Contains(last, "(module ip_vs") {
		t.Errorf("ended with %v:\n%s\nwant exit status 1 and at last %q", err, out, sentence)
	}
	c.mode.flags = append(m.flags, "--proxy-mode-fallback")
	p := c.start(t)
	p.AwaitLog(t, "Warning: a mode cannot work here; trying the next", `mode="ipvs"`, `next="iptables"`, "the kernel has no ")
	p.AwaitLog(t, `"Starting"`, `mode="iptables"`, `modeFrom="--proxy-mode-fallback, since ipvs cannot work here"`)
	kit.Equal(t, string(p.Fetch(t, program.MetricsAddr, "/proxyMode").Body), "iptables", "/proxyMode")
	c.check(t, c.awaitProgrammed(t), c.cells(c.clientHosts(), web))
	c.checkOnlyMode(t, "iptables-nft")
	for _, f := range service.Families {
		n, _ := p.Metric(t, "kubeproxy_condition", "condition", "leftovers-"+f.String())
		kit.Check(t, n == 0, "%s: something is left of a mode that never ran", f)
	}
}
