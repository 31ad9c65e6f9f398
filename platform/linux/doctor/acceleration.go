// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"kubeproxy/common/doctor"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/socketlb"
)

// Acceleration is what the checks of socket acceleration read.
type Acceleration struct {
	// Wanted is whether the configuration, or the proxy that answered, has it.
	Wanted bool
	// Site returns what the node has for it.
	Site func() (socketlb.Site, error)
	// Present returns what the kernel has of it.
	Present func(service.Family) (socketlb.Presence, error)
	// RemoveCommand removes it from the kernel, and no rules.
	RemoveCommand string
}

// acceleration checks that the node has what socket acceleration needs, and that the kernel
// has it if and only if a proxy keeps it up to date.
func (n *Node) acceleration(ctx context.Context) (doctor.Seen, error) {
	var seen doctor.Seen
	if n.Acceleration.Wanted {
		found, err := n.accelerationLacks(ctx)
		if err != nil {
			return seen, err
		}
		seen.Findings = found
	}
	there := map[service.Family]socketlb.Presence{}
	var unseen *socketlb.UnseenError
	for _, f := range service.Families {
		p, err := n.Acceleration.Present(f)
		if err != nil && n.Acceleration.Wanted && len(seen.Findings) == 0 {
			return seen, err // else the reason is known, or there cannot be anything
		}
		errors.As(err, &unseen)
		if p.Installed {
			there[f] = p
		}
	}
	if n.Acceleration.Wanted {
		var l lacks
		l.addConfinement(ctx, n, len(there) > 0)
		seen.Findings = append(seen.Findings, l.found...)
	}
	suspected := unseen != nil && unseen.Likely
	if mounts, err := n.read("proc/self/mounts"); err == nil && (n.Acceleration.Wanted || suspected || len(there) > 0) {
		seen.Findings = append(seen.Findings, hiddenPins(mounts)...)
	}
	switch {
	case len(there) > 0:
		seen.Findings = append(seen.Findings, n.accelerationState(ctx, there)...)
		seen.Note = "the kernel has it for " + familyNames(familiesOf(there))
	case !n.Acceleration.Wanted && suspected:
		seen.Findings = append(seen.Findings, n.others("", "socket acceleration is off, and may be in the kernel: "+unseen.Error()))
	case !n.Acceleration.Wanted && unseen != nil:
		return doctor.NothingToSee("it is off, and it is unknown whether the kernel has it: %v", unseen), nil
	case !n.Acceleration.Wanted:
		return doctor.NothingToSee("it is off, and nothing of it is in the kernel"), nil
	default:
		seen.Note = "what it needs"
	}
	return seen, nil
}

func familiesOf(there map[service.Family]socketlb.Presence) []service.Family {
	return slices.DeleteFunc(slices.Clone(service.Families[:]), func(f service.Family) bool { return !there[f].Installed })
}

// accelerationState decides what it means that the kernel has the layer.
func (n *Node) accelerationState(ctx context.Context, there map[service.Family]socketlb.Presence) []doctor.Finding {
	families := familiesOf(there)
	_, err := n.Holder(ctx)
	held := err == nil
	ours := held || n.Answered
	left := doctor.Finding{Topic: doctor.AccelerationLeft, Fix: n.Acceleration.RemoveCommand, Advice: "run it on the host, or in a privileged container"}
	if others := slices.DeleteFunc(n.running(), namedProxy); !ours && len(others) > 0 {
		left.Severity = doctor.Blocks
		left.What = fmt.Sprintf("the kernel has socket acceleration of %s, and the proxy that runs does not update it: %s", familyNames(families), others[0])
		return []doctor.Finding{left}
	}
	if !n.Acceleration.Wanted {
		if held && !n.Answered {
			return nil // the proxy that runs may want it
		}
		left.What = fmt.Sprintf("the kernel has socket acceleration of %s, which is off", familyNames(families))
		if n.Answered {
			left.Severity = doctor.Blocks
			left.What += ", and the proxy that runs could not remove it"
		}
		return []doctor.Finding{left}
	}
	var found []doctor.Finding
	for _, f := range families {
		switch p := there[f]; {
		case p.Known && p.Fault != "":
			found = append(found, n.detached(f, p, ours))
		case p.Others != "":
			found = append(found, n.others(f.String(), p.Others))
		}
	}
	return append(found, n.podsMissed(families, there)...)
}

func (n *Node) others(subject, what string) doctor.Finding {
	return doctor.Finding{Topic: doctor.AccelerationOthers, Subject: subject, What: what, Fix: n.Acceleration.RemoveCommand,
		Advice: "run it on the host, or in a privileged container, then start the proxy again; bpftool cgroup tree names the programs that stay"}
}

