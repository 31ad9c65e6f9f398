// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package doctor has checks of a Linux node for common/doctor.
//
// The files of the node and what the kernel lists go in, checks come out. All decisions
// are made on values that were read, so they are built and tested on any system. Files
// ending in _linux.go only read.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"

	"kubeproxy/common/doctor"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/sysctl"
)

func trim(b []byte) string { return strings.TrimSpace(string(b)) }

// forwarding checks that the kernel forwards, IPv6 if an interface has an address of it.
func (n *Node) forwarding(ctx context.Context) (doctor.Seen, error) {
	if n.all(Mode.relays) {
		return doctor.NothingToSee("mode userspace relays connections itself"), nil
	}
	families, err := n.families()
	if err != nil {
		return doctor.Seen{}, err
	}
	var found []doctor.Finding
	for _, o := range sysctl.Forwarding(dryFiles{n}, families...) {
		if o.Have == "" {
			return doctor.Seen{}, fmt.Errorf("read %s: %w", o.Name, o.Err)
		}
		if o.Action != sysctl.Mismatch {
			continue
		}
		x := doctor.Finding{
			Topic: doctor.IPForward, Subject: o.Name, What: o.String(), Fix: "sysctl -w " + o.Name + "=1",
			Advice: "write it to a file in /etc/sysctl.d, too, so that it lasts",
		}
		if !o.Stops() {
			x.Severity = doctor.Risk
		}
		found = append(found, x)
	}
	off, err := n.disabled6(ctx, families)
	return doctor.Seen{Findings: append(found, off...), Note: "of " + familyNames(families)}, err
}

// disabled6 finds IPv6 switched off on the node while Services have addresses of it.
func (n *Node) disabled6(ctx context.Context, families []service.Family) ([]doctor.Finding, error) {
	const name = "net.ipv6.conf.all.disable_ipv6"
	if off, _ := n.read("proc/sys/net/ipv6/conf/all/disable_ipv6"); off != "1" || slices.Contains(families, service.IPv6) { // no file: no IPv6
		return nil, nil
	}
	want, err := n.Services(ctx)
	if err != nil || want == nil || want.Len(service.IPv6) == 0 {
		return nil, err
	}
	return []doctor.Finding{{
		Topic: doctor.IPForward, Subject: name, Fix: "sysctl -w " + name + "=0",
		What:   fmt.Sprintf("%s is 1 and no interface has an address of IPv6, but %d Service ports have one: no client reaches them here", name, want.Len(service.IPv6)),
		Advice: "give the node its addresses of IPv6 again, or make the Services IPv4 alone (spec.ipFamilies)",
	}}, nil
}

// families returns the families that the node has global addresses of.
func (n *Node) families() ([]service.Family, error) {
	links, err := n.Kernel.Links()
	if err != nil {
		return nil, err
	}
	var all []service.Family
	for _, f := range service.Families {
		if slices.ContainsFunc(links, func(l Link) bool { return l.Global[f] }) {
			all = append(all, f)
		}
	}
	if len(all) == 0 {
		all = []service.Family{service.IPv4}
	}
	return all, nil
}

func familyNames(families []service.Family) string {
	var names []string
	for _, f := range families {
		names = append(names, f.String())
	}
	return strings.Join(names, " and ")
}

// reversePathFilter checks that no interface drops packets whose source has a route
// through another one. The kernel takes the larger value of an interface and of all, see
// https://docs.kernel.org/networking/ip-sysctl.html.
func (n *Node) reversePathFilter(context.Context) (doctor.Seen, error) {
	links, err := n.Kernel.Links()
	if err != nil {
		return doctor.Seen{}, err
	}
	var outside []string
	for _, l := range links {
		if l.Subnet && !l.Bridge && l.Master == "" {
			outside = append(outside, l.Name)
		}
	}
	slices.Sort(outside)
	if len(outside) < 2 {
		return doctor.NothingToSee("fewer than two interfaces lead to other machines"), nil
	}
	all, err := n.filterOf("all")
	if err != nil {
		return doctor.Seen{}, err
	}
	var strict []string
	for _, name := range outside {
		own, err := n.filterOf(name)
		if err == nil && max(all, own) == 1 {
			strict = append(strict, name)
		}
	}
	seen := doctor.Seen{Note: "of " + strings.Join(outside, ", ")}
	if len(strict) > 0 {
		seen.Findings = []doctor.Finding{{
			Topic: doctor.ReversePathFilter, What: "rp_filter is strict on " + strings.Join(strict, ", ") + ", and the node has several interfaces to other machines",
			Fix: "sysctl -w net.ipv4.conf.all.rp_filter=2",
		}}
	}
	return seen, nil
}

