// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"kubeproxy/test/kit"
	"kubeproxy/test/vm"
)

// machine returns the default machine. It skips the test if there is none.
func machine(t *testing.T) vm.Machine {
	t.Helper()
	m, err := vm.Prepare(t.Context(), vm.DefaultKernel, os.Stderr)
	if errors.Is(err, vm.ErrMissing) {
		t.Skip(err)
	}
	kit.Must(t, err)
	return m
}

// TestCommand checks the files that go in and come out, and that standard output and
// standard error stay apart.
func TestCommand(t *testing.T) {
	m := machine(t)
	dir := t.TempDir()
	for name, text := range map[string]string{"in/one": "1", "in/deep/two": "2"} {
		file := filepath.Join(dir, name)
		kit.Must(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o600)))
	}
	const script = `pwd; echo "$0|$1|$WORD"; echo complaint >&2; uname -r; nproc
mkdir -p /root/out/deep; cp /in/one /root/out; cp /in/deep/two /root/out/deep; exit 7`
	var out, complaints bytes.Buffer
	code, err := m.Run(t.Context(), vm.Job{
		Command: []string{"bash", "-c", script, "it's", "two words"},
		Dir:     "/some/where", Env: []string{"WORD=a $b 'c'"}, CPUs: 2, Timeout: 2 * time.Minute,
		Files:   map[string]string{filepath.Join(dir, "in"): "/in"},
		Outputs: map[string]string{"/root/out": filepath.Join(dir, "out"), "/not/there": filepath.Join(dir, "not")},
		Stdout:  &out, Stderr: &complaints,
	})
	kit.Check(t, err == nil && code == 7, "exit code %d, %v; want 7", code, err)
	if want := "/some/where\nit's|two words|a $b 'c'\n" + m.Release() + "\n2\n"; out.String() != want {
		t.Errorf("output %q, want %q", out.String(), want)
	}
	if complaints.String() != "complaint\n" {
		t.Errorf("complaints %q", complaints.String())
	}
	for name, want := range map[string]string{"out/one": "1", "out/deep/two": "2"} {
		got, err := os.ReadFile(filepath.Join(dir, name))
		kit.Check(t, string(got) == want, "%s: %q, %v; want %q", name, got, err, want)
	}
}

// slowWriter waits before it takes anything: for a while, or until the emulator has ended.
type slowWriter struct {
	bytes.Buffer
	waited bool
}

// Write implements io.Writer.
func (w *slowWriter) Write(b []byte) (int, error) {
	for end := time.Now().Add(5 * time.Second); !w.waited && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if exec.Command("pgrep", "--parent", strconv.Itoa(os.Getpid()), "qemu").Run() != nil {
			break
		}
	}
	w.waited = true
	return w.Buffer.Write(b)
}

// TestSlowReader checks that nothing is lost of what a machine leaves when this one is slow
// to take it. Without drain in init.sh it fails on a busy machine, in one of two runs.
func TestSlowReader(t *testing.T) {
	const size = 512 << 10 // the pipes of the emulator take less, and the queues of the ports more
	var out slowWriter
	file := filepath.Join(t.TempDir(), "out")
	script := fmt.Sprintf("yes | head -c %d | tee /root/out", size)
	code, err := machine(t).Run(t.Context(), vm.Job{
		Command: []string{"bash", "-c", script}, Timeout: 2 * time.Minute, Stdout: &out, Outputs: map[string]string{"/root/out": file},
	})
	if err != nil || code != 0 || out.Len() != size || bytes.IndexByte(out.Bytes(), 0) >= 0 {
		t.Errorf("exit code %d, %v, output of %d bytes, want %d without zeros", code, err, out.Len(), size)
	}
	if got, err := os.ReadFile(file); err != nil || len(got) != size {
		t.Errorf("a file of %d bytes, %v; want %d", len(got), err, size)
	}
}

