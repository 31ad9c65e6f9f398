// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"fmt"
	"path"
	"strings"

	"kubeproxy/common/doctor"
)

// Variants is what is known of the two variants of iptables.
type Variants struct {
	Used    string   // the variant that the proxy takes
	Kubelet []string // the variants in which kubelet made chains
}

// variants checks that the proxy uses the variant of iptables that kubelet uses.
func (n *Node) variants(context.Context) (doctor.Seen, error) {
	if n.only("nftables") {
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
		f.Fix = "update-alternatives --set iptables /usr/sbin/iptables-" + v.Kubelet[0]
		f.Advice = "in a container, take an image with both variants"
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
	if n.only("nftables") {
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

// lockSeen decides from the mounts of the process, see proc_pid_mountinfo(5). A
// container has an overlay as its root.
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
