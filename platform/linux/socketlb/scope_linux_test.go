// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
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

// TestWhoIsTaken has processes in all sorts of cgroups and network namespaces connect. A
// taken one is refused where its namespace has no such endpoint. The others have no way.
func TestWhoIsTaken(t *testing.T) {
	const taken, left = "connection refused", "network is unreachable"
	inNode(t, func(n *node) {
		outside, err := filepath.Abs(filepath.Dir(n.options.Cgroup))
		kit.Must(t, err)
		cases := map[string]struct {
			below string // the cgroup of the layer
			flags uintptr
			want  string
		}{
			"process of the node":                {"system.slice", 0, ""},
			"container on the node":              {"system.slice", unix.CLONE_NEWNET, left},
			"pod of class guaranteed":            {"kubepods/pod1/c1", unix.CLONE_NEWNET, taken},
			"pod of class burstable":             {"kubepods/burstable/pod2/c1", unix.CLONE_NEWNET, taken},
			"pod of class besteffort":            {"kubepods/besteffort/pod3/c1", unix.CLONE_NEWNET, taken},
			"pod on the network of the node":     {"kubepods/besteffort/pod4/c1", 0, ""},
			"crun has a level more":              {"kubepods/burstable/pod2/c4/container", unix.CLONE_NEWNET, taken},
			"an init system, guaranteed":         {"kubepods/pod1/c4/init.scope", unix.CLONE_NEWNET, taken},
			"container in a container":           {"kubepods/pod1/c2/docker/c9", unix.CLONE_NEWNET, left},
			"container in one of burstable":      {"kubepods/burstable/pod2/c2/libpod_parent/libpod-1", unix.CLONE_NEWNET, left},
			"container in one of crun":           {"kubepods/burstable/pod2/c4/container/docker/c9", unix.CLONE_NEWNET, left},
			"container deep in a container":      {"kubepods/pod1/c3/kubelet/kubepods/pod9/c1", unix.CLONE_NEWNET, left},
			"beside the containers, guaranteed":  {"kubepods/pod5", unix.CLONE_NEWNET, left},
			"beside the containers, burstable":   {"kubepods/burstable/pod5", unix.CLONE_NEWNET, left},
			"process of the node, not in cgroup": {"..", 0, left},
		}
		for _, c := range cases {
			if c.below != ".." {
				subgroup(t, n.options.Cgroup, c.below)
			}
		}
		at := greeter(t, "127.0.0.1:0").String()
		n.sync(t, snapshot([]string{"10.96.0.10:80", at}))
		for name, c := range cases { // a subtest would leave the thread, and its namespace
			cgroup := filepath.Join(n.options.Cgroup, c.below)
			if c.below == ".." {
				cgroup = outside
			}
			a := startClient(t, cgroup, c.flags).call(t, call{To: "10.96.0.10:80"})
			kit.Check(t, a.Err == c.want, "%s: %+v, want error %q", name, a, c.want)
		}
	})
}

