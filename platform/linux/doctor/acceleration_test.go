// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"strings"
	"testing"
	"testing/fstest"

	"kubeproxy/common/lease"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/socketlb"
)

const (
	unifiedMount = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"
	legacyMount  = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n"
	bpfMount     = "bpf /sys/fs/bpf bpf rw 0 0\n"
	// rights has the capabilities BPF, PERFMON and NET_ADMIN.
	rights = "Name:\tkube-proxy\nCapEff:\t000000c000001000\nSeccomp:\t0"
	cpu    = "processor\t: 0\nflags\t\t: fpu lm"
)

// wholeSite has all that socket acceleration needs.
var wholeSite = socketlb.Site{Root: "/sys/fs/cgroup", Whole: true, Pods: "/sys/fs/cgroup/kubepods"}

// newAccelerated returns a node with all that socket acceleration needs, where files are as
// given, and what the kernel has of it.
func newAccelerated(files map[string]string, p socketlb.Presence) *Node {
	all := map[string]string{
		"proc/self/mounts": unifiedMount + bpfMount, "proc/self/status": rights,
		"proc/sys/kernel/osrelease": "6.19.2-cloud", "proc/cpuinfo": cpu + " cx16",
	}
	maps.Copy(all, files)
	n := newNode(all)
	n.Acceleration = Acceleration{
		Wanted: true, RemoveCommand: "REMOVE",
		Site: func() (socketlb.Site, error) { return wholeSite, nil },
		Present: func(f service.Family) (socketlb.Presence, error) {
			if f == service.IPv6 {
				return socketlb.Presence{}, nil
			}
			return p, nil
		},
	}
	return n
}

