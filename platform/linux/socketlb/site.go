// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

// Site is what a node has for the layer, as a process sees it.
type Site struct {
	// Root is where the cgroup hierarchy of version 2 is mounted, empty if it is not.
	Root string
	// Whole is whether the hierarchy at Root begins at the root of the node.
	Whole bool
	// Pods is the cgroup of all pods, empty if there is none below Root.
	Pods string
	// NoPrograms is whether the kernel runs no programs in cgroups.
	NoPrograms bool
}

// Presence is what the kernel has of the layer of one family.
type Presence struct {
	// Installed is whether there is anything. The other fields are those of a State. They
	// count if Known, which needs the BPF file system that has the pins.
	Installed, Known bool
	Fault, Others    string
	Pods             bool
}
