// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"net/netip"
	"os"

	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/platform/linux/listeners"
	processes "kubeproxy/platform/linux/process"
)

// listeningSockets lists the sockets that programs of the node listen on.
func listeningSockets() ([]track.Socket, error) {
	found, err := listeners.List(sockets())
	if err != nil {
		return nil, err
	}
	all := make([]track.Socket, len(found))
	for i, l := range found {
		all[i] = track.Socket{Protocol: l.Protocol, Addr: l.Addr}
	}
	return all, nil
}

// PortHolder names the process that listens on the TCP port at, empty if that is unknown.
func PortHolder(at netip.AddrPort) string {
	found, err := listeners.List(sockets())
	if err != nil {
		return ""
	}
	for _, l := range found {
		if l.Protocol != service.TCP || !l.ConflictsWith(at) {
			continue
		}
		if p, known := processes.BySocketInode(os.DirFS("/proc"), l.Inode); known {
			return p.String()
		}
	}
	return ""
}
