// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/takeover"
	"kubeproxy/test/kit"
)

// deniedVariable makes the test program look for the layer below a folder, and print what
// comes of it.
const deniedVariable = "SOCKETLB_DENIED"

func lookForLayer(pins string) {
	o := Options{Pins: pins, Cgroup: "/", Off: true}
	l := Leftovers{Family: service.IPv4, Options: o}
	found, findErr := l.Find(context.Background())
	removeErr := l.Remove(context.Background())
	for _, err := range []error{findErr, removeErr} {
		if e := takeover.AsUnchecked(err); found != "" || e == nil || e.Suspected || !strings.Contains(e.Error(), "want the capability SYS_ADMIN, or the BPF file system") {
			fmt.Printf("%q, %v is not an answer of somebody who may not look; ", found, err)
		}
	}
	b := New(service.IPv4, NewDriver(service.IPv4, o), o)
	if _, err := b.Plan(context.Background(), snapshot()); err != nil {
		fmt.Printf("a round fails: %v", err)
	}
}

// TestNothingIsFoundWithoutRights covers a process that may not look into the BPF file
// system. It says so. Its rounds must not fail for a layer that it does not want.
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
	if err != nil || len(out) > 0 {
		t.Errorf("%v: %s", err, out)
	}
}

// TestSearchWithoutRights looks for the layer, there or not, as a process without the right
// to list links. It may still see pins, or count programs.
func TestSearchWithoutRights(t *testing.T) {
	inNode(t, func(n *node) {
		hidden := n.options
		hidden.Pins = t.TempDir()
		counts := []int{unix.CAP_SYS_ADMIN} // before Linux 6.0, CAP_BPF may be needed, too
		blind := []int{unix.CAP_SYS_ADMIN, unix.CAP_BPF, unix.CAP_NET_ADMIN}
		s := snapshot([]string{"10.96.0.10:80", "127.0.0.1:1"}, []string{"[fd00:10:96::10]:80", "[::1]:1"})
		for situation, c := range map[string]struct {
			lacks   []int
			options Options
			wanted  bool
			// with and without the layer, of either family
			with, without string
		}{
			"all rights":                  {nil, hidden, false, "programs programs", " "},
			"pins":                        {counts, n.options, false, "programs programs", " "},
			"counts":                      {counts, hidden, false, "suspected suspected", " "},
			"no rights":                   {blind, hidden, false, "unchecked unchecked", "unchecked unchecked"},
			"no rights, and it is wanted": {blind, hidden, true, "suspected suspected", "suspected suspected"},
		} {
			n.cleanUp(t)
			disturbed := attachedAbove(t, n.options.Cgroup)
			got := search(t, c.lacks, Leftovers{Options: c.options, Wanted: c.wanted})
			if got != c.without && !disturbed && !attachedAbove(t, n.options.Cgroup) {
				t.Errorf("%s, without the layer: %s, want %s", situation, got, c.without)
			}
			n.sync(t, s)
			if got := search(t, c.lacks, Leftovers{Options: c.options, Wanted: c.wanted}); got != c.with {
				t.Errorf("%s, with the layer: %s, want %s", situation, got, c.with)
			}
		}
	})
}

// attachedAbove reports whether other tests have attached programs above a cgroup.
func attachedAbove(t *testing.T, cgroup string) bool {
	t.Helper()
	dir, err := os.Open(filepath.Dir(cgroup))
	kit.Must(t, err)
	defer dir.Close()
	there, err := programsAt(int(dir.Fd()), ebpf.AttachCgroupInet6GetPeername, unix.BPF_F_QUERY_EFFECTIVE)
	kit.Must(t, err)
	return len(there.ids) > 0
}

// search says, for each family, what comes of a look without capabilities.
func search(t *testing.T, lacks []int, l Leftovers) string {
	t.Helper()
	var all []string
	for _, l.Family = range service.Families {
		var found string
		var err error
		without(t, lacks, func() { found, err = l.Find(t.Context()) })
		switch e := takeover.AsUnchecked(err); {
		case e != nil && e.Suspected:
			found = "suspected"
		case e != nil:
			found = "unchecked"
		default:
			kit.Must(t, err)
		}
		all = append(all, found)
	}
	return strings.Join(all, " ")
}

// TestRemoveReachesEachPlace detaches all programs where their pins cannot be seen.
func TestRemoveReachesEachPlace(t *testing.T) {
	inNode(t, func(n *node) {
		n.sync(t, snapshot([]string{"10.96.0.10:80", "127.0.0.1:1"}, []string{"[fd00:10:96::10]:80", "[::1]:1"}))
		n.close(t)
		hidden := n.options
		hidden.Pins = t.TempDir()
		dir, err := os.Open(n.options.Cgroup)
		kit.Must(t, err)
		defer dir.Close()
		for _, f := range service.Families {
			kit.Must(t, Leftovers{Family: f, Options: hidden}.Remove(t.Context()))
		}
		for _, places := range attachments {
			for _, a := range places {
				if there, err := programsAt(int(dir.Fd()), a.attach, 0); len(there.ids) > 0 || err != nil {
					t.Errorf("%s: programs %d are left, %v", a.program, there.ids, err)
				}
			}
		}
	})
}

// without calls fn in this thread without capabilities.
func without(t *testing.T, lacks []int, fn func()) {
	t.Helper()
	self := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var all [2]unix.CapUserData
	kit.Must(t, unix.Capget(&self, &all[0]))
	fewer := all
	for _, right := range lacks {
		fewer[right/32].Effective &^= 1 << (right % 32)
	}
	kit.Must(t, unix.Capset(&self, &fewer[0]))
	defer func() { kit.Must(t, unix.Capset(&self, &all[0])) }()
	fn()
}

// TestMissingRightsAreNamed takes capabilities from this thread. What comes of it names
// them, and says the same each time: a log has it once.
func TestMissingRightsAreNamed(t *testing.T) {
	inNode(t, func(n *node) {
		s := snapshot([]string{"10.96.0.10:80", "127.0.0.1:1"})
		for _, c := range []struct {
			lacks []int
			want  string
		}{
			{[]int{unix.CAP_BPF, unix.CAP_PERFMON}, "CAP_BPF, CAP_PERFMON"},
			{[]int{unix.CAP_PERFMON}, "CAP_PERFMON"},
			{[]int{unix.CAP_NET_ADMIN}, "CAP_NET_ADMIN"},
		} {
			n.open(t)
			var o reconcile.Outcome
			without(t, append(c.lacks, unix.CAP_SYS_ADMIN), func() { _, o = round(t, n.backends[0], s) })
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

// TestFailedBuildsLeaveNothing has the layer built in vain, again and again.
func TestFailedBuildsLeaveNothing(t *testing.T) {
	inNode(t, func(n *node) {
		k := NewDriver(service.IPv4, n.options).(*kernel)
		defer k.Release()
		k.scope = func() (scope, error) { return scope{}, errInjected }
		var files [6]int
		for i := range files {
			if _, err := k.Build(16, 16); !errors.Is(err, errInjected) {
				t.Fatalf("Build = %v", err)
			}
			open, err := os.ReadDir("/proc/self/fd")
			kit.Must(t, err)
			files[i] = len(open)
		}
		if files[5]-files[0] > 10 { // each has a file for each map and program
			t.Errorf("open files after each: %v", files)
		}
	})
}

// TestMapThatLeft asks for a map that is gone, as between two steps of a search.
func TestMapThatLeft(t *testing.T) {
	newCgroup(t) // or skip
	if _, err := (&kernel{}).isScope(math.MaxUint32); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, want that it does not exist", err)
	}
}