// TestPodsOfTheNode looks for the cgroup of the pods of this node among others.
func TestPodsOfTheNode(t *testing.T) {
	id, other := strings.Repeat("0af9", 16), strings.Repeat("b", 64)
	slice := "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12.slice/"
	for name, c := range map[string]struct {
		folders []string // the cgroups that have processes end in !
		own     string
		machine bool // whether the process has the network of the machine
		want    string
	}{
		"cgroupfs":                     {[]string{"init", "kubepods/pod1/c1"}, "init", true, "kubepods"},
		"systemd":                      {[]string{"system.slice", "kubepods.slice/kubepods-burstable.slice"}, "system.slice/kube-proxy.service", true, "kubepods.slice"},
		"kubelet with a root":          {[]string{"a/b/kubepods"}, "", false, "a/b/kubepods"},
		"kubelet with a root, systemd": {[]string{"a.slice/a-kubepods.slice"}, "", false, "a.slice/a-kubepods.slice"},
		"kind, from inside":            {[]string{"kubelet.slice/kubelet-kubepods.slice/pod1"}, "", false, "kubelet.slice/kubelet-kubepods.slice"},
		"too deep":                     {[]string{"a/b/c/kubepods"}, "", false, ""},
		"the node, and one in it":      {[]string{"a/b/kubepods", "kubepods"}, "", false, "kubepods"},
		"k3d on the node":              {[]string{"docker/" + id + "/kubepods"}, "", true, ""},
		"k3d on a node with systemd":   {[]string{"system.slice/docker-" + id + ".scope/kubepods"}, "", true, ""},
		"a cluster in LXC":             {[]string{"lxc.payload.c1/kubepods"}, "", true, ""},
		"a cluster in systemd-nspawn":  {[]string{"machine.slice/machine-a.scope/kubepods"}, "", true, ""},

		"cgroupfs, left by another driver": {[]string{"kubepods/burstable", "kubepods.slice!"}, "", true, "kubepods.slice"},
		"systemd, left by another driver":  {[]string{"kubepods!", "kubepods.slice/x"}, "", true, "kubepods"},
		"left without pods":                {[]string{"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice", "kubepods/burstable"}, "", true, "kubepods.slice"},
		"left higher up":                   {[]string{"kubepods", "a.slice/a-kubepods.slice!"}, "", true, "a.slice/a-kubepods.slice"},

		"a pod, containerd":      {[]string{slice + "cri-containerd-" + id + ".scope"}, slice + "cri-containerd-" + id + ".scope", true, "kubepods.slice"},
		"a pod, cgroupfs":        {[]string{"kubepods/besteffort/pod1/" + id}, "kubepods/besteffort/pod1/" + id, true, "kubepods"},
		"a pod, guaranteed":      {[]string{"kubepods/pod1/" + id}, "kubepods/pod1/" + id, true, "kubepods"},
		"a pod, crun":            {[]string{slice + "crio-" + id + ".scope/container"}, slice + "crio-" + id + ".scope/container", true, "kubepods.slice"},
		"a container on the net": {[]string{"docker/" + id, "kubepods"}, "docker/" + id, true, "kubepods"},
		"a container with a net": {[]string{"docker/" + id, "kubepods"}, "docker/" + id, false, ""},
		"a container of systemd": {[]string{"system.slice/docker-" + id + ".scope", "kubepods"}, "system.slice/docker-" + id + ".scope", false, ""},
		"a container of podman":  {[]string{"machine.slice/libpod-" + id + ".scope/container", "kubepods.slice"}, "machine.slice/libpod-" + id + ".scope/container", false, ""},
		"a container in a pod":   {[]string{"kubepods/pod1/" + id + "/docker/" + other}, "kubepods/pod1/" + id + "/docker/" + other, false, ""},

		"a node that is a container":           {[]string{"kubepods", "docker/" + id + "/kubelet/kubepods"}, "docker/" + id + "/system.slice/x.service", false, "docker/" + id + "/kubelet/kubepods"},
		"a pod of a node that is a container":  {[]string{"kubepods", "docker/" + id + "/kubelet/kubepods/pod2/" + other}, "docker/" + id + "/kubelet/kubepods/pod2/" + other, false, "docker/" + id + "/kubelet/kubepods"},
		"a node in a pod":                      {[]string{"kubepods/pod1/" + id + "/kubepods"}, "kubepods/pod1/" + id + "/init", false, "kubepods/pod1/" + id + "/kubepods"},
		"a pod of a node in a pod":             {[]string{"kubepods/pod1/" + id + "/docker/" + other + "/kubelet/kubepods/pod2/" + id}, "kubepods/pod1/" + id + "/docker/" + other + "/kubelet/kubepods/pod2/" + id, false, "kubepods/pod1/" + id + "/docker/" + other + "/kubelet/kubepods"},
		"a process of a node that is LXC":      {[]string{"lxc.payload.c1/kubepods", "kubepods"}, "lxc.payload.c1/system.slice", false, "lxc.payload.c1/kubepods"},
		"a process in a node that has no pods": {[]string{"lxc.payload.c1", "kubepods"}, "lxc.payload.c1/system.slice", false, ""},
	} {
		root := t.TempDir()
		for _, below := range c.folders {
			below, has := strings.CutSuffix(below, "!")
			kit.Must(t, os.MkdirAll(filepath.Join(root, below), 0o755))
			if has {
				kit.Must(t, os.WriteFile(filepath.Join(root, below, "cgroup.events"), []byte("populated 1\nfrozen 0\n"), 0o600))
			}
		}
		p := place{root: root, known: true, machine: c.machine}
		if c.own != "" {
			p.own = filepath.Join(root, c.own)
		}
		want := ""
		if c.want != "" {
			want = filepath.Join(root, c.want)
		}
		kit.Equal(t, p.pods(), want, "%s", name)
	}
}

