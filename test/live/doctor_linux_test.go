// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// diagnosis is what kube-proxy doctor -o json prints.
type diagnosis struct {
	Code     int
	Findings []finding
	Checks   []check
}

type finding struct{ ID, Subject, What, Fix, Advice, Severity, Cause string }

// check is what became of a check.
type check struct{ Name, State, Note string }

// find returns the fix of the finding of this id, and whether there is one.
func (d diagnosis) find(id string) (fix string, found bool) {
	f, found := d.finding(id)
	return f.Fix, found
}

func (d diagnosis) finding(id string) (f finding, found bool) {
	if i := slices.IndexFunc(d.Findings, func(f finding) bool { return f.ID == id }); i >= 0 {
		return d.Findings[i], true
	}
	return f, false
}

func (d diagnosis) String() string {
	return fmt.Sprintf("exit %d\n%+v\n%+v", d.Code, d.Findings, d.Checks)
}

// diagnose runs doctor on the node, with the flags of the proxy.
func (c *cluster) diagnose(t *testing.T, args ...string) diagnosis {
	t.Helper()
	args = append(append([]string{"--manifests=" + c.dir}, c.mode.flags...), args...)
	if c.planned {
		args = append(args, "--before-start")
	}
	cmd := c.command(args...)
	cmd.Args = slices.Insert(cmd.Args, 1, "doctor")
	cmd.Args = append(cmd.Args, "-o=json")
	return c.readDiagnosis(t, cmd)
}

// readDiagnosis runs doctor on the node and reads its report.
func (c *cluster) readDiagnosis(t *testing.T, cmd *exec.Cmd) diagnosis {
	t.Helper()
	var out strings.Builder
	cmd.Stdout = &out
	said, err := program.Run(t, c.Node, cmd)
	var d diagnosis
	if cmd.ProcessState == nil || json.Unmarshal([]byte(out.String()), &d) != nil {
		t.Fatalf("doctor: %v\n%s%s", err, out.String(), said)
	}
	d.Code = cmd.ProcessState.ExitCode()
	return d
}

// shell runs a command of doctor as an operator would paste it.
func (c *cluster) shell(t *testing.T, command string) {
	t.Helper()
	cmd := program.With(exec.Command("sh", "-c", command), c.commands)
	out, err := program.Run(t, c.Node, cmd)
	kit.Need(t, err == nil, "%s: %v\n%s", command, err, out)
}

// harmful are the commands in advices that tests may run.
var harmful = regexp.MustCompile(`kill \d+|/\S*kube-proxy --cleanup|umount \S+`)

// mends makes a fault, waits until doctor names it, runs the command that doctor prints, or
// advises if it may harm, and waits until it is gone.
func (c *cluster) mends(t *testing.T, id string, fault func()) {
	t.Helper()
	if d := c.diagnose(t); d.has(id) {
		t.Fatalf("%s is found before it is there: %s", id, d)
	}
	fault()
	var d diagnosis
	kit.Until(t, "doctor to find "+id, func() bool { d = c.diagnose(t); return d.has(id) && d.Code == 1 })
	fix := d.command(id)
	kit.Need(t, fix != "", "%s has no command: %s", id, d)
	c.shell(t, fix)
	kit.Until(t, fmt.Sprintf("%s to be gone after %s", id, fix), func() bool { d = c.diagnose(t); return !d.has(id) })
}

// command returns the fix of a finding, or the command in its advice.
func (d diagnosis) command(id string) string {
	f, _ := d.finding(id)
	return cmp.Or(f.Fix, harmful.FindString(f.Advice))
}

func (d diagnosis) has(id string) bool {
	_, found := d.find(id)
	return found
}

// awaitSound waits until doctor finds nothing.
func (c *cluster) awaitSound(t *testing.T, args ...string) {
	t.Helper()
	var d diagnosis
	kit.Need(t, kit.Soon(func() bool { d = c.diagnose(t, args...); return d.Code == 0 }),
		"doctor finds something on a sound node: %s", d)
}

// listenAt is the variable with the address at which this program listens in place of
// testing, see listening.
const listenAt = "LIVE_LISTEN_AT"

// listening listens for ever, if it is to.
func listening() {
	at := os.Getenv(listenAt)
	if at == "" {
		return
	}
	l, err := net.Listen("tcp", at)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	netlab.Serve(l, func(net.Conn) {})
	os.Exit(0)
}