func (n *Node) filterOf(link string) (int, error) {
	text, err := n.read("proc/sys/net/ipv4/conf/" + link + "/rp_filter")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(text)
}

// bridges checks that packets between ports of a bridge pass netfilter.
func (n *Node) bridges(context.Context) (doctor.Seen, error) {
	if n.all(Mode.relays) {
		return doctor.NothingToSee("mode userspace relays connections itself"), nil
	}
	links, err := n.Kernel.Links()
	if err != nil {
		return doctor.Seen{}, err
	}
	var names []string
	for _, l := range links {
		if l.Bridge && slices.ContainsFunc(links, func(p Link) bool { return p.Master == l.Name }) {
			names = append(names, l.Name)
		}
	}
	if len(names) == 0 {
		return doctor.NothingToSee("no bridge has a port"), nil
	}
	slices.Sort(names)
	seen := doctor.Seen{Note: "of " + strings.Join(names, ", ")}
	f := doctor.Finding{Topic: doctor.BridgeNetfilter, Advice: "nothing to do if no pods share a bridge"}
	const setting = "net.bridge.bridge-nf-call-"
	const fix = "sysctl -w " + setting + "iptables=1 " + setting + "ip6tables=1"
	var off []string
	for _, name := range []string{"iptables", "ip6tables"} {
		text, err := n.read("proc/sys/net/bridge/bridge-nf-call-" + name)
		if errors.Is(err, fs.ErrNotExist) {
			f.What = fmt.Sprintf("the module br_netfilter is not loaded, and bridges have ports: %s", strings.Join(names, ", "))
			f.Fix = "modprobe br_netfilter && " + fix
			seen.Findings = []doctor.Finding{f}
			return seen, nil
		}
		if err != nil {
			return doctor.Seen{}, err
		}
		if text == "0" {
			off = append(off, setting+name)
		}
	}
	if len(off) > 0 {
		f.What = fmt.Sprintf("%s is 0, and bridges have ports: %s", strings.Join(off, " and "), strings.Join(names, ", "))
		f.Fix = fix
		seen.Findings = []doctor.Finding{f}
	}
	return seen, nil
}

// settings checks that the proxy can write the settings that differ from what the
// configuration asks for, and that the kernel drops packets outside of the TCP window.
func (n *Node) settings(context.Context) (doctor.Seen, error) {
	var found []doctor.Finding
	for _, o := range sysctl.Apply(dryFiles{n}, n.Settings) {
		if o.Action != sysctl.Failed || errors.Is(o.Err, fs.ErrNotExist) || o.Have == "" { // appears when connection tracking is used; cannot be read
			continue
		}
		f := doctor.Finding{Topic: doctor.Setting, Subject: o.Name, What: fmt.Sprintf("%s is %s, wanted %s, and this process may not write it", o.Name, o.Have, o.Want),
			Fix: "sysctl -w " + o.Name + "=" + o.Want, Advice: "run it on the host, or kube-proxy --init-only in a privileged container"}
		if strings.Contains(o.Name, " ") { // a parameter of a module
			f.Fix = "echo " + o.Want + " > /sys/module/nf_conntrack/parameters/hashsize"
		}
		found = append(found, f)
	}
	if sysctl.TCPBeLiberal(dryFiles{n}) && !n.Settings.TCPBeLiberal && !n.all(Mode.relays) {
		const name = "net.netfilter.nf_conntrack_tcp_be_liberal"
		found = append(found, doctor.Finding{Topic: doctor.Liberal, Subject: name, What: name + " is 1, which the configuration does not ask for",
			Fix: "sysctl -w " + name + "=0", Advice: "where routes are asymmetric, keep it and set conntrack.tcpBeLiberal"})
	}
	return doctor.Seen{Findings: found, Note: "of connection tracking, as configured"}, nil
}