// TestOfSeveralPods has two cgroups of all pods on one level. The one with processes counts,
// or else the later one.
func TestOfSeveralPods(t *testing.T) {
	root := newCgroup(t)
	old, now := subgroup(t, root, "kubepods"), subgroup(t, root, "kubepods.slice")
	got := highestPods(root)
	kit.Check(t, got == now, "both are empty: %s, want the later one, %s", got, now)
	startClient(t, old, 0)
	kit.Equal(t, highestPods(root), old, "one has a process")
}

// TestOwnCgroup finds the cgroup of a process, also if /proc names it from elsewhere.
func TestOwnCgroup(t *testing.T) {
	root := newCgroup(t)
	c := startClient(t, subgroup(t, root, "a/b"), 0)
	got, want := cgroupOf(root, c.pid), filepath.Join(root, "a/b")
	kit.Check(t, got == want, "below a part of the hierarchy: %q, want %q", got, want)
	kit.Equal(t, cgroupOf(filepath.Join(root, "a/b"), os.Getpid()), "", "a process that is not below")
	whole, err := UnifiedRoot()
	kit.Must(t, err)
	kit.Equal(t, cgroupOf(whole, c.pid), filepath.Join(root, "a/b"), "below all")
}

// TestUnifiedRoot chooses among the mounts of the hierarchy.
func TestUnifiedRoot(t *testing.T) {
	root, err := UnifiedRoot()
	if err != nil {
		t.Skip(err)
	}
	if used, err := hierarchyUsed(); !used || err != nil {
		t.Errorf("the hierarchy at %s is used: %t, %v", root, used, err)
	}
	line := func(at string) string { return "cgroup2 " + at + " cgroup2 rw 0 0\n" }
	part := newCgroup(t)
	for name, c := range map[string]struct{ mounts, want string }{
		"one":                     {line(root), root},
		"another mounted over it": {line("/proc") + line(root), root},
		"none that is reached":    {line("/proc") + line(filepath.Join(root, "none")), ""},
		"the last one":            {line(part) + line(part+"/."), part + "/."},
		"a part of the hierarchy": {line(root) + line(part), root},
	} {
		got, err := unifiedRoot(c.mounts)
		kit.Check(t, got == c.want && (err == nil) == (c.want != ""), "%s: %q, %v, want %q", name, got, err, c.want)
	}
}

// TestKubeletStartsLater has the cgroups of pods made after the layer is in force, one class
// after the other, and made again.
func TestKubeletStartsLater(t *testing.T) {
	const taken, left = "connection refused", "network is unreachable"
	inNode(t, func(n *node) {
		s := snapshot([]string{"10.96.0.10:80", greeter(t, "127.0.0.1:0").String()})
		n.sync(t, s)
		connects := func(below, want string) {
			t.Helper()
			c := startClient(t, subgroup(t, n.options.Cgroup, below), unix.CLONE_NEWNET)
			a := c.call(t, call{To: "10.96.0.10:80"})
			kit.Check(t, a.Err == want, "%s: %+v, want error %q", below, a, want)
		}
		for _, below := range []string{"kubepods/pod1/c1", "kubepods/besteffort/pod2/c1/container"} {
			found, err := LookFor(service.IPv4, n.options)
			want := below != "kubepods/pod1/c1"
			kit.Check(t, err == nil && found.Pods == want, "before %s: %+v, %v, want pods: %t", below, found, err, want)
			connects(below, left)
			plan := n.sync(t, s)
			kit.Check(t, strings.Contains(plan, "other pods"), "plan after %s:\n%s", below, plan)
			connects(below, taken)
		}
		plan := n.sync(t, s)
		kit.Check(t, plan == "", "plan without a change:\n%s", plan)
	})
}

// TestLookAtSite looks at nodes without a hierarchy, with one that cannot be used, and at a
// part of the one of this node.
func TestLookAtSite(t *testing.T) {
	gone, folder, part := errors.New("gone"), t.TempDir(), newCgroup(t)
	pods := subgroup(t, part, "kubepods")
	for name, c := range map[string]struct {
		root  string
		found error
		want  Site
		err   string
	}{
		"no hierarchy":   {"", errNoHierarchy, Site{}, ""},
		"not to be read": {"", gone, Site{}, gone.Error()},
		"no folder":      {filepath.Join(folder, "x"), nil, Site{}, "look at cgroup"},
		"no cgroup":      {folder, nil, Site{Root: folder}, "ask for the programs of the cgroups: "},
		"a part":         {part, nil, Site{Root: part, Pods: pods}, ""},
	} {
		got, err := lookAt(c.root, c.found)
		kit.Check(t, got == c.want && (err == nil) == (c.err == "") && (err == nil || strings.Contains(err.Error(), c.err)),
			"%s: %+v, %v, want %+v, %q", name, got, err, c.want, c.err)
	}
}