// listen starts a program on the node that listens.
func (c *cluster) listen(t *testing.T, at string) {
	t.Helper()
	self, err := os.Executable()
	kit.Must(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), listenAt+"="+at)
	kit.Must(t, c.Node.Start(cmd))
	go func() { _ = cmd.Wait() }()
	_, port, _ := net.SplitHostPort(at)
	kit.Until(t, "the program to listen", func() bool {
		x, err := c.Node.Dial(t.Context(), "tcp", net.JoinHostPort("127.0.0.1", port))
		if err == nil {
			_ = x.Close()
		}
		return err == nil
	})
}

func (c *cluster) set(t *testing.T, name, value string) {
	t.Helper()
	kit.Must(t, c.Node.Do(func() error { return os.WriteFile("/proc/sys/"+name, []byte(value), 0) }))
}

// TestDoctorOfARunningProxy makes faults on a node with a proxy. Doctor names each, and
// the command that it prints mends it.
func TestDoctorOfARunningProxy(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	web := app{name: "web", number: 10}.on(c.webs()...)
	p := c.start(t, web)
	c.awaitSound(t)
	c.mends(t, "ip-forward", func() { c.set(t, "net/ipv4/ip_forward", "0") })
	c.mends(t, "ip-forward", func() { c.set(t, "net/ipv6/conf/all/forwarding", "0") })
	c.mends(t, "be-liberal", func() { c.set(t, "net/netfilter/nf_conntrack_tcp_be_liberal", "1") })
	c.mends(t, "rp-filter", func() {
		c.shell(t, "ip link add eth1 type veth peer name far && ip addr add 198.51.100.1/24 dev eth1 && ip link set eth1 up && ip link set far up")
		for _, name := range []string{"all", "eth0", "eth1"} {
			c.set(t, "net/ipv4/conf/"+name+"/rp_filter", "1")
		}
	})
	c.mends(t, "nodeport-hidden", func() { c.listen(t, fmt.Sprintf("0.0.0.0:%d", web.nodePort())) })
	c.mends(t, "forward-policy", func() { c.shell(t, "iptables-nft -P FORWARD DROP") })
	c.mends(t, "forward-policy", func() { c.shell(t, "iptables-legacy -P FORWARD DROP") })
	c.mends(t, "forward-policy", func() {
		c.shell(t, "nft 'add table inet wall; add chain inet wall through { type filter hook forward priority 0; policy drop; }'")
	})
	c.mends(t, "other-proxy", func() {
		c.startSecond(t, defaultMode())
		kit.Until(t, "that the first proxy stands by", func() bool { return reportOf(t, p, program.MetricsAddr).Standby != "" })
	})
	kit.Check(t, !p.Ended(), "the command ends the proxy that was asked")
	c.awaitSound(t)

	// These have no command that a test may run.
	taken := netip.MustParseAddrPort("192.0.2.10:30100")
	l, err := c.Node.Listen(t.Context(), "tcp4", taken.String())
	kit.Must(t, err)
	c.write(t, "checked.yaml", []byte(strings.NewReplacer("NUMBER", "1", "PORT", "30100").Replace(checkedApp)))
	kit.Until(t, "doctor to find what the proxy reports", func() bool {
		d := c.diagnose(t)
		return slices.ContainsFunc(d.Findings, func(f finding) bool {
			return f.ID == "proxy-condition" && f.Subject == "health-checks" && f.Severity == "blocks"
		})
	})
	kit.Must(t, l.Close())
	c.shell(t, "nft 'add table inet firewalld; add chain inet firewalld x' && iptables-nft -N ufw-user-input")
	for _, name := range []string{"firewalld", "ufw"} {
		if d := c.diagnose(t); !slices.ContainsFunc(d.Findings, func(f finding) bool {
			return f.ID == "firewall" && f.Subject == name
		}) {
			t.Errorf("%s is not found: %s", name, d)
		}
	}
	if d := c.diagnose(t, "--server=127.0.0.1:1"); !d.has("proxy-silent") {
		t.Errorf("a proxy that cannot be asked is not found: %s", d)
	}
}