func (n *Node) detached(f service.Family, p socketlb.Presence, runs bool) doctor.Finding {
	d := doctor.Finding{Topic: doctor.AccelerationDetached, Subject: f.String(), What: fmt.Sprintf("socket acceleration of %s is not in force: %s", f, p.Fault),
		Fix: n.Acceleration.RemoveCommand, Advice: "or start the proxy, which attaches the programs in its first round"}
	if runs {
		d.Fix, d.Advice = "", "the proxy that runs attaches the programs within a second or two; if this stays, its log says what hinders it, and bpftool cgroup tree shows the programs of all"
	}
	return d
}

// podsMissed looks for a cgroup of all pods that the layer lacks until the next resync.
func (n *Node) podsMissed(families []service.Family, there map[service.Family]socketlb.Presence) []doctor.Finding {
	missed := slices.DeleteFunc(families, func(f service.Family) bool { return !there[f].Known || there[f].Pods })
	site, err := n.Acceleration.Site()
	if len(missed) == 0 || err != nil || site.Pods != "" || site.Root == "" {
		return nil
	}
	f := doctor.Finding{Topic: doctor.AccelerationPods, What: fmt.Sprintf("connections of pods over %s are not taken, because no cgroup kubepods or kubepods.slice is in the three upper levels of %s", familyNames(missed), site.Root),
		Advice: "nothing to do before the kubelet has started its first pod; its setting cgroupRoot may lead deeper"}
	if mounts, err := n.read("proc/self/mounts"); err == nil && site.Root != hybridRoot && mountedAs(mounts, "cgroup", "") {
		f.Fix = mountHybrid
		f.Advice = "pods that start afterwards are taken: container runtimes look for the hierarchy of version 2 there"
	}
	return []doctor.Finding{f}
}

// Where container runtimes look for the cgroup hierarchy of version 2 beside version 1.
const (
	hybridRoot  = "/sys/fs/cgroup/unified"
	mountHybrid = "mount -o remount,rw /sys/fs/cgroup && mkdir -p " + hybridRoot + " && mount -t cgroup2 cgroup2 " + hybridRoot
)

// mountedAs returns whether /proc/self/mounts has a type, and at if given (proc_pid_mounts(5)).
func mountedAs(mounts, kind, at string) bool {
	for line := range strings.Lines(mounts) {
		if field := strings.Fields(line); len(field) > 2 && field[2] == kind && (at == "" || field[1] == at) {
			return true
		}
	}
	return false
}

// hiddenPins finds a BPF file system over another one, as mount -a makes of a line of /etc/fstab.
func hiddenPins(mounts string) []doctor.Finding {
	n := 0
	for line := range strings.Lines(mounts) {
		if mountedAs(line, "bpf", pins) {
			n++
		}
	}
	if n < 2 {
		return nil
	}
	return []doctor.Finding{{Topic: doctor.AccelerationMounts, What: fmt.Sprintf("%d BPF file systems are mounted at %s, and only the last one can be seen", n, pins),
		Advice: "remove the line of /etc/fstab that mounts a second one; unless other programs have pinned something in the last one, on the host: umount " + pins + ", then start the proxy again"}}
}

// inContainer returns whether the root of these mounts is that of a container, an overlay.
func inContainer(mounts string) bool {
	for _, kind := range []string{"overlay", "fuse.fuse-overlayfs"} {
		if mountedAs(mounts, kind, "/") {
			return true
		}
	}
	return false
}

// accelerationLacks returns what the node and the proxy lack for socket acceleration.
func (n *Node) accelerationLacks(ctx context.Context) ([]doctor.Finding, error) {
	site, err := n.Acceleration.Site()
	if err != nil {
		return nil, err
	}
	mounts, err := n.read("proc/self/mounts")
	if err != nil {
		return nil, err
	}
	release, err := n.read("proc/sys/kernel/osrelease")
	if err != nil {
		return nil, err
	}
	l := lacks{inContainer: inContainer(mounts)}
	l.addKernel(site, release)
	l.addMounts(site, mounts)
	who, rights, err := n.missingCapabilities(ctx, release)
	if err != nil {
		return nil, err
	}
	if len(rights) > 0 {
		l.add("capabilities", fmt.Sprintf("%s lacks %s", who, strings.Join(rights, ", ")), "",
			"run the proxy as root with these capabilities; in a container, add them to securityContext.capabilities, as the chart does with linux.socketAcceleration=true")
	}
	if cpu, err := n.read("proc/cpuinfo"); err == nil && !old(release, 6, 19) && lacksWideExchange(cpu) {
		l.found = append(l.found, doctor.Finding{Topic: doctor.AccelerationPeers, What: "the processor lacks cmpxchg16b, which Linux " + release + " needs for the storage of sockets",
			Advice: "give a virtual machine a processor with the flag cx16, such as -cpu host of QEMU"})
	}
	return l.found, nil
}

