// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

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