// TestDoctorOfForeignTables has a table that drops what is forwarded, beside a proxy in mode
// iptables, which accepts in its own chains only.
func TestDoctorOfForeignTables(t *testing.T) {
	t.Parallel()
	c := newCluster(t, switchableModes()["iptables-nft"])
	web := app{name: "web", number: 10}.on(c.webs()...)
	c.start(t, web)
	want := c.awaitProgrammed(t)
	c.awaitSound(t)
	c.mends(t, "forward-policy", func() {
		c.shell(t, "nft 'add table inet corp; add chain inet corp forward { type filter hook forward priority 0; policy drop; }'")
		awaitOutcome(t, "the drop", c.Host("customer"), netlab.Query{Proto: "tcp", To: web.at(service.ClusterIP, service.IPv4), Timeout: netlab.SilenceTimeout}, netlab.TimedOut)
	})
	c.check(t, want, c.cells(c.clientHosts()[:1], web))
	c.shell(t, "iptables-nft -P FORWARD DROP")
	c.awaitSound(t) // its rules accept there
}

// TestDoctorOfHealthChecks drops what no rule accepts on a node in mode nftables. The
// command of doctor lets the health check in.
func TestDoctorOfHealthChecks(t *testing.T) {
	t.Parallel()
	m := defaultMode()
	m.flags = append(m.flags, "--nodeport-addresses="+nodePrefixes)
	c := newCluster(t, m)
	c.write(t, "checked.yaml", []byte(strings.NewReplacer("NUMBER", "1", "PORT", "30100").Replace(checkedApp)))
	p := c.launch(t)
	p.AwaitLogs(t, `"Programmed"`, c.mode.proxyMode()+" FAMILY")
	answered := func() bool { return healthCheckOwner(c.Host("customer"), "http://192.0.2.10:30100/") == "checked-1" }
	kit.Until(t, "the health check", answered)
	c.mends(t, "input-policy", func() {
		c.shell(t, "iptables-nft -A INPUT -i lo -j ACCEPT && iptables-nft -P INPUT DROP")
		kit.Need(t, !answered(), "the chain does not drop")
	})
	kit.Check(t, answered(), "the command does not let the health check in")
}

// TestDoctorBeforeTheStart makes faults on a node without a proxy.
func TestDoctorBeforeTheStart(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	web := app{name: "web", number: 10}.on(c.webs()...)
	c.save(t, web)
	c.planned = true
	c.awaitSound(t)
	c.mends(t, "ip-forward", func() { c.set(t, "net/ipv4/ip_forward", "0") })
	c.mends(t, "nodeport-hidden", func() { c.listen(t, fmt.Sprintf("0.0.0.0:%d", web.nodePort())) })
	c.mends(t, "port-taken", func() { c.listen(t, "0.0.0.0:10256") })
	c.mends(t, "leftovers", func() {
		file := filepath.Join(t.TempDir(), "tables")
		kit.Must(t, os.WriteFile(file, []byte(upstreamTables(service.IPv4, web)), 0o600))
		c.shell(t, "iptables-legacy-restore < "+file)
	})
	c.mends(t, "other-proxy", func() { c.startNamesake(t) })
	c.awaitSound(t)
	d := c.diagnose(t, "--cluster-cidr=10.1.0.0/16")
	kit.Check(t, d.has("pod-cidr") && d.Code == 1, "a cluster CIDR that does not hold the Node's is not found: %s", d)
	if d := c.diagnose(t, "--hostname-override=nobody"); !d.has("node-unknown") || d.Code != 1 {
		t.Errorf("an unknown Node is not found: %s", d)
	}
	if d := c.diagnose(t, "--hostname-override="+netlab.OtherName); !d.has("node-unknown") {
		t.Errorf("the Node of another machine is not found: %s", d)
	}
}

