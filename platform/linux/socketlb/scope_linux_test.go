// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestWhoIsTaken has processes in all sorts of cgroups and network namespaces connect. A
// taken one is refused where its namespace has no such endpoint. The others have no way.
func TestWhoIsTaken(t *testing.T) {
	const taken, left = "connection refused", "network is unreachable"
	inNode(t, func(n *node) {
		outside, err := filepath.Abs(filepath.Dir(n.options.Cgroup))
		if err != nil {
			t.Fatal(err)
		}
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
			"container in a container":           {"kubepods/pod1/c2/docker", unix.CLONE_NEWNET, left},
			"container in one of burstable":      {"kubepods/burstable/pod2/c2/docker", unix.CLONE_NEWNET, left},
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
			if a.Err != c.want {
				t.Errorf("%s: %+v, want error %q", name, a, c.want)
			}
		}
	})
}

// TestFindPods looks for the cgroup of all pods among others.
func TestFindPods(t *testing.T) {
	id := strings.Repeat("0af9", 16)
	for name, c := range map[string]struct {
		folders []string
		want    string
	}{
		"cgroupfs":                   {[]string{"init", "kubepods/pod1/c1"}, "kubepods"},
		"systemd":                    {[]string{"system.slice", "kubepods.slice/kubepods-burstable.slice"}, "kubepods.slice"},
		"kubelet with a root":        {[]string{"a/b/kubepods"}, "a/b/kubepods"},
		"kind, from inside":          {[]string{"kubelet.slice/kubelet-kubepods.slice/pod1"}, "kubelet.slice/kubelet-kubepods.slice"},
		"too deep":                   {[]string{"a/b/c/kubepods"}, ""},
		"the node, and one in it":    {[]string{"a/b/kubepods", "kubepods"}, "kubepods"},
		"k3d on the node":            {[]string{"docker/" + id + "/kubepods"}, ""},
		"k3d on a node with systemd": {[]string{"system.slice/docker-" + id + ".scope/kubepods"}, ""},
		"a cluster in LXC":           {[]string{"lxc.payload.c1/kubepods"}, ""},
	} {
		root := t.TempDir()
		for _, below := range c.folders {
			must(t, os.MkdirAll(filepath.Join(root, below), 0o755))
		}
		want := ""
		if c.want != "" {
			want = filepath.Join(root, c.want)
		}
		if got := findPods(root); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
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
			if a := c.call(t, call{To: "10.96.0.10:80"}); a.Err != want {
				t.Errorf("%s: %+v, want error %q", below, a, want)
			}
		}
		for _, below := range []string{"kubepods/pod1/c1", "kubepods/besteffort/pod2/c1"} {
			connects(below, left)
			if plan := n.sync(t, s); !strings.Contains(plan, "other pods") {
				t.Errorf("plan after %s:\n%s", below, plan)
			}
			connects(below, taken)
		}
		if plan := n.sync(t, s); plan != "" {
			t.Errorf("plan without a change:\n%s", plan)
		}
	})
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
		if a := startClient(t, pod, unix.CLONE_NEWNET).call(t, call{To: "10.96.0.10:80"}); a.Err != "connection refused" {
			t.Errorf("a pod: %+v, want it taken", a)
		}
		pods := scope{Pods: 7}
		if err := checkRoot(n.options.Cgroup, pods); err != nil {
			t.Errorf("a node that is a container: %v", err)
		}
		if err := checkRoot(n.options.Cgroup, scope{}); err == nil || !strings.Contains(err.Error(), "mount the folder /sys/fs/cgroup of the host") {
			t.Errorf("a container that sees only itself: %v", err)
		}
	})
}