// TestAccelerationLacks takes from a sound node one thing after the other.
func TestAccelerationLacks(t *testing.T) {
	const topic = "socket-acceleration | "
	release := func(r string) map[string]string { return map[string]string{"proc/sys/kernel/osrelease": r} }
	mounts := func(m string) map[string]string { return map[string]string{"proc/self/mounts": m} }
	effective := func(set string) map[string]string {
		return map[string]string{"proc/self/status": "Name:\tx\nCapEff:\t" + set + "\nSeccomp:\t0"}
	}
	for situation, test := range map[string]struct {
		files map[string]string
		site  socketlb.Site
		want  string
		words string
	}{
		"nothing":                      {nil, wholeSite, "", ""},
		"an old kernel":                {merged(release("5.4.0-216-generic"), effective("000000c001001000")), wholeSite, topic + "kernel | ", "Linux 5.4.0-216-generic"},
		"the oldest kernel":            {merged(release("5.10.0"), effective("000000c001001000")), wholeSite, "", ""},
		"no programs":                  {nil, socketlb.Site{Root: "/sys/fs/cgroup", Whole: true, NoPrograms: true}, topic + "kernel | ", "runs no programs"},
		"no cgroups at all":            {mounts(bpfMount), socketlb.Site{}, topic + "cgroups | mount -t cgroup2 cgroup2 /sys/fs/cgroup", "version 2"},
		"cgroups of version 1":         {mounts(legacyMount + bpfMount), socketlb.Site{}, topic + "cgroups | " + mountHybrid, "version 2"},
		"only its own cgroup":          {nil, socketlb.Site{Root: "/sys/fs/cgroup"}, topic + "cgroups | ", "its own container at /sys/fs/cgroup"},
		"a node that is a container":   {nil, socketlb.Site{Root: "/sys/fs/cgroup", Pods: "/sys/fs/cgroup/kubelet/kubepods"}, "", ""},
		"no pods yet":                  {nil, socketlb.Site{Root: "/sys/fs/cgroup", Whole: true}, "", ""},
		"no BPF file system":           {mounts(unifiedMount), wholeSite, topic + "bpf-file-system | mount -t bpf bpf /sys/fs/bpf", "/sys/fs/bpf"},
		"two BPF file systems":         {mounts(unifiedMount + bpfMount + bpfMount), wholeSite, "acceleration-mounts |  | umount /sys/fs/bpf", "2 BPF file systems"},
		"none in a container":          {mounts("overlay / overlay rw 0 0\n" + unifiedMount), wholeSite, topic + "bpf-file-system | ", "/sys/fs/bpf"},
		"no cgroups in a container":    {mounts("overlay / overlay rw 0 0\n" + legacyMount + bpfMount), socketlb.Site{}, topic + "cgroups | ", "version 2"},
		"one elsewhere":                {mounts(unifiedMount + "bpf /mnt bpf rw 0 0\n"), wholeSite, topic + "bpf-file-system | mount -t bpf bpf /sys/fs/bpf", ""},
		"no capabilities":              {effective("0"), wholeSite, topic + "capabilities | ", "this process lacks BPF, PERFMON, NET_ADMIN"},
		"no PERFMON":                   {effective("0000008000001000"), wholeSite, topic + "capabilities | ", "lacks PERFMON"},
		"SYS_ADMIN":                    {effective("0000000000201000"), wholeSite, "", ""},
		"no SYS_RESOURCE, and old":     {release("5.10.1"), wholeSite, topic + "capabilities | ", "lacks SYS_RESOURCE"},
		"a processor without cx16":     {map[string]string{"proc/cpuinfo": cpu}, wholeSite, "acceleration-peers |  | ", "6.19.2-cloud"},
		"one with an older kernel":     {merged(map[string]string{"proc/cpuinfo": cpu}, release("6.18.44")), wholeSite, "", ""},
		"a processor of another make":  {map[string]string{"proc/cpuinfo": "Features\t: fp asimd"}, wholeSite, "", ""},
		"a release with another shape": {release("custom"), wholeSite, "", ""},
	} {
		t.Run(situation, func(t *testing.T) {
			n := newAccelerated(test.files, socketlb.Presence{})
			n.Acceleration.Site = func() (socketlb.Site, error) { return test.site, nil }
			if test.want == "" {
				expect(t, n.acceleration, nil)
			} else {
				expect(t, n.acceleration, []string{test.want}, test.words)
			}
			n.Acceleration.Wanted = false
			expect(t, n.acceleration, nil)
		})
	}
}

func merged(a, b map[string]string) map[string]string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// TestConfinement has AppArmor or SELinux confine the proxy. A profile of the user's own may let it pass, and does if
// the layer is there.
func TestConfinement(t *testing.T) {
	const topic = "socket-acceleration | "
	label := func(text string) map[string]string { return map[string]string{"proc/self/attr/current": text} }
	const container = "system_u:system_r:container_t:s0:c12,c40\x00"
	for situation, test := range map[string]struct {
		files map[string]string
		there bool
		want  string
		words string
	}{
		"no module":                     {nil, false, "", ""},
		"not confined":                  {label("unconfined"), false, "", ""},
		"containerd's profile":          {label("cri-containerd.apparmor.d (enforce)"), true, topic + "apparmor | ", "profile cri-containerd.apparmor.d, which lets it write nothing below /sys/fs/bpf"},
		"it only complains":             {label("cri-containerd.apparmor.d (complain)"), false, "", ""},
		"a profile of the user's":       {label("proxy (enforce)"), false, topic + "apparmor | ", "profile proxy, which may let"},
		"one that lets it pass":         {label("proxy (enforce)"), true, "", ""},
		"a container":                   {label(container), false, topic + "selinux | ", "this process has the SELinux type container_t"},
		"one of another type":           {label("u:r:container_init_t:s0"), false, topic + "selinux | ", "container_init_t"},
		"a container that may do all":   {label("system_u:system_r:spc_t:s0"), false, "", ""},
		"a service of the node":         {label("system_u:system_r:unconfined_service_t:s0"), false, "", ""},
		"SELinux that refuses nothing":  {merged(label(container), map[string]string{"sys/fs/selinux/enforce": "0"}), false, "", ""},
		"SELinux that says it enforces": {merged(label(container), map[string]string{"sys/fs/selinux/enforce": "1"}), false, topic + "selinux | ", "BPF"},
	} {
		t.Run(situation, func(t *testing.T) {
			n := newAccelerated(test.files, socketlb.Presence{Installed: test.there, Known: true, Pods: true})
			var want []string
			if test.want != "" {
				want = []string{test.want}
			}
			expect(t, n.acceleration, want, words(test.words)...)
			n.Acceleration.Wanted = false
			if seen, err := n.acceleration(t.Context()); err != nil || len(seen.Findings) > 0 && seen.Findings[0].Subject != "" {
				t.Errorf("it is off: %+v, %v", seen, err)
			}
		})
	}
	n := newAccelerated(label(container), socketlb.Presence{})
	n.Files.(fstest.MapFS)["proc/7/status"] = &fstest.MapFile{Data: []byte(rights)}
	n.Files.(fstest.MapFS)["proc/7/attr/current"] = &fstest.MapFile{Data: []byte("docker-default (enforce)\n")}
	n.Holder = func(context.Context) (lease.Identity, bool) { return lease.Identity{PID: 7}, true }
	expect(t, n.acceleration, []string{topic + "apparmor | "}, "process 7", "docker-default")
}