// TestDoctorOfADeadProxy has no proxy, then one that hangs, then one that was killed and whose
// rules lack an element. Doctor and diff say what that means, and explain reads the node itself.
func TestDoctorOfADeadProxy(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	web := app{name: "web", number: 10}.on(c.webs()...)
	c.save(t, web)
	expect := func(id string, words ...string) {
		t.Helper()
		d := c.diagnose(t)
		f, _ := d.finding(id)
		for _, w := range words {
			kit.Check(t, strings.Contains(f.What+" "+f.Advice, w), "%s does not say %q: %s", id, w, d)
		}
		if slices.ContainsFunc(d.Findings, func(o finding) bool { return o.ID != id && o.Cause != id }) || f.Severity != "blocks" || f.Fix != "" || d.Code != 1 {
			t.Errorf("want %s that blocks, and nothing else: %s", id, d)
		}
	}
	expect("proxy-absent", "nothing is programmed: no Service works here", "the node lacks ", " changes", "systemctl start kube-proxy", "kubectl -n kube-system get pods", "--before-start")
	p := c.start(t)
	c.awaitProgrammed(t)
	c.awaitSound(t)
	kit.Must(t, syscall.Kill(p.Pid(), syscall.SIGSTOP))
	expect("proxy-silent", fmt.Sprintf("process %d ", p.Pid()), "runs, but is stopped, and does not answer", fmt.Sprintf("kill -CONT %d", p.Pid()))
	kit.Must(t, syscall.Kill(p.Pid(), syscall.SIGCONT))
	c.awaitSound(t)
	p.Kill()
	expect("proxy-absent", "what an earlier process made serves on (nftables table ip", "changes do not arrive", "the node lacks nothing yet")
	c.shell(t, "nft delete element ip kube-services services { 10.96.0.10 . tcp . 80 }")
	expect("proxy-absent", "the node lacks 1 change: ")
}

// TestExplainBesideADeadProxy kills the proxy in two modes. Explain and doctor read the node itself,
// with the settings and from the manifests of the last run, and find what is missing.
func TestExplainBesideADeadProxy(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]string{
		"nftables": "nft delete element ip kube-services services { 10.96.0.10 . tcp . 80 }", "iptables-nft": "iptables-nft -t nat -F KUBE-SERVICES",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, switchableModes()[name])
			web := app{name: "web", number: 10}.on(c.webs()...)
			p := c.start(t, web)
			c.awaitProgrammed(t)
			p.Kill()
			flags := []string{}
			explain := func(want int, words ...string) {
				t.Helper()
				cmd := program.With(kubeProxy.Command(append(flags, "explain", c.Host("shopper").IPv4.String(), "10.96.0.10:80")...), c.commands)
				out, err := program.Run(t, c.Node, cmd)
				if got := cmd.ProcessState.ExitCode(); got != want || strings.Contains(out, "Rules of others") {
					t.Errorf("exit %d, %v, want %d and no rules of others\n%s", got, err, want, out)
				}
				for _, w := range append(words, "no proxy answers here; read from "+c.dir, "mode "+c.mode.proxyMode()) {
					kit.Check(t, strings.Contains(strings.Join(strings.Fields(out), " "), w), "no %q in\n%s", w, out)
				}
			}
			explain(0, "The node does what it should.")
			c.shell(t, harm)
			explain(1, "10.244.1.11:8080")
			d := c.diagnose(t)
			if f, _ := d.finding("service-traffic"); f.Cause != "proxy-absent" || !strings.Contains(f.What, "1 of 1 Service (shop/web)") || !strings.Contains(d.String(), "what an earlier one left in mode "+c.mode.proxyMode()) {
				t.Errorf("doctor follows no packets: %s", d)
			}
			c.shell(t, "nft delete table ip kube-settings")
			flags = []string{"--without-proxy", "--manifests=" + c.dir, "--hostname-override=" + netlab.NodeName}
			explain(1, "has no table kube-settings with its settings, so those of this command count")
		})
	}
}

// TestDoctorChangesNothing compares the node before and after doctor looked for every
// mode.
func TestDoctorChangesNothing(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	c.save(t, app{name: "web", number: 10}.on(c.webs()...))
	look := func() string {
		text := ""
		for _, command := range []string{
			"nft list ruleset", "iptables-legacy-save -t nat | grep -v '^#'", "cat /proc/thread-self/net/ip_tables_names /proc/thread-self/net/ip6_tables_names", "ip addr show", "ip route show table all",
			"sysctl -a --pattern '^net\\.(ipv4|ipv6|bridge|netfilter)' 2>/dev/null | grep -v -e nf_conntrack_count -e random -e neigh", "cat /proc/thread-self/net/unix | grep kube | wc -l", "conntrack -C",
		} {
			out, err := program.Run(t, c.Node, exec.Command("sh", "-c", command))
			if err != nil {
				t.Logf("%s: %v", command, err)
			}
			text += "# " + command + "\n" + out
		}
		return text
	}
	before := look()
	c.diagnose(t, "--all-modes")
	c.diagnose(t)
	kit.Same(t, "doctor changed the node (-before +after)", before, look())
}