// TestDisk checks that a machine reads its disk and writes to it, that the disk stays as it
// is, and that a container can have a root of its own there.
func TestDisk(t *testing.T) {
	dir := t.TempDir()
	disk, parts := filepath.Join(dir, "disk"), filepath.Join(dir, "parts")
	err := errors.Join(os.Mkdir(parts, 0o755), os.WriteFile(filepath.Join(parts, "file"), []byte("content\n"), 0o600))
	kit.Must(t, err)
	if out, err := exec.Command("/sbin/mkfs.ext4", "-q", "-d", parts, disk, "8M").CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v\n%s", err, out)
	}
	before := kit.ReadFile(t, disk)
	const script = `pwd; cat /disk/file; echo changed >/disk/file; sync; cat /disk/file; cp /disk/file /root/out
grep -o ' /root/.cache tmpfs' /proc/mounts | sort -u
unshare --mount bash -c 'mkdir /x; mount -t tmpfs x /x; mkdir /x/old; cd /x; pivot_root . old && echo pivoted'`
	var out bytes.Buffer
	code, err := machine(t).Run(t.Context(), vm.Job{
		Command: []string{"bash", "-c", script}, Dir: "/some/where", Disk: disk, Fast: true, Stdout: &out, Stderr: &out,
		Outputs: map[string]string{"/root/out": filepath.Join(dir, "out")},
	})
	if want := "/some/where\ncontent\nchanged\n /root/.cache tmpfs\npivoted\n"; err != nil || code != 0 || out.String() != want {
		t.Errorf("exit code %d, %v, output %q, want %q", code, err, out.String(), want)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "out")); string(got) != "changed\n" {
		t.Errorf("what the machine left is %q, %v", got, err)
	}
	if after, err := os.ReadFile(disk); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the disk has changed, %v", err)
	}
}

// TestTimeout checks that a command that hangs is ended, and that its output until then
// is kept.
func TestTimeout(t *testing.T) {
	var out bytes.Buffer
	code, err := machine(t).Run(t.Context(), vm.Job{
		Command: []string{"bash", "-c", "echo begun; while :; do :; done"}, Timeout: 30 * time.Second, Stdout: &out,
	})
	kit.Check(t, errors.Is(err, vm.ErrTimeout) && strings.Contains(err.Error(), "starts the command"),
		"exit code %d, %v; want a timeout and the console", code, err)
	if out.String() != "begun\n" {
		t.Errorf("output %q", out.String())
	}
}

// TestSleep checks that a sleeping machine takes no time.
func TestSleep(t *testing.T) {
	begin := time.Now()
	code, err := machine(t).Run(t.Context(), vm.Job{Command: []string{"sleep", "3600"}})
	took := time.Since(begin)
	kit.Check(t, err == nil && code == 0 && took <= 30*time.Minute, "exit code %d, %v, after %s", code, err, took)
}

// TestPanic checks that a kernel panic is an error, whatever the command's result.
func TestPanic(t *testing.T) {
	code, err := machine(t).Run(t.Context(), vm.Job{Command: []string{"bash", "-c", "echo c >/proc/sysrq-trigger; sleep 1000"}})
	kit.Check(t, errors.Is(err, vm.ErrDied) && strings.Contains(err.Error(), "sysrq"),
		"exit code %d, %v; want death and its reason", code, err)
}

