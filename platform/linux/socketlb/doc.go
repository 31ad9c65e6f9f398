// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package socketlb connects TCP sockets of the node and its pods to an endpoint of a
// Service at connect(2), so that their packets need no translation. It is a layer above
// the rules of a mode, which stay complete: they handle each connection that the layer
// does not take. A service.Snapshot goes in. Tables come out, which programs of the
// kernel read. They stand in memory that the kernel shares, so a changed list costs a few
// stores and no system call. If anything fails, the layer is removed from the kernel, and
// only speed is lost.
//
// The parts: frontends.go says which frontends are taken, table.go and slots.go lay out
// the memory, backend.go and plan.go find out what changes, driver_linux.go loads and
// attaches bpf/socketlb.c. All others build, and are tested, on any system.
package socketlb

import (
	"strings"

	"kubeproxy/common/service"
)

// bpffs is where systemd mounts the BPF file system.
const bpffs = "/sys/fs/bpf"

// Name is the folder of the layer below the BPF file system.
const Name = "kube-services"

// Options are what an operator decides.
type Options struct {
	// Off has the layer removed that an earlier process left.
	Off bool
	// NodeOnly leaves pods to the rules.
	NodeOnly bool
	// Connections, if set, is how a Backend finds out that it takes no connection of pods.
	Connections Connections
	// Name is that of the folder, Name if it is empty.
	Name string
	// Cgroup is the cgroup whose processes are taken, as a path. If it is empty, it is the
	// root of the hierarchy of version 2 that is mounted here.
	Cgroup string
	// Pins is where the BPF file system is mounted, /sys/fs/bpf if it is empty.
	Pins string
}

// NameOf returns Options.Name for a proxy that serves labelled Services. A label may have
// dots, which the BPF file system refuses in names (kernel: kernel/bpf/inode.c, bpf_lookup),
// and no plus.
func NameOf(proxy string) string {
	if proxy == "" {
		return Name
	}
	return Name + "-" + strings.ReplaceAll(proxy, ".", "+")
}

// labels name the families in paths.
var labels = [...]string{service.IPv4: "ipv4", service.IPv6: "ipv6"}