// TestDoctorOfABridge has pods on a bridge whose packets do not pass netfilter.
func TestDoctorOfABridge(t *testing.T) {
	t.Parallel()
	m := defaultMode()
	m.bridge = "br-pods"
	c := newCluster(t, m)
	const name = "net/bridge/bridge-nf-call-iptables"
	if _, err := os.Stat("/proc/sys/" + name); err != nil { // nothing a test may load
		fix, _ := c.diagnose(t).find("br-netfilter")
		kit.Check(t, strings.HasPrefix(fix, "modprobe br_netfilter && "), "fix %q, want the module", fix)
		return
	}
	c.set(t, name, "1")
	c.set(t, "net/bridge/bridge-nf-call-ip6tables", "1")
	c.planned = true
	c.awaitSound(t)
	c.mends(t, "br-netfilter", func() { c.set(t, name, "0") })
}

// TestDoctorOfMarks has another program route by a mark with the masquerade bit, as wg-quick
// does. Only mode ipvs is concerned, with that bit.
func TestDoctorOfMarks(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	c.start(t, app{name: "web", number: 10, plain: true}.on(c.Host("web-1")))
	found := func(want bool, args ...string) {
		t.Helper()
		d := c.diagnose(t, args...)
		kit.Check(t, d.has("shared-mark") == want, "%v: want shared-mark: %t, found %s", args, want, d)
	}
	found(false, "--all-modes")
	c.shell(t, "ip rule add not fwmark 51820 table 51820 && ip -6 rule add not fwmark 51820 table 51820")
	found(true, "--all-modes")
	found(true, "--proxy-mode=ipvs")
	found(false, "--all-modes", "--iptables-masquerade-bit=16")
	found(false)
}

// TestDoctorOfSocketAcceleration makes faults of socket acceleration. Doctor names each, and
// the command that it prints mends it.
func TestDoctorOfSocketAcceleration(t *testing.T) {
	t.Parallel()
	c := newPinned(t)
	on, off := append(slices.Clip(c.flags), "--socket-acceleration"), append(slices.Clip(c.flags), "--socket-acceleration=false")
	if d := c.diagnose(t, off); d.has("acceleration-left") || !slices.Contains(d.Checks, check{"socket acceleration", "skipped", "it is off, and nothing of it is in the kernel"}) {
		t.Errorf("before the start: %s", d)
	}
	c.mends(t, "socket-acceleration", "/sys/fs/bpf", on, func() { c.shell(t, "umount /sys/fs/bpf") })

	p := c.start(t)
	for _, args := range [][]string{on, off} { // the proxy answers that it is on
		if d := c.diagnose(t, args); d.has("acceleration-left") || d.has("acceleration-detached") || d.has("socket-acceleration") {
			t.Errorf("a proxy that runs: %s", d)
		}
	}
	p.Stop(t)
	if d := c.diagnose(t, on); d.has("acceleration-left") || d.has("acceleration-detached") || d.has("leftovers") {
		t.Errorf("after a stop: %s", d)
	}
	c.mends(t, "acceleration-detached", "connect4", on, func() { c.shell(t, "rm /sys/fs/bpf/kube-services/*/ipv4/connect4") })
	c.mends(t, "acceleration-left", "which is off", off, func() { c.start(t).Stop(t) })
	c.mends(t, "acceleration-left", "does not update it", off, func() {
		c.start(t).Stop(t)
		c.startNamesake(t)
	})
}