// Thresholds of connection tracking.
const (
	fullPercent = 90
	// manyFailures is from how many lost inserts on they count as a fault. A node loses
	// some to harmless races. Tests parse the kernel's file only: a namespace cannot be made
	// to lose inserts, as the kernel keeps both of most packets that clash, see kernel commit
	// 6a757c07e51f ("netfilter: conntrack: allow insertion of clashing entries").
	manyFailures = 1000
)

// conntrack checks the size of the table and what the kernel lost.
func (n *Node) conntrack(context.Context) (doctor.Seen, error) {
	now, most, err := sysctl.Connections(dryFiles{n})
	if errors.Is(err, fs.ErrNotExist) {
		return doctor.NothingToSee("the kernel does not track connections yet"), nil
	}
	if err != nil {
		return doctor.Seen{}, err
	}
	seen := doctor.Seen{Note: fmt.Sprintf("%d of %d connections", now, most)}
	enlarge := fmt.Sprintf("sysctl -w net.netfilter.nf_conntrack_max=%d", 2*most)
	if most > 0 && now*100 >= most*fullPercent {
		seen.Findings = append(seen.Findings, doctor.Finding{Topic: doctor.ConntrackFull, What: fmt.Sprintf("%d of %d connections are tracked, which is %d %%", now, most, now*100/most),
			Fix: enlarge, Advice: "conntrack.min or conntrack.maxPerCore makes it last; docs/troubleshooting.md#the-conntrack-table-is-full looks for the cause"})
	}
	text, err := n.read("proc/thread-self/net/stat/nf_conntrack")
	if errors.Is(err, fs.ErrNotExist) {
		return seen, nil
	}
	if err != nil {
		return doctor.Seen{}, err
	}
	lost, err := statistics(text)
	if err != nil {
		return doctor.Seen{}, err
	}
	if early := lost["early_drop"]; early > 0 {
		seen.Findings = append(seen.Findings, doctor.Finding{Topic: doctor.EarlyDrop, What: fmt.Sprintf("the kernel dropped %d connections since it was started, because its table was full", early),
			Fix: enlarge, Advice: "the count stays until a restart: watch with conntrack -S whether it grows"})
	}
	if failed := lost["insert_failed"]; failed >= manyFailures {
		seen.Findings = append(seen.Findings, doctor.Finding{Topic: doctor.InsertFailed, What: fmt.Sprintf("the kernel lost %d packets since it was started, because another packet of the connection was first", failed),
			Advice: "watch with conntrack -S whether it grows; let pods query DNS over TCP or a cache of the node, or set single-request-reopen in their resolv.conf"})
	}
	return seen, nil
}

// statistics sums the columns of /proc/net/stat/nf_conntrack, with a row for each processor.
func statistics(text string) (map[string]uint64, error) {
	lines := strings.Split(text, "\n")
	names := strings.Fields(lines[0])
	sum := map[string]uint64{}
	for _, line := range lines[1:] {
		for i, word := range strings.Fields(line) {
			v, err := strconv.ParseUint(word, 16, 64)
			if err != nil || i >= len(names) {
				return nil, fmt.Errorf("unexpected line %q in /proc/net/stat/nf_conntrack", line)
			}
			sum[names[i]] += v
		}
	}
	return sum, nil
}

// Mode is a mode to check for.
type Mode struct {
	Name string
	// Primary is the family without which the mode does not start.
	Primary service.Family
	// Optional is whether the proxy works without the mode.
	Optional bool
	// Relays, XTables and Routes are as in mode.Descriptor.
	Relays, XTables, Routes bool
	// Probe says in one sentence what the node lacks for a family. It changes nothing.
	Probe func(service.Family) error
}

func (m Mode) relays() bool  { return m.Relays }
func (m Mode) xtables() bool { return m.XTables }
func (m Mode) routes() bool  { return m.Routes }

