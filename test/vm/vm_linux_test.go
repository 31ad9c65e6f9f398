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

	"kubeproxy/test/vm"
)

// machine returns the default machine. It skips the test if there is none.
func machine(t *testing.T) vm.Machine {
	t.Helper()
	m, err := vm.Prepare(t.Context(), vm.DefaultKernel, os.Stderr)
	if errors.Is(err, vm.ErrMissing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestCommand checks the files that go in and come out, and that standard output and
// standard error stay apart.
func TestCommand(t *testing.T) {
	m := machine(t)
	dir := t.TempDir()
	for name, text := range map[string]string{"in/one": "1", "in/deep/two": "2"} {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
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
	if err != nil || code != 7 {
		t.Errorf("exit code %d, %v; want 7", code, err)
	}
	if want := "/some/where\nit's|two words|a $b 'c'\n" + m.Release() + "\n2\n"; out.String() != want {
		t.Errorf("output %q, want %q", out.String(), want)
	}
	if complaints.String() != "complaint\n" {
		t.Errorf("complaints %q", complaints.String())
	}
	for name, want := range map[string]string{"out/one": "1", "out/deep/two": "2"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); string(got) != want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, want)
		}
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
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("/sbin/mkfs.ext4", "-q", "-d", parts, disk, "8M").CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v\n%s", err, out)
	}
	before, err := os.ReadFile(disk)
	if err != nil {
		t.Fatal(err)
	}
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
	if !errors.Is(err, vm.ErrTimeout) || !strings.Contains(err.Error(), "starts the command") {
		t.Errorf("exit code %d, %v; want a timeout and the console", code, err)
	}
	if out.String() != "begun\n" {
		t.Errorf("output %q", out.String())
	}
}

// TestSleep checks that a sleeping machine takes no time.
func TestSleep(t *testing.T) {
	begin := time.Now()
	code, err := machine(t).Run(t.Context(), vm.Job{Command: []string{"sleep", "3600"}})
	if took := time.Since(begin); err != nil || code != 0 || took > 30*time.Minute {
		t.Errorf("exit code %d, %v, after %s", code, err, took)
	}
}

// TestPanic checks that a kernel panic is an error, whatever the command's result.
func TestPanic(t *testing.T) {
	code, err := machine(t).Run(t.Context(), vm.Job{Command: []string{"bash", "-c", "echo c >/proc/sysrq-trigger; sleep 1000"}})
	if !errors.Is(err, vm.ErrDied) || !strings.Contains(err.Error(), "sysrq") {
		t.Errorf("exit code %d, %v; want death and its reason", code, err)
	}
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
	if _, err := vm.Prepare(t.Context(), "2.4", os.Stderr); err == nil || !strings.Contains(err.Error(), "must be one of 5.10") {
		t.Errorf("error %v", err)
	}
}