// TestCgroupNamespace has the layer see the cgroups from below the root, as in a node that
// is a container, and in a container that sees only itself.
func TestCgroupNamespace(t *testing.T) {
	inNode(t, func(n *node) {
		whole, inside := n.options.Cgroup, "machine/1/kubelet/kubepods/burstable/pod1/c1"
		pod := subgroup(t, whole, inside)
		c := startClient(t, filepath.Join(whole, "machine/1"), unix.CLONE_NEWCGROUP|unix.CLONE_NEWNS)
		at := t.TempDir()
		if a := c.call(t, call{Mount: at}); a.Err != "" {
			t.Error(a.Err)
			return
		}
		n.options.Cgroup = filepath.Join("/proc", strconv.Itoa(c.pid), "root", at)
		if _, err := os.Stat(filepath.Join(n.options.Cgroup, "kubelet")); err != nil {
			t.Error(err)
			return
		}
		n.close(t)
		n.open(t)
		n.sync(t, snapshot([]string{"10.96.0.10:80", greeter(t, "127.0.0.1:0").String()}))
		a := startClient(t, pod, unix.CLONE_NEWNET).call(t, call{To: "10.96.0.10:80"})
		kit.Check(t, a.Err == "connection refused", "a pod: %+v, want it taken", a)
		err := checkRoot(n.options.Cgroup, "kubepods")
		kit.Check(t, err == nil, "a node that is a container: %v", err)
		if err := checkRoot(n.options.Cgroup, ""); err == nil || !strings.Contains(err.Error(), "mount the folder /sys/fs/cgroup of the host") {
			t.Errorf("a container that sees only itself: %v", err)
		}
	})
}

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
	kit.Must(t, os.MkdirAll(pins, 0o700))
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), deniedVariable+"="+pins)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	kit.Check(t, err == nil && len(out) == 0, "%v: %s", err, out)
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
			kit.Check(t, got == c.without || disturbed || attachedAbove(t, n.options.Cgroup),
				"%s, without the layer: %s, want %s", situation, got, c.without)
			n.sync(t, s)
			kit.Equal(t, search(t, c.lacks, Leftovers{Options: c.options, Wanted: c.wanted}), c.with,
				"%s, with the layer", situation)
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
				there, err := programsAt(int(dir.Fd()), a.attach, 0)
				kit.Check(t, len(there.ids) <= 0 && err == nil, "%s: programs %d are left, %v", a.program, there.ids, err)
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
			kit.Check(t, strings.HasSuffix(o.Degraded, "more rights are needed: "+c.want),
				"%q does not name %s", o.Degraded, c.want)
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
		err := k.firstRefusal(refused, ebpf.CollectionOptions{}, nil)
		kit.Check(t, err != nil && strings.Contains(err.Error(), want), "%v, want that of %s", err, want)
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
	_, err := (&kernel{}).isScope(math.MaxUint32)
	kit.Check(t, errors.Is(err, fs.ErrNotExist), "%v, want that it does not exist", err)
}

// dialVariable makes the test program a client, which dials what it reads.
const dialVariable = "SOCKETLB_CLIENT"

func TestMain(m *testing.M) {
	if os.Getenv(dialVariable) != "" {
		serveClient()
		return
	}
	if pins := os.Getenv(deniedVariable); pins != "" {
		lookForLayer(pins)
		return
	}
	if family := os.Getenv(writerVariable); family != "" {
		writeForever(family)
	}
	if where := os.Getenv(proxyVariable); where != "" {
		proxyForever(where)
	}
	if os.Getenv(crowdVariable) != "" {
		connectForever()
		return
	}
	os.Exit(m.Run())
}

// call is a connection that a client makes.
type call struct {
	To       string
	By       string // one of ways
	Family   int    // of the socket
	Protocol int
	Bind     string // an address, if not empty
	Reuse    bool   // with SO_REUSEADDR and SO_REUSEPORT
	Cgroup   string // to which the client moves when it has made the socket
	Between  string // one of ways, before Then
	Then     string // a second address, which the same socket dials after the first
	Mount    string // where to mount the cgroups instead
}

// answer is what came of a call.
type answer struct {
	Greeting, Peer, Err string
}

