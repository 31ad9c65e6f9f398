// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"os"
	"strings"

	"kubeproxy/common/lease"
	"kubeproxy/config"
	"kubeproxy/platform/linux/abstract"
	processes "kubeproxy/platform/linux/process"
)

// OS is the system of this program.
const OS = config.Linux

// Privileges is the advice to a user who lacks the privileges for a cleanup.
const Privileges = "run this as root, or with the rights CAP_NET_ADMIN, CAP_NET_RAW and CAP_DAC_READ_SEARCH"

// LeaseTransport returns the transport by which service proxies of a node find each
// other, and the identity of this one. Proxies of other Services have another name.
func LeaseTransport(proxyName string) (lease.Transport, lease.Identity) {
	return abstract.Of(proxyName), abstract.Self()
}

// Processes names the processes that look like service proxies of this node.
func Processes() string {
	var all []string
	for _, p := range processes.ByName(os.DirFS("/proc"), "kube-proxy") {
		all = append(all, p.String())
	}
	return strings.Join(all, ", ")
}