// features are what tests expect of the kernel and its programs. Each script succeeds if
// the feature exists.
var features = map[string]string{
	"IPVS":                        "modprobe ip_vs && ipvsadm -A -t 10.0.0.1:80 -s rr && ipvsadm -a -t 10.0.0.1:80 -r 10.0.0.2:80 -m",
	"IPVS for IPv6":               "ipvsadm -A -t [fd00::1]:80 -s rr",
	"IPVS for SCTP":               "ipvsadm -A --sctp-service 10.0.0.1:80 -s rr",
	"the schedulers of IPVS":      "for s in rr wrr lc wlc dh sh sed nq mh; do modprobe ip_vs_$s; done",
	"ipset":                       "ipset create a hash:ip,port && ipset add a 10.0.0.1,sctp:80",
	"ipset of networks":           "ipset create b hash:ip,port,net",
	"nftables":                    "nft add table ip a && nft add chain ip a b '{ type nat hook output priority -100; }'",
	"iptables-nft with ipset":     "ipset create c hash:ip && iptables-nft -t nat -A OUTPUT -m set --match-set c dst -j ACCEPT",
	"iptables-legacy with ipset":  "ipset create d hash:ip && iptables-legacy -t nat -A OUTPUT -m set --match-set d dst -j ACCEPT",
	"ip6tables-nft translation":   "ip6tables-nft -t nat -A OUTPUT -p tcp -j DNAT --to-destination [fd00::2]:80",
	"ip6tables-legacy recent":     "ip6tables-legacy -t nat -A OUTPUT -m recent --name a --rcheck --seconds 10 --reap -j ACCEPT",
	"iptables-legacy statistic":   "iptables-legacy -t nat -A OUTPUT -m statistic --mode random --probability 0.5 -j ACCEPT",
	"iptables-nft of IPVS":        "iptables-nft -A FORWARD -m ipvs --ipvs -j ACCEPT",
	"SCTP sockets":                "test -r /proc/net/sctp/snmp",
	"conntrack":                   "conntrack -L",
	"network namespaces":          "ip netns add a && ip -n a link add veth-a type veth peer name veth-b",
	"filtering of bridged frames": "test -e /proc/sys/net/bridge/bridge-nf-call-iptables",
}

func TestFeatures(t *testing.T) {
	var script strings.Builder
	for name, line := range features {
		script.WriteString("{ " + line + "; } >/tmp/said 2>&1 || { echo '" + name + ":'; cat /tmp/said; }\n")
	}
	var out bytes.Buffer
	code, err := machine(t).Run(t.Context(), vm.Job{Command: []string{"bash", "-c", script.String()}, Stdout: &out, Stderr: &out})
	if err != nil || out.String() != "" {
		t.Errorf("exit code %d, %v; missing:\n%s", code, err, out.String())
	}
}

