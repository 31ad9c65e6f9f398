// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
)

// deniedVariable makes the test program look for the layer below a folder, and print what
// comes of it.
const deniedVariable = "SOCKETLB_DENIED"

func lookForLayer(pins string) {
	d := NewDriver(service.IPv4, Options{Pins: pins, Cgroup: "/"})
	found, err := d.Installed()
	if !found && err == nil && d.Remove() == nil {
		os.Stdout.WriteString("nothing")
	}
}

// TestNothingIsFoundWithoutRights covers a process that may not look into the BPF file
// system. Its rounds must not fail for a layer that it does not want.
func TestNothingIsFoundWithoutRights(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("another user needs root")
	}
	pins := filepath.Join(t.TempDir(), "pins")
	if err := os.MkdirAll(pins, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), deniedVariable+"="+pins)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "nothing" {
		t.Errorf("%v: %s", err, out)
	}
}

// TestMissingRightsAreNamed takes capabilities from this thread. What comes of it names
// them, and says the same each time: a log has it once.
func TestMissingRightsAreNamed(t *testing.T) {
	inNode(t, func(n *node) {
		self := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var all [2]unix.CapUserData
		must(t, unix.Capget(&self, &all[0]))
		s := snapshot([]string{"10.96.0.10:80", "127.0.0.1:1"})
		for _, c := range []struct {
			lacks []int
			want  string
		}{
			{[]int{unix.CAP_BPF, unix.CAP_PERFMON}, "CAP_BPF, CAP_PERFMON"},
			{[]int{unix.CAP_PERFMON}, "CAP_PERFMON"},
			{[]int{unix.CAP_NET_ADMIN}, "CAP_NET_ADMIN"},
		} {
			fewer := all
			fewer[0].Effective &^= 1 << unix.CAP_SYS_ADMIN
			for _, right := range c.lacks {
				fewer[right/32].Effective &^= 1 << (right % 32)
			}
			n.open(t)
			must(t, unix.Capset(&self, &fewer[0])) // of this thread
			_, o := round(t, n.backends[0], s)
			must(t, unix.Capset(&self, &all[0]))
			if !strings.HasSuffix(o.Degraded, "more rights are needed: "+c.want) {
				t.Errorf("%q does not name %s", o.Degraded, c.want)
			}
		}
	})
}

// TestFirstRefusal has the kernel refuse all programs. The error is that of the first one.
func TestFirstRefusal(t *testing.T) {
	newCgroup(t) // or skip
	refused := &ebpf.CollectionSpec{Programs: map[string]*ebpf.ProgramSpec{}}
	for _, a := range attachments[service.IPv4] {
		refused.Programs[a.program] = &ebpf.ProgramSpec{Type: ebpf.CGroupSockAddr, AttachType: a.attach, Instructions: asm.Instructions{asm.Return()}}
	}
	k := kernel{family: service.IPv4}
	want := attachments[service.IPv4][0].program + ":"
	for range 5 {
		if err := k.firstRefusal(refused, ebpf.CollectionOptions{}, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want that of %s", err, want)
		}
	}
}
