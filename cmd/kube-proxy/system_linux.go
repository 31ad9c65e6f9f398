// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"

	"kubeproxy/common/lease"
	"kubeproxy/config"
	"kubeproxy/platform/linux/abstract"
	processes "kubeproxy/platform/linux/process"
)

const hostOS = config.Linux

// cleanupPrivileges is the advice to a user who lacks the privileges for a cleanup.
const cleanupPrivileges = "run this as root, or with the rights CAP_NET_ADMIN, CAP_NET_RAW and CAP_DAC_READ_SEARCH"

// leaseTransport returns how service proxies of a node find each other, and what this one
// says of itself. Proxies that serve other Services do not meet.
func leaseTransport(proxyName string) (lease.Transport, lease.Identity) {
	return abstract.Of(proxyName), abstract.Self()
}

// otherProxies names the processes that look like service proxies of this node.
func otherProxies() string {
	var all []string
	for _, p := range processes.ByName(os.DirFS("/proc"), "kube-proxy") {
		all = append(all, p.String())
	}
	return strings.Join(all, ", ")
}