// TestGoTest runs a test binary as go test -exec does: the binary goes in, coverage comes
// back, and a failed test is a failure.
func TestGoTest(t *testing.T) {
	machine(t)
	profile := filepath.Join(t.TempDir(), "cover")
	test := func(args ...string) (string, error) {
		args = append([]string{"test", "-count=1", "-exec", "go run kubeproxy/test/vm/run", "-v"}, args...)
		cmd := exec.CommandContext(t.Context(), "go", append(args, "./testdata/tiny")...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := test("-run", "Good", "-coverprofile="+profile); err != nil || !strings.Contains(out, "on kernel "+vm.DefaultKernel) {
		t.Errorf("a good test: %v\n%s", err, out)
	}
	if text, err := os.ReadFile(profile); err != nil || !strings.Contains(string(text), "tiny.go:") {
		t.Errorf("coverage: %v %q", err, text)
	}
	if out, err := test("-run", "Bad"); err == nil || !strings.Contains(out, "--- FAIL: TestBad") {
		t.Errorf("a bad test: %v\n%s", err, out)
	}
}

func TestUnknownKernel(t *testing.T) {
	_, err := vm.Prepare(t.Context(), "2.4", os.Stderr)
	kit.Check(t, err != nil && strings.Contains(err.Error(), "must be one of 5.10"), "error %v", err)
}

// lackingScript starts the proxy where a feature is missing. It hides modules before
// their first use, or unloads them.
const lackingScript = `try() {
	timeout 60 $in kube-proxy --proxy-mode=$* --manifests=/tmp/none --hostname-override=node --cluster-cidr=10.0.0.0/8,fd00::/48 \
		--conntrack-max-per-core=0 2>/tmp/said >/dev/null
	echo "$1: exit $?: $(tr '\n' ' ' </tmp/said)"
}
without() {
	rmmod $* 2>/dev/null
	for module in $*; do rm -f $(find /usr/lib/modules -name $module.ko); done
}
hidden() {
	file=$(find /usr/lib/modules -name $1.ko)
	mv $file /tmp/hidden
	try ipvs
	mv /tmp/hidden $file
}
mkdir /tmp/none
mv /usr/sbin/iptables /tmp/iptables
try ipvs
mv /tmp/iptables /usr/sbin/iptables
for module in ip_set ip_set_hash_ipportnet xt_set; do hidden $module; done
in="/usr/bin/setpriv --bounding-set=-net_raw --inh-caps=-net_raw" try ipvs
in="unshare --user --map-root-user --net" try ipvs
without ip_vs_rr
try ipvs
without dummy
try ipvs --ipvs-scheduler=wrr
without $(lsmod | sed -n 's/^\(ip_vs_[a-z]*\) .*/\1/p') ip_vs
try ipvs
without nft_numgen nft_masq xt_statistic
try nftables
try iptables`

// TestKernelLacks checks that a mode whose node lacks a feature ends with one sentence
// that names it.
func TestKernelLacks(t *testing.T) {
	const ipvs = "kube-proxy: mode ipvs cannot work here: IPv4 is the primary family by bindAddress 0.0.0.0 and cannot be programmed: "
	const lacks = ipvs + "IPVS for IPv4: "
	want := [][]string{
		{"ipvs: exit 1: ", ipvs, "the command iptables is missing: install iptables"},
		{"ipvs: exit 1: ", ipvs, "there are no ipsets of type hash:ip (kernel modules ip_set and ip_set_hash_ip): "},
		{"ipvs: exit 1: ", ipvs, "there are no ipsets of type hash:ip,port,net (kernel modules ip_set and ip_set_hash_ipportnet): "},
		{"ipvs: exit 1: ", ipvs, "there is no match set (kernel module xt_set): "},
		{"ipvs: exit 1: ", ipvs, "the right CAP_NET_RAW is needed to ask for ipsets: "},
		{"ipvs: exit 1: ", lacks, "the right CAP_NET_ADMIN is needed"},
		{"ipvs: exit 1: ", lacks, `the kernel has no scheduler "rr" (module ip_vs_rr): it has dh, `},
		{"ipvs: exit 1: ", lacks, "a kernel with dummy interfaces is needed (module dummy)"},
		{"ipvs: exit 1: ", lacks, "the kernel has no IPVS (module ip_vs)"},
		{"nftables: exit 1: ", "kube-proxy: mode nftables cannot work here", "(module nft_numgen and nft_nat), masquerading in rules (module nft_masq): "},
		{"iptables: exit 1: ", "kube-proxy: mode iptables cannot work here", "there is no match statistic (kernel module xt_statistic)"},
	}
	checkLines(t, runScript(t, lackingScript), want)
}

// checkLines checks that each line of out contains all of want's parts.
func checkLines(t *testing.T, out string, want [][]string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(out), "\n")
	kit.Need(t, len(lines) == len(want), "%d lines, want %d:\n%s", len(lines), len(want), out)
	for i, parts := range want {
		for _, part := range parts {
			if !strings.Contains(lines[i], part) {
				t.Errorf("%q lacks %q", lines[i], part)
			}
		}
	}
}

// conntrackScript serves a Service in each mode while the kernel cannot list connections,
// until it can again.
const conntrackScript = `mkdir /tmp/some
cat >/tmp/some/web.yaml <<END
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.1, ports: [{name: web, port: 80}, {name: dns, port: 53, protocol: UDP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: web, port: 8080}, {name: dns, port: 8053, protocol: UDP}]
endpoints: [{addresses: [10.0.0.9]}]
END
echo hello >/tmp/some/page
sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
ip address add 10.0.0.9/32 dev lo
ip route add default dev lo
busybox httpd -p 10.0.0.9:8080 -h /tmp/some
wait_for() {
	for i in $(seq 60); do
		"$@" && return
		sleep 1
	done
	echo "never: $*"
}
start="--manifests=/tmp/some/web.yaml --hostname-override=node --cluster-cidr=10.0.0.0/8 --conntrack-max-per-core=0"
reported() { kube-proxy status -o json 2>/dev/null | grep -q stale-connections-IPv4; }
unreported() { ! reported; }
serves() {
	file=$(find /usr/lib/modules -name nf_conntrack_netlink.ko)
	rmmod nf_conntrack_netlink
	mv $file /tmp/hidden
	kube-proxy --proxy-mode=$1 $start 2>/tmp/said >/dev/null &
	proxy=$!
	wait_for reported
	kube-proxy status >/tmp/status
	echo "$1: exit $?, got $(busybox wget -q -O - http://10.96.0.1/page): $(tr -s '\n ' ' ' </tmp/status)"
	mv /tmp/hidden $file
	sed -i 's/port: 80[0-9][0-9], protocol/port: '$2', protocol/' /tmp/some/web.yaml
	wait_for unreported
	kill $proxy
	wait $proxy
	grep 'Stale connections' /tmp/said
	kube-proxy --cleanup 2>/dev/null
}
port=8053
for mode in nftables iptables ipvs userspace; do serves $mode $((++port)); done`

// TestKernelListsNoConnections checks that a proxy whose kernel cannot list connections
// serves, and reports it until the module is there.
func TestKernelListsNoConnections(t *testing.T) {
	const (
		text   = "the kernel lacks the module nf_conntrack_netlink: load it with modprobe"
		failed = `"Stale connections could not all be removed" err="list IPv4 conntrack entries: ` + text + `" backend="`
		again  = `"Stale connections are removed again" backend="`
	)
	var want [][]string
	for _, mode := range []string{"nftables", "iptables", "ipvs", "userspace"} {
		want = append(want, []string{mode + ": exit 0, got hello: ", "1 Service: all programmed", "stale-connections-IPv4 ", text},
			[]string{failed + mode}, []string{again + mode})
	}
	checkLines(t, runScript(t, conntrackScript), want)
}

// untrackedScript starts each mode on a kernel that tracks no connections.
const untrackedScript = `for i in 1 2 3 4; do
	for module in nf_conntrack_netlink iptable_nat ip6table_nat iptable_filter ip6table_filter nft_compat nft_chain_nat nft_ct nft_nat nft_masq \
		ip_vs_rr ip_vs nf_nat br_netfilter nf_conntrack; do rmmod $module 2>/dev/null; done
done
rm -f $(find /usr/lib/modules -name nf_conntrack.ko)
mkdir /tmp/none
start="--manifests=/tmp/none --hostname-override=node --cluster-cidr=10.0.0.0/8 --conntrack-max-per-core=0 --conntrack-tcp-timeout-established=0 --conntrack-tcp-timeout-close-wait=0"
for mode in nftables iptables ipvs userspace; do
	timeout 60 kube-proxy --proxy-mode=$mode $start 2>/tmp/said >/dev/null
	echo "$mode: exit $?: $(tail -n 1 /tmp/said)"
done
kube-proxy --init-only $start 2>/tmp/said >/dev/null
echo "init-only: exit $?: $(tr '\n' ' ' </tmp/said)"`

// TestKernelTracksNoConnections checks that no mode starts on such a kernel, and that one
// sentence says why.
func TestKernelTracksNoConnections(t *testing.T) {
	const none = "the kernel has no connection tracking (module nf_conntrack): "
	var want [][]string
	for _, mode := range []string{"nftables", "iptables", "ipvs", "userspace"} {
		want = append(want, []string{mode + ": exit 1: kube-proxy: mode " + mode + " cannot work here: ", "cannot be programmed: " + none})
	}
	want = append(want, []string{"init-only: exit 0: ", none})
	checkLines(t, runScript(t, untrackedScript), want)
}

// runScript runs a script in the machine, and returns its output.
func runScript(t *testing.T, script string) string {
	t.Helper()
	var out bytes.Buffer
	code, err := machine(t).Run(t.Context(), vm.Job{Command: []string{"bash", "-c", script}, Proxy: true, Stdout: &out, Stderr: &out})
	kit.Check(t, err == nil && code == 0, "exit code %d, %v", code, err)
	return out.String()
}