// TestSocketAccelerationIsRemovedWithoutPins has --init-only and --cleanup remove the layer
// where its pins are not mounted. Where nothing was installed, they say nothing of it.
func TestSocketAccelerationIsRemovedWithoutPins(t *testing.T) {
	t.Parallel()
	c := newPinned(t)
	web := app{name: "web", number: 10}.on(c.webs()...)
	outside := *c
	outside.inside = func(cmd *exec.Cmd) *exec.Cmd { return cmd }
	off := append(slices.Clip(c.flags), "--socket-acceleration=false")
	remove := func(flag string) string {
		t.Helper()
		out, err := program.Run(t, c.Node, c.command(flag))
		kit.Need(t, err == nil, "%s: %v\n%s", flag, err, out)
		return out
	}
	const left = "acceleration-left"
	for _, flag := range []string{"--init-only", "--cleanup"} {
		checkSilent(t, flag, remove(flag))
		c.start(t).Stop(t)
		c.connectSome(t, web)
		c.checkTracked(t, web, false)
		d := outside.diagnose(t, off)
		kit.Check(t, d.has(left), "before %s: %s", flag, d)
		out := remove(flag)
		if flag == "--cleanup" && strings.Count(out, `"Cleaned up" place="socket acceleration of `) != len(service.Families) {
			t.Errorf("%s does not say what it removed:\n%s", flag, out)
		}
		if d := outside.diagnose(t, off); d.has(left) {
			t.Errorf("after %s: %s", flag, d)
		}
		if flag == "--init-only" { // it leaves the rules
			c.connectSome(t, web)
			c.checkTracked(t, web, true)
		}
		checkSilent(t, flag, remove(flag))
		fix, found := c.diagnose(t, off).find(left) // pins of programs that are detached
		kit.Check(t, found, "%s cannot have removed the pins", flag)
		c.shell(t, fix)
		if d := c.diagnose(t, off); d.has(left) {
			t.Errorf("after %s: %s", fix, d)
		}
		c.shell(t, "conntrack -F")
	}
}

// checkSilent fails if what a command said names something of socket acceleration.
func checkSilent(t *testing.T, flag, said string) {
	t.Helper()
	for line := range strings.Lines(said) {
		kit.Check(t, !strings.Contains(line, "acceleration") || strings.Contains(line, `"Nothing to clean up"`),
			"%s where there is nothing: %s", flag, line)
	}
}

// pinned is a cluster with a Service, whose commands see a BPF file system.
type pinned struct {
	*cluster
	inside func(*exec.Cmd) *exec.Cmd
	// flags are those of a proxy, without --socket-acceleration.
	flags []string
}

func newPinned(t *testing.T) *pinned {
	t.Helper()
	m := defaultMode()
	m.plain = true
	c := newCluster(t, m)
	c.save(t, app{name: "web", number: 10}.on(c.webs()...))
	return &pinned{c, c.withPins(t), append([]string{"--manifests=" + c.dir}, m.flags...)}
}

// start starts the proxy with socket acceleration, and waits until it has programmed all.
func (c *pinned) start(t *testing.T) *program.Proxy {
	t.Helper()
	p := program.Start(t, c.Node, c.inside(c.command(append(slices.Clip(c.flags), "--socket-acceleration")...)))
	p.AwaitLogs(t, `"Programmed"`, "nftables FAMILY")
	c.awaitProgrammed(t)
	return p
}

func (c *pinned) diagnose(t *testing.T, args []string) diagnosis {
	t.Helper()
	cmd := c.command(args...)
	cmd.Args = slices.Insert(cmd.Args, 1, "doctor")
	cmd.Args = append(cmd.Args, "-o=json")
	return c.readDiagnosis(t, c.inside(cmd))
}

func (c *pinned) shell(t *testing.T, command string) {
	t.Helper()
	out, err := program.Run(t, c.Node, c.inside(program.With(exec.Command("sh", "-c", command), c.commands)))
	kit.Need(t, err == nil, "%s: %v\n%s", command, err, out)
}

// mends is that of a cluster, with flags of doctor. The finding has to say word.
func (c *pinned) mends(t *testing.T, id, word string, args []string, fault func()) {
	t.Helper()
	if d := c.diagnose(t, args); d.has(id) {
		t.Fatalf("%s is found before it is there: %s", id, d)
	}
	fault()
	d := c.diagnose(t, args)
	fix := d.command(id)
	kit.Need(t, strings.Contains(d.String(), word) && (fix != "" || d.has("socket-acceleration")),
		"%s, %q, with a command is not found: %s", id, word, d)
	fix = cmp.Or(fix, "mount -t bpf bpf /sys/fs/bpf") // doctor has no command in a container
	c.shell(t, fix)
	if d = c.diagnose(t, args); d.has(id) {
		t.Fatalf("%s is found after %s: %s", id, fix, d)
	}
}