// TestAccelerationRightsOfTheProxy takes the capabilities of the proxy that runs, not those
// of doctor.
func TestAccelerationRightsOfTheProxy(t *testing.T) {
	n := newAccelerated(map[string]string{"proc/7/status": "Name:\tx\nCapEff:\t0000000000001000\n"}, socketlb.Presence{})
	n.Holder = func(context.Context) (lease.Identity, bool) { return lease.Identity{PID: 7}, true }
	expect(t, n.acceleration, []string{"socket-acceleration | capabilities | "}, "process 7", "lacks BPF, PERFMON")
	n.Holder = func(context.Context) (lease.Identity, bool) { return lease.Identity{OwnPID: 1}, true }
	expect(t, n.acceleration, nil)
}

// TestAccelerationState checks what is said of a layer that the kernel has.
func TestAccelerationState(t *testing.T) {
	whole := socketlb.Presence{Installed: true, Known: true, Pods: true}
	faulty, nodeOnly, hidden := whole, whole, socketlb.Presence{Installed: true}
	faulty.Fault, nodeOnly.Pods = "program connect4 was detached", false
	others := whole
	others.Others = "programs with the ids 7"
	holder := func(context.Context) (lease.Identity, bool) { return lease.Identity{PID: 1}, true }
	other := procWith("kube-proxy\x00--config=x")
	left, detached := []string{"acceleration-left |  | REMOVE"}, "acceleration-detached | IPv4 | "
	for situation, test := range map[string]struct {
		p        socketlb.Presence
		wanted   bool
		holder   func(context.Context) (lease.Identity, bool)
		answered bool
		proc     fs.FS
		noPods   bool
		want     []string
		words    string
	}{
		"sound":                            {whole, true, holder, true, nil, false, nil, ""},
		"left by a stop":                   {whole, true, noHolder, false, nil, false, nil, ""},
		"others":                           {others, true, holder, true, nil, false, []string{"acceleration-others | IPv4 | REMOVE"}, "ids 7"},
		"detached":                         {faulty, true, holder, true, nil, false, []string{detached}, "connect4 was detached"},
		"detached after a stop":            {faulty, true, noHolder, false, nil, false, []string{detached + "REMOVE"}, "connect4"},
		"pins are not mounted":             {hidden, true, holder, true, nil, true, nil, ""},
		"pods are missed":                  {nodeOnly, true, holder, true, nil, true, []string{"acceleration-pods |  | "}, "over IPv4 are not taken"},
		"pods appeared":                    {nodeOnly, true, holder, true, nil, false, nil, ""},
		"switched off, no proxy":           {whole, false, noHolder, false, nil, false, left, "which is off"},
		"switched off, not removed":        {whole, false, holder, true, nil, false, left, "could not remove it"},
		"switched off, pins not mounted":   {hidden, false, noHolder, false, nil, false, left, "of IPv4"},
		"the flags of the proxy unknown":   {whole, false, holder, false, nil, false, nil, ""},
		"kube-proxy runs":                  {whole, false, noHolder, false, other, false, left, "does not update it: process 42"},
		"kube-proxy runs, and it is on":    {whole, true, noHolder, false, other, false, left, "does not update it"},
		"kube-proxy runs, programs a rest": {faulty, false, noHolder, false, other, false, left, "does not update it"},
		"a labelled proxy runs":            {whole, true, noHolder, false, procWith("kube-proxy\x00--service-proxy-name=edge"), false, nil, ""},
	} {
		t.Run(situation, func(t *testing.T) {
			n := newAccelerated(nil, test.p)
			n.Acceleration.Wanted, n.Holder, n.Answered = test.wanted, test.holder, test.answered
			if test.proc != nil {
				n.Proc = test.proc
			}
			if test.noPods {
				n.Acceleration.Site = func() (socketlb.Site, error) { return socketlb.Site{Root: "/sys/fs/cgroup", Whole: true}, nil }
			}
			expect(t, n.acceleration, test.want, words(test.words)...)
		})
	}
}

