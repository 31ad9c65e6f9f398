// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package netlab builds small networks of Linux network namespaces for live tests and the
// demo: two nodes, pods on both, clients outside the cluster, and echo servers. Requests
// report which server answered and which client address it saw. It needs no external
// program. The caller decides which hosts exist; the proxy under test decides what the
// node forwards.
//
// Every lab looks the same; only the number of pods and clients differs:
//
//	 pod    pod                                            pod
//	10.244.1.11 ...                                     10.244.2.11 ...
//	  │ veth-NAME                                          │ veth-NAME
//	┌─┴──────────────┐                                  ┌──┴─────────────┐
//	│     node-a     │ the proxy runs here              │     node-b     │
//	│ 192.0.2.10     │                                  │ 192.0.2.11     │
//	└─┬──────────────┘                                  └──┬─────────────┘
//	  │ eth0                                               │ eth0
//	──┴──────────┬─────── LAN 192.0.2.0/24 ───────┬────────┴──
//	             │ eth0                           │
//	        192.0.2.100 ...               gateway 192.0.2.1
//	        clients                       (answers "unreachable")
//
// All hosts have IPv6 as well, with the same last number: 2001:db8:2::10,
// fd00:10:244:1::11, 2001:db8:2::100. Clients and node-b send everything that is not on
// the LAN to node-a, so they may dial any Service address. node-a sends unknown
// destinations to the gateway, so an address that is not forwarded is unreachable at
// once, while a dropped packet times out.
//
// The namespaces have no names in the file system. The kernel removes them when the
// program ends, in whatever way.
package netlab

import (
	"net"
)

// Serve calls talk for each connection to l, in parallel, and closes the connection when
// talk returns. It ends when l is closed. Calls of talk that are running then go on.
func Serve(l net.Listener, talk func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			talk(c)
		}()
	}
}