// startNamesake starts what is kube-proxy of Kubernetes as far as its name says.
func (c *cluster) startNamesake(t *testing.T) {
	t.Helper()
	tail, err := exec.LookPath("tail")
	kit.Must(t, err)
	text := kit.ReadFile(t, tail)
	name := filepath.Join(t.TempDir(), "kube-proxy")
	kit.Must(t, os.WriteFile(name, text, 0o700))
	cmd := exec.Command(name, "-f", "/dev/null")
	kit.Must(t, c.Node.Start(cmd))
	go func() { _ = cmd.Wait() }()
}

// TestDoctorOfFullConntrack fills the table of a node until the kernel drops entries. Only
// the first network namespace may set the limit, but each one has a count of its own, see
// https://docs.kernel.org/networking/nf_conntrack-sysctl.html. Lost inserts cannot be made
// like this: the kernel inserts most of the packets that clash, see kernel commit
// 6a757c07e51f ("netfilter: conntrack: allow insertion of clashing entries").
func TestDoctorOfFullConntrack(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	c.start(t, app{name: "web", number: 10}.on(c.webs()...))
	c.awaitProgrammed(t)
	c.awaitSound(t)
	c.set(t, "net/netfilter/nf_conntrack_udp_timeout", "600")
	// A bridge without ports takes any packet, and nobody answers. With ARP, packets that
	// wait for a neighbour would fill the buffer of the socket.
	c.shell(t, "ip link add void type bridge && ip addr add 198.18.0.1/24 dev void && ip link set void arp off up")
	c.fillConntrack(t, netip.MustParsePrefix("198.18.0.0/24"))

	d := c.diagnose(t)
	for id, want := range map[string]string{"conntrack-full": "sysctl -w net.netfilter.nf_conntrack_max=", "early-drop": "sysctl -w net.netfilter.nf_conntrack_max="} {
		fix, found := d.find(id)
		kit.Check(t, found && strings.HasPrefix(fix, want), "%s is not found, or fixed by %q: %s", id, fix, d)
	}
	c.shell(t, "conntrack -F")
	if d = c.diagnose(t); d.has("conntrack-full") || !d.has("early-drop") {
		t.Errorf("an empty table that was full: %s", d)
	}
}

// fillConntrack sends packets to the addresses of p until each entry that the kernel may
// have is in use, and a few more.
func (c *cluster) fillConntrack(t *testing.T, p netip.Prefix) {
	t.Helper()
	kit.Must(t, c.Node.Do(func() error {
		text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_max")
		if err != nil {
			return err
		}
		most, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			return err
		}
		s, err := net.ListenUDP("udp4", nil)
		if err != nil {
			return err
		}
		defer s.Close()
		to := p.Addr().Next() // of the node
		for n := range most + 200 {
			if n%65535 == 0 {
				to = to.Next()
			}
			if _, err := s.WriteToUDPAddrPort(nil, netip.AddrPortFrom(to, uint16(n%65535)+1)); err != nil {
				return err
			}
		}
		return nil
	}))
}

// container runs what follows in a file system like that of a container: an overlay, with
// what programs of this test need from outside. LOCK is a command that runs before.
const container = `set -e
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root
for dir in proc sys dev tmp; do mount --rbind /$dir /mnt/root/$dir; done
touch /run/xtables.lock /mnt/root/run/xtables.lock
LOCK
exec chroot /mnt/root "$@"`

// TestDoctorInAContainer checks that doctor distinguishes a container with a lock of its own
// from one that has the lock of the host.
func TestDoctorInAContainer(t *testing.T) {
	t.Parallel()
	c := newCluster(t, switchableModes()["iptables-legacy"])
	c.save(t, app{name: "web", number: 10}.on(c.webs()...))
	for lock, want := range map[string]bool{":": true, "mount --bind /run/xtables.lock /mnt/root/run/xtables.lock": false} {
		cmd := c.command(append([]string{"doctor", "-o=json", "--manifests=" + c.dir}, c.mode.flags...)...)
		prefix := []string{"unshare", "--mount", "sh", "-c", strings.Replace(container, "LOCK", lock, 1), "sh"}
		path, err := exec.LookPath(prefix[0])
		kit.Must(t, err)
		cmd.Args, cmd.Path = slices.Concat(prefix, []string{cmd.Path}, cmd.Args[1:]), path
		var out strings.Builder
		cmd.Stdout = &out
		said, err := program.Run(t, c.Node, cmd)
		var d diagnosis
		if json.Unmarshal([]byte(out.String()), &d) != nil {
			t.Fatalf("doctor in a container: %v\n%s%s", err, out.String(), said)
		}
		if d.has("xtables-lock") != want {
			t.Errorf("after %q: found %v, want %v: %s", lock, !want, want, d)
		}
	}
}

