// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package reading

import (
	"fmt"
	"strings"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/userspace"
	"kubeproxy/platform/mode"
)

// maxListeners bounds how many listeners a line names.
const maxListeners = 10

// LocalhostListeners describes the ports of loopback addresses on which the process would
// listen for want, and those that nothing answers. It is empty if there are none.
func LocalhostListeners(d mode.Descriptor, want *service.Snapshot) []string {
	var lines []string
	for _, f := range service.Families {
		if !d.ListensOnLocalhost(f) {
			continue
		}
		at := service.Localhost(f)
		if all := portsNamed(want, f, userspace.LocalhostPort); all != "" {
			lines = append(lines, fmt.Sprintf("no rule leads from %s to NodePorts: kube-proxy itself listens there on %s", at, all))
		}
		if all := portsNamed(want, f, userspace.LocalhostLost); all != "" {
			lines = append(lines, fmt.Sprintf("nobody answers NodePorts at %s on %s: kube-proxy relays TCP and UDP alone there", at, all))
		}
	}
	return lines
}

// portsNamed names some of the ports of f for which at yields one.
func portsNamed(want *service.Snapshot, f service.Family, at func(*service.Snapshot, *service.Port) uint16) string {
	var all []string
	n := 0
	for p := range want.Ports(f) {
		port := at(want, p)
		if port == 0 {
			continue
		}
		if n++; n <= maxListeners {
			all = append(all, fmt.Sprintf("%d/%s (%s)", port, p.Name.Protocol, p.Name))
		}
	}
	if n > maxListeners {
		return strings.Join(all, ", ") + fmt.Sprintf(" and %d more", n-maxListeners)
	}
	return strings.Join(all, ", ")
}