// serveClient makes the calls that it reads.
func serveClient() {
	_ = raiseLoopback() // it may be raised already
	out := json.NewEncoder(os.Stdout)
	for in := json.NewDecoder(os.Stdin); ; {
		var c call
		if in.Decode(&c) != nil {
			return
		}
		a, err := c.make()
		if err != nil {
			a.Err = err.Error()
		}
		_ = out.Encode(a)
	}
}

func (c call) make() (a answer, err error) {
	if c.Mount != "" {
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return a, err
		}
		return a, unix.Mount("cgroup2", c.Mount, "cgroup2", 0, "")
	}
	fd, err := unix.Socket(c.Family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, c.Protocol)
	if err != nil {
		return a, err
	}
	defer unix.Close(fd)
	if err := c.prepare(fd); err != nil {
		return a, err
	}
	err = ways[c.By](fd, netip.MustParseAddrPort(c.To))
	if c.Between != "" {
		err = ways[c.Between](fd, netip.AddrPort{})
	}
	if c.Then != "" {
		err = ways[c.By](fd, netip.MustParseAddrPort(c.Then))
	}
	if err != nil {
		return a, err
	}
	b := make([]byte, 100)
	n, err := unix.Read(fd, b)
	a.Greeting = strings.TrimSpace(string(b[:max(n, 0)]))
	peer, err2 := unix.Getpeername(fd)
	if err == nil {
		err = err2
	}
	if peer != nil {
		a.Peer = textOf(peer)
	}
	return a, err
}

// textOf writes an address and port.
func textOf(a unix.Sockaddr) string {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)).String()
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port)).String()
	}
	return ""
}

// prepare does with a socket what comes before it is connected.
func (c call) prepare(fd int) error {
	if c.Reuse {
		err := errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
		if err != nil {
			return err
		}
	}
	if c.Cgroup != "" {
		if err := os.WriteFile(filepath.Join(c.Cgroup, "cgroup.procs"), []byte("0"), 0); err != nil {
			return err
		}
	}
	if c.Bind == "" {
		return nil
	}
	return unix.Bind(fd, sockaddr(fd, netip.MustParseAddrPort(c.Bind)))
}

// client is a process in a cgroup.
type client struct {
	pid int
	in  *json.Encoder
	out *json.Decoder
}

// startClient starts a client in a cgroup. Its network namespace is that of the thread, or
// a new one with the flag CLONE_NEWNET.
func startClient(t *testing.T, cgroup string, flags uintptr) *client {
	t.Helper()
	dir, err := os.Open(cgroup)
	kit.Must(t, err)
	defer dir.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), dialVariable+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd()), Cloneflags: flags}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	kit.Must(t, err)
	out, err := cmd.StdoutPipe()
	kit.Must(t, err)
	kit.Must(t, cmd.Start())
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	return &client{cmd.Process.Pid, json.NewEncoder(in), json.NewDecoder(bufio.NewReader(out))}
}

func (c *client) call(t *testing.T, x call) answer {
	t.Helper()
	if x.Family == 0 && x.To != "" {
		x.Family = unix.AF_INET
		if !netip.MustParseAddrPort(x.To).Addr().Is4() {
			x.Family = unix.AF_INET6
		}
	}
	var a answer
	kit.Must(t, c.in.Encode(x))
	kit.Must(t, c.out.Decode(&a))
	return a
}

// newCgroup returns a cgroup of its own for the test.
func newCgroup(t testing.TB) string {
	t.Helper()
	root, err := UnifiedRoot()
	if err != nil {
		t.Skip(err)
	}
	dir, err := os.MkdirTemp(root, "socketlb-test-")
	if err != nil {
		t.Skipf("make a cgroup: %v", err)
	}
	t.Cleanup(func() { removeCgroup(t, dir) })
	return dir
}

// mountPins mounts a BPF file system for the test.
func mountPins(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Skipf("mount a BPF file system: %v", err)
	}
	t.Cleanup(func() {
		err := unix.Unmount(dir, 0)
		kit.Check(t, err == nil, "unmount %s: %v", dir, err)
	})
	return dir
}

func removeCgroup(t testing.TB, dir string) {
	t.Helper()
	var all []string
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			all = append(all, path)
		}
		return nil
	})
	for i := len(all) - 1; i >= 0; i-- {
		err := os.Remove(all[i])
		kit.Check(t, err == nil, "remove cgroup: %v", err)
	}
}

// subgroup makes a cgroup below dir.
func subgroup(t *testing.T, dir, below string) string {
	t.Helper()
	path := filepath.Join(dir, below)
	kit.Must(t, os.MkdirAll(path, 0o755))
	return path
}