// TestDoctorFollows shows that one rule of others that many Services suffer from is one finding,
// that a mistake in objects is one of its own, and that a node which works has none.
func TestDoctorFollows(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	c.start(t, app{name: "web", number: 10}.on(c.webs()...), app{name: "api", number: 11}.on(c.Host("web-1")), app{name: "db", number: 12}.on(c.Host("web-3")))
	c.awaitSound(t)
	if d := c.diagnose(t); !strings.Contains(d.String(), "Name:packets to Services State:ok Note:to 3 Services from a pod, outside, the node") {
		t.Fatalf("the check of packets: %s", d)
	}

	const table = "table inet corp { chain guard { type filter hook forward priority filter; ct status dnat tcp dport != 22 drop; }; }\n"
	nft(t, c.Node, table)
	d := c.diagnose(t)
	f, found := d.finding("service-traffic")
	kit.Need(t, found && d.Code == 1 && len(d.Findings) == 1, "with a rule that drops: %s", d)
	for _, part := range []string{"chain guard", "drops packets to 3 of 3 Services (shop/api, shop/db, shop/web)", "from a pod, outside"} {
		kit.Check(t, strings.Contains(f.What, part), "%q is not in %q", part, f.What)
	}
	kit.Check(t, strings.Contains(f.Advice, "look: nft -a list chain inet corp guard; ") && f.Fix == "",
		"fix %q, advice %q", f.Fix, f.Advice)
	_, command, _ := strings.Cut(f.Advice, "one connection of them: kube-proxy explain ")
	code, out := c.ask(t, append([]string{"explain"}, strings.Fields(command)...)...)
	kit.Check(t, code == 1 && strings.Contains(out, "chain guard"), "explain %s ends with %d:\n%s", command, code, out)
	nft(t, c.Node, "delete table inet corp\n")
	c.awaitSound(t)

	web := c.Host("web-1")
	nft(t, web, "table inet mute { chain in { type filter hook input priority 0; tcp dport 8080 drop; }; }\n")
	kit.Until(t, "doctor to find that clients wait", func() bool {
		_, err := program.Run(t, c.Host("shopper"), exec.Command("bash", "-c", "(for i in $(seq 60); do timeout 4 bash -c 'exec 3<>/dev/tcp/10.96.0.11/80' & sleep 0.1; done; wait) >/dev/null 2>&1 &"))
		kit.Must(t, err)
		d = c.diagnose(t)
		return d.has("unanswered")
	})
	if f, _ := d.finding("unanswered"); !strings.Contains(f.What, " to shop/api") || !strings.Contains(f.Advice, c.Host("shopper").IPv4.String()+" 10.96.0.11:80 --probe") {
		t.Errorf("%q, %q", f.What, f.Advice)
	}
	nft(t, web, "delete table inet mute\n")
	c.shell(t, "conntrack -F 2>/dev/null")
	c.awaitSound(t)

	c.write(t, "wrong.yaml", []byte(`{apiVersion: v1, kind: Service, metadata: {name: wrong, namespace: shop}, spec: {clusterIP: 10.96.9.9, ports: [{name: web, port: 80}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: wrong-4, namespace: shop, labels: {kubernetes.io/service-name: wrong}}, addressType: IPv4, ports: [{name: http, port: 80}], endpoints: [{addresses: [10.244.1.11]}]}
`))
	kit.Until(t, "doctor to find the port", func() bool { d = c.diagnose(t); return d.has("port-mismatch") })
	if f, _ := d.finding("port-mismatch"); f.What != "service shop/wrong: endpointslice wrong-4 ports: its ready endpoints are on port http/TCP, none named web/TCP" || d.Code != 1 {
		t.Errorf("%q, exit code %d", f.What, d.Code)
	}
}