func (n *Node) modeCheck(m Mode) doctor.Check {
	return doctor.Check{Name: "mode " + m.Name, Look: func(context.Context) (doctor.Seen, error) {
		families, err := n.families()
		if err != nil {
			return doctor.Seen{}, err
		}
		families = slices.DeleteFunc(families, func(f service.Family) bool { return f == m.Primary })
		families = slices.Insert(families, 0, m.Primary)
		seen := doctor.Seen{Note: "kernel and commands for " + familyNames(families)}
		for _, f := range families {
			err := m.Probe(f)
			if errors.Is(err, fs.ErrPermission) {
				return seen, fmt.Errorf("%w; run this as root, or with the rights of the proxy", err)
			}
			if err != nil {
				seen.Findings = append(seen.Findings, m.finding(f, err))
			}
			if err != nil && f == m.Primary {
				break // no other family works without it
			}
		}
		return seen, nil
	}}
}

func (m Mode) finding(f service.Family, err error) doctor.Finding {
	found := doctor.Finding{Topic: doctor.ModeUnavailable, Subject: f.String(), Mode: m.Name, What: err.Error(), Severity: doctor.Risk,
		Advice: "the mode goes on without the family"}
	if f == m.Primary {
		found.Severity, found.Advice = doctor.Blocks, "or set another --proxy-mode; kube-proxy doctor --all-modes shows which works"
	}
	if m.Optional {
		found.Severity, found.Advice = doctor.Risk, "nothing to do as long as the node uses another mode"
	}
	var modules []string
	for e, is := errors.AsType[*sysctl.MissingError](err); is; e, is = errors.AsType[*sysctl.MissingError](e.Unwrap()) {
		modules = append(modules, slices.DeleteFunc(slices.Clone(e.Modules), func(m string) bool { return slices.Contains(modules, m) })...)
	}
	if len(modules) > 0 {
		found.Fix = "modprobe -a " + strings.Join(modules, " ")
	} else if errors.Is(err, exec.ErrNotFound) {
		found.Advice = "install iptables, in a container take the image kubeproxy-iptables, which has both variants; " + found.Advice
	}
	return found
}

// Variants is what is known of the two variants of iptables.
type Variants struct {
	Used    string   // the variant that the proxy takes
	Kubelet []string // the variants in which kubelet made chains
}

// variants checks that the proxy uses the variant of iptables that kubelet uses.
func (n *Node) variants(context.Context) (doctor.Seen, error) {
	if !n.any(Mode.xtables) {
		return doctor.NothingToSee("mode nftables needs none"), nil
	}
	v, err := n.IPTables()
	if err != nil {
		return doctor.NothingToSee("%v", err), nil // the probe of the mode says what is missing
	}
	return variantsSeen(v), nil
}

func variantsSeen(v Variants) doctor.Seen {
	seen := doctor.Seen{Note: "iptables-" + v.Used}
	f := doctor.Finding{Topic: doctor.IPTablesVariants}
	switch {
	case len(v.Kubelet) > 1:
		f.What = fmt.Sprintf("kubelet made chains with both variants of iptables, and the proxy takes iptables-%s", v.Used)
		f.Advice = "kubelet makes them anew at its start, with the variant of the host: delete table mangle of the other one, or restart the node"
	case len(v.Kubelet) == 1 && v.Kubelet[0] != v.Used:
		f.What = fmt.Sprintf("kubelet uses iptables-%s, and there are only commands of iptables-%s for the proxy", v.Kubelet[0], v.Used)
		f.Advice = "in a container, take an image with both variants; on a node whose other programs use that variant, too: update-alternatives --set iptables /usr/sbin/iptables-" + v.Kubelet[0]
	default:
		return seen
	}
	seen.Findings = []doctor.Finding{f}
	return seen
}

// lockFile is the lock that the users of iptables-legacy share, see iptables(8).
const lockFile = "/run/xtables.lock"

// xtablesLock checks that a container has the lock of the host.
func (n *Node) xtablesLock(context.Context) (doctor.Seen, error) {
	if !n.any(Mode.xtables) {
		return doctor.NothingToSee("mode nftables needs none"), nil
	}
	if v, err := n.IPTables(); err == nil && v.Used == "nft" {
		return doctor.NothingToSee("iptables-nft needs none"), nil
	}
	mounts, err := n.read("proc/self/mountinfo")
	if err != nil {
		return doctor.Seen{}, err
	}
	return lockSeen(mounts), nil
}

