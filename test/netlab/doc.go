// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package netlab makes small networks of Linux network namespaces, for live
// tests and the demo: two nodes, pods on both, clients outside the cluster,
// echo servers, and questions that tell which server answered and what it saw
// of the client. It needs no external program. What the node forwards is left
// to the proxy under test.
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
// All of it has IPv6 as well, with the same last number: 2001:db8:2::10,
// fd00:10:244:1::11, 2001:db8:2::100. Clients and node-b send everything that
// is not on the LAN to node-a, so they may dial any Service address; node-a
// sends what it does not know to the gateway, so an address that nobody
// forwards is unreachable at once, while a dropped packet is met by silence.
//
// The namespaces have no names in the file system. Whatever way the program
// ends, the kernel takes them away with it.
package netlab