func words(of string) []string {
	if of == "" {
		return nil
	}
	return []string{of}
}

// TestAccelerationOfTwoHierarchies has version 2 mounted where no container runtime looks.
func TestAccelerationOfTwoHierarchies(t *testing.T) {
	n := newAccelerated(map[string]string{"proc/self/mounts": legacyMount + "cgroup2 /mnt/cgroup cgroup2 rw 0 0\n" + bpfMount}, socketlb.Presence{Installed: true, Known: true})
	for root, fix := range map[string]string{"/mnt/cgroup": mountHybrid, hybridRoot: ""} {
		n.Acceleration.Site = func() (socketlb.Site, error) { return socketlb.Site{Root: root, Whole: true}, nil }
		expect(t, n.acceleration, []string{"acceleration-pods |  | " + fix}, root)
	}
}

// TestAccelerationFailures has what is asked fail.
func TestAccelerationFailures(t *testing.T) {
	failed := errors.New("failed")
	n := newAccelerated(nil, socketlb.Presence{})
	n.Acceleration.Present = func(service.Family) (socketlb.Presence, error) { return socketlb.Presence{}, failed }
	if _, err := n.acceleration(t.Context()); !errors.Is(err, failed) {
		t.Errorf("the kernel cannot be asked: %v", err)
	}
	n.Acceleration.Wanted = false
	expect(t, n.acceleration, nil)
	n.Acceleration.Present = func(service.Family) (socketlb.Presence, error) {
		return socketlb.Presence{}, &socketlb.UnseenError{Err: failed}
	}
	if seen, err := n.acceleration(t.Context()); err != nil || !seen.Absent || !strings.Contains(seen.Note, "it is unknown whether the kernel has it") {
		t.Errorf("a process that may not look: %+v, %v", seen, err)
	}
	n = newAccelerated(nil, socketlb.Presence{})
	n.Acceleration.Site = func() (socketlb.Site, error) { return socketlb.Site{}, failed }
	if _, err := n.acceleration(t.Context()); !errors.Is(err, failed) {
		t.Errorf("the node cannot be looked at: %v", err)
	}
	for _, name := range []string{"proc/self/mounts", "proc/self/status", "proc/sys/kernel/osrelease"} {
		n = newAccelerated(nil, socketlb.Presence{})
		delete(n.Files.(fstest.MapFS), name)
		if _, err := n.acceleration(t.Context()); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v", name, err)
		}
	}
}