// lacks collects what socket acceleration needs and does not have.
type lacks struct {
	found       []doctor.Finding
	inContainer bool // this process is in one
}

func (l *lacks) add(subject, what, fix, advice string) {
	l.found = append(l.found, doctor.Finding{Topic: doctor.AccelerationLacks, Subject: subject, What: "socket acceleration cannot work: " + what, Fix: fix, Advice: advice})
}

// addMount adds that a folder of the host is not mounted.
func (l *lacks) addMount(subject, what, at, fix string) {
	advice := "in a container, mount " + at + " of the host; the chart does with linux.socketAcceleration=true"
	if l.inContainer { // a mount there would end with it
		fix, advice = "", strings.TrimPrefix(advice, "in a container, ")
	}
	l.add(subject, what, fix, advice)
}

func (l *lacks) addKernel(site socketlb.Site, release string) {
	const off = "or switch socketAcceleration off"
	if old(release, 5, 10) {
		l.add("kernel", "this is Linux "+release, "", "start Linux 5.10 or later, "+off)
	} else if site.NoPrograms {
		l.add("kernel", "the kernel runs no programs in cgroups", "", "start a kernel with CONFIG_CGROUP_BPF, "+off)
	}
}

func (l *lacks) addMounts(site socketlb.Site, mounts string) {
	const noHierarchy = "the cgroup hierarchy of version 2 is not mounted"
	switch {
	case site.Root == "" && mountedAs(mounts, "cgroup", ""):
		l.addMount("cgroups", noHierarchy, "/sys/fs/cgroup", mountHybrid)
	case site.Root == "":
		l.addMount("cgroups", noHierarchy, "/sys/fs/cgroup", "mount -t cgroup2 cgroup2 /sys/fs/cgroup")
	case !site.Whole && site.Pods == "":
		l.addMount("cgroups", "this process sees only the cgroup of its own container at "+site.Root, "the folder /sys/fs/cgroup", "")
	}
	if !mountedAs(mounts, "bpf", pins) {
		l.addMount("bpf-file-system", "no BPF file system is mounted at "+pins, pins, "mount -t bpf bpf "+pins)
	}
}

// pins is where the BPF file system belongs.
const pins = "/sys/fs/bpf"

// old returns whether a release of Linux is before a version, as far as it can be read.
func old(release string, major, minor int) bool {
	var a, b int
	if n, _ := fmt.Sscanf(release, "%d.%d", &a, &b); n < 2 {
		return false
	}
	return a < major || a == major && b < minor
}

// lacksWideExchange returns whether /proc/cpuinfo is of an x86-64 processor that cannot
// compare and exchange 16 bytes. Others have no line "flags".
func lacksWideExchange(cpuinfo string) bool {
	for line := range strings.Lines(cpuinfo) {
		if flags, is := strings.CutPrefix(line, "flags"); is {
			all := strings.Fields(flags)
			return slices.Contains(all, "lm") && !slices.Contains(all, "cx16")
		}
	}
	return false
}

// Numbers of capabilities in linux/capability.h.
const (
	capNetAdmin    = 12
	capSysAdmin    = 21
	capSysResource = 24
	capPerfmon     = 38
	capBPF         = 39
)

// proxy returns the proxy that runs, if this process sees it, or else this process, and its folder in /proc.
func (n *Node) proxy(ctx context.Context) (who, dir string) {
	if holder, err := n.Holder(ctx); err == nil && holder.PID > 0 {
		dir = fmt.Sprintf("proc/%d", holder.PID)
		if _, err := n.read(dir + "/status"); err == nil {
			return holder.String(), dir
		}
	}
	return "this process", "proc/self"
}

// missingCapabilities returns what the proxy that runs may not do, or else this process.
func (n *Node) missingCapabilities(ctx context.Context, release string) (who string, missing []string, err error) {
	who, dir := n.proxy(ctx)
	status, err := n.read(dir + "/status")
	if err != nil {
		return who, nil, err
	}
	_, rest, found := strings.Cut(status, "\nCapEff:")
	hex, _, _ := strings.Cut(rest, "\n")
	set, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
	if !found || err != nil {
		return who, nil, fmt.Errorf("unexpected line CapEff %q in /%s/status", hex, dir)
	}
	has := func(bit int) bool { return set&(1<<bit) != 0 }
	for _, c := range []struct {
		bit    int
		name   string
		needed bool
	}{
		{capBPF, "BPF", !has(capSysAdmin)},
		{capPerfmon, "PERFMON", !has(capSysAdmin)},
		{capNetAdmin, "NET_ADMIN", true},
		{capSysResource, "SYS_RESOURCE", old(release, 5, 11)},
	} {
		if c.needed && !has(c.bit) {
			missing = append(missing, c.name)
		}
	}
	return who, missing, nil
}