// lockSeen decides from mounts (proc_pid_mountinfo(5)). A container has an overlay as its root.
func lockSeen(mounts string) doctor.Seen {
	container, covering, kind := false, "", ""
	for line := range strings.Lines(mounts) {
		const point = 4
		before, after, ok := strings.Cut(line, " - ")
		fields, types := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) <= point || len(types) == 0 {
			continue
		}
		at := fields[point]
		if at == "/" && strings.Contains(types[0], "overlay") {
			container = true
		}
		if covers(at, lockFile) && len(at) >= len(covering) {
			covering, kind = at, types[0]
		}
	}
	switch {
	case !container:
		return doctor.Seen{Note: "this is no container"}
	case covering == lockFile, covering != "/" && kind != "tmpfs":
		return doctor.Seen{Note: "mounted from the host, as it seems"}
	}
	return doctor.Seen{Findings: []doctor.Finding{{
		Topic: doctor.XtablesLock, What: lockFile + " belongs to this container, not to the host, so it does not exclude programs outside of the container",
		Advice: "mount the file of the host with hostPath " + lockFile + ", type FileOrCreate, as build/deploy/linux does",
	}}}
}

// covers returns whether a mount point holds a file.
func covers(at, file string) bool {
	return at == "/" || at == file || strings.HasPrefix(file, path.Clean(at)+"/")
}

// runtimeProfiles are the profiles of AppArmor that containerd, CRI-O and Docker give to containers without one. All
// have the rules of https://github.com/moby/profiles/blob/main/apparmor/template.go, which deny to write to /sys/fs
// except for cgroups.
var runtimeProfiles = []string{"cri-containerd.apparmor.d", "crio-default", "docker-default"}

// addConfinement adds what AppArmor or SELinux has against socket acceleration in the proxy that runs, or else in this
// process. A profile of the user's may let it pass: it does if the layer is there.
func (l *lacks) addConfinement(ctx context.Context, n *Node, there bool) {
	who, dir := n.proxy(ctx)
	label, err := n.read(dir + "/attr/current")
	if err != nil {
		return // no such module
	}
	const chart = "; the chart does with linux.socketAcceleration=true"
	profile, enforced := strings.CutSuffix(strings.TrimRight(label, "\x00"), " (enforce)")
	if usual := slices.Contains(runtimeProfiles, profile); enforced && (usual || !there) {
		refuses := "may let"
		if usual {
			refuses = "lets"
		}
		l.add("apparmor", fmt.Sprintf("%s runs under the AppArmor profile %s, which %s it write nothing below %s", who, profile, refuses, pins), "",
			"set securityContext.appArmorProfile.type of the container to Unconfined, before Kubernetes 1.30 the annotation container.apparmor.security.beta.kubernetes.io/CONTAINER of the pod to unconfined"+chart)
	}
	if kind := containerType(profile); kind != "" && !n.permissive() {
		l.add("selinux", fmt.Sprintf("%s has the SELinux type %s, which may not use BPF", who, kind), "",
			"set securityContext.seLinuxOptions of the container to {type: spc_t, level: s0}"+chart)
	}
}

// containerType returns the type in a label of SELinux, USER:ROLE:TYPE:LEVEL, if it is one of those for containers that
// are confined. Their policy gives class bpf to spc_t alone, see
// https://github.com/containers/container-selinux/blob/main/container.te
func containerType(label string) string {
	const kind, level = 2, 3
	if parts := strings.SplitN(label, ":", level+1); len(parts) > level && (strings.HasPrefix(parts[kind], "container_") || parts[kind] == "svirt_lxc_net_t") {
		return parts[kind]
	}
	return ""
}

// permissive returns whether SELinux is known to refuse nothing. A container rarely has the file.
func (n *Node) permissive() bool {
	text, err := n.read("sys/fs/selinux/enforce")
	return err == nil && text == "0"
}
