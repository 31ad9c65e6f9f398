// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// diagnosis is what kube-proxy doctor -o json prints.
type diagnosis struct {
	Code     int
	Findings []struct{ ID, Subject, What, Fix, Severity string }
	Checks   []check
}

// check is what became of a check.
type check struct{ Name, State, Note string }

// find returns the fix of the finding of this id, and whether there is one.
func (d diagnosis) find(id string) (fix string, found bool) {
	for _, f := range d.Findings {
		if f.ID == id {
			return f.Fix, true
		}
	}
	return "", false
}

func (d diagnosis) String() string {
	return fmt.Sprintf("exit %d\n%+v\n%+v", d.Code, d.Findings, d.Checks)
}

// diagnose runs doctor on the node, with the flags of the proxy.
func (c *cluster) diagnose(t *testing.T, args ...string) diagnosis {
	t.Helper()
	args = append(append([]string{"--manifests=" + c.dir}, c.mode.flags...), args...)
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
	if out, err := program.Run(t, c.Node, cmd); err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
}

// mends makes a fault, waits until doctor names it, runs the command that doctor prints,
// and waits until it is gone.
func (c *cluster) mends(t *testing.T, id string, fault func()) {
	t.Helper()
	if d := c.diagnose(t); d.has(id) {
		t.Fatalf("%s is found before it is there: %s", id, d)
	}
	fault()
	var d diagnosis
	kit.Until(t, "doctor to find "+id, func() bool { d = c.diagnose(t); return d.has(id) && d.Code == 1 })
	fix, _ := d.find(id)
	if fix == "" {
		t.Fatalf("%s has no command: %s", id, d)
	}
	c.shell(t, fix)
	kit.Until(t, fmt.Sprintf("%s to be gone after %s", id, fix), func() bool { d = c.diagnose(t); return !d.has(id) })
}

func (d diagnosis) has(id string) bool {
	_, found := d.find(id)
	return found
}

// awaitSound waits until doctor finds nothing.
func (c *cluster) awaitSound(t *testing.T, args ...string) {
	t.Helper()
	var d diagnosis
	if !kit.Soon(func() bool { d = c.diagnose(t, args...); return d.Code == 0 }) {
		t.Fatalf("doctor finds something on a sound node: %s", d)
	}
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
	c.save(t, web)
	c.start(t)
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
	c.mends(t, "other-proxy", func() { c.startSecond(t, defaultMode()) })
	c.awaitSound(t)

	// These have no command that a test may run.
	taken := netip.MustParseAddrPort("192.0.2.10:30100")
	l, err := c.Node.Listen(t.Context(), "tcp4", taken.String())
	kit.Must(t, err)
	c.write(t, "checked.yaml", []byte(strings.NewReplacer("NUMBER", "1", "PORT", "30100").Replace(checkedApp)))
	kit.Until(t, "doctor to find what the proxy reports", func() bool {
		d := c.diagnose(t)
		return slices.ContainsFunc(d.Findings, func(f struct{ ID, Subject, What, Fix, Severity string }) bool {
			return f.ID == "proxy-condition" && f.Subject == "health-checks" && f.Severity == "blocks"
		})
	})
	kit.Must(t, l.Close())
	c.shell(t, "nft 'add table inet firewalld; add chain inet firewalld x' && iptables-nft -N ufw-user-input")
	for _, name := range []string{"firewalld", "ufw"} {
		if d := c.diagnose(t); !slices.ContainsFunc(d.Findings, func(f struct{ ID, Subject, What, Fix, Severity string }) bool {
			return f.ID == "firewall" && f.Subject == name
		}) {
			t.Errorf("%s is not found: %s", name, d)
		}
	}
	if d := c.diagnose(t, "--server=127.0.0.1:1"); !d.has("proxy-silent") {
		t.Errorf("a proxy that cannot be asked is not found: %s", d)
	}
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
	for _, f := range service.Families {
		p.AwaitLog(t, `"Programmed"`, c.mode.proxyMode()+" "+f.String())
	}
	answered := func() bool { return healthCheckOwner(c.Host("customer"), "http://192.0.2.10:30100/") == "checked-1" }
	kit.Until(t, "the health check", answered)
	c.mends(t, "input-policy", func() {
		c.shell(t, "iptables-nft -A INPUT -i lo -j ACCEPT && iptables-nft -P INPUT DROP")
		if answered() {
			t.Fatal("the chain does not drop")
		}
	})
	if !answered() {
		t.Error("the command does not let the health check in")
	}
}

// TestDoctorBeforeTheStart makes faults on a node without a proxy.
func TestDoctorBeforeTheStart(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	web := app{name: "web", number: 10}.on(c.webs()...)
	c.save(t, web)
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
	if d := c.diagnose(t, "--cluster-cidr=10.1.0.0/16"); !d.has("pod-cidr") || d.Code != 1 {
		t.Errorf("a cluster CIDR that does not hold the Node's is not found: %s", d)
	}
	if d := c.diagnose(t, "--hostname-override=nobody"); !d.has("node-unknown") || d.Code != 1 {
		t.Errorf("an unknown Node is not found: %s", d)
	}
	if d := c.diagnose(t, "--hostname-override="+netlab.OtherName); !d.has("node-unknown") {
		t.Errorf("the Node of another machine is not found: %s", d)
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
	if diff := cmp.Diff(before, look()); diff != "" {
		t.Errorf("doctor changed the node (-before +after):\n%s", diff)
	}
}

// TestDoctorOfABridge has pods on a bridge whose packets do not pass netfilter.
func TestDoctorOfABridge(t *testing.T) {
	t.Parallel()
	m := defaultMode()
	m.bridge = "br-pods"
	c := newCluster(t, m)
	const name = "net/bridge/bridge-nf-call-iptables"
	if _, err := os.Stat("/proc/sys/" + name); err != nil { // nothing a test may load
		if fix, _ := c.diagnose(t).find("br-netfilter"); !strings.HasPrefix(fix, "modprobe br_netfilter && ") {
			t.Errorf("fix %q, want the module", fix)
		}
		return
	}
	c.set(t, name, "1")
	c.set(t, "net/bridge/bridge-nf-call-ip6tables", "1")
	c.awaitSound(t)
	c.mends(t, "br-netfilter", func() { c.set(t, name, "0") })
}

// TestDoctorOfMarks has another program route by a mark with the masquerade bit, as wg-quick
// does. Only mode ipvs is concerned, with that bit.
func TestDoctorOfMarks(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	c.save(t, app{name: "web", number: 10, plain: true}.on(c.Host("web-1")))
	c.start(t)
	found := func(want bool, args ...string) {
		t.Helper()
		if d := c.diagnose(t, args...); d.has("shared-mark") != want {
			t.Errorf("%v: want shared-mark: %t, found %s", args, want, d)
		}
	}
	found(false, "--all-modes")
	c.shell(t, "ip rule add not fwmark 51820 table 51820 && ip -6 rule add not fwmark 51820 table 51820")
	found(true, "--all-modes")
	found(true, "--proxy-mode=ipvs")
	found(false, "--all-modes", "--iptables-masquerade-bit=16")
	found(false)
}
