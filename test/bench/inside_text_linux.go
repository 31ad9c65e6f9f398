// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

const howMeasured = `
Each column has a process and network namespaces of its own. Floor and ours take turns three times, and the tables
have the medians; the peer has one turn. Each Service has one TCP port, one ClusterIP and ten ready endpoints on 50
nodes, of which the own one is one.

- **floor** is a bare loop over github.com/google/nftables that writes the same keys and values in transactions of the
  same size. For connections it is a direct one, in a network without connection tracking.
- **ours** is tracker, snapshot, plan and netlink, from the last object in memory to the commit of the last
  transaction. Decoding objects and the pause between two rounds are not in it.

Single changes are made 2,000 times, spread over all Services. Those across a power of two change rules in use, not
only data. A connection sends 64 bytes through three namespaces and waits for their echo. Paths take turns in 15
rounds; a ratio is the median of those in the same round. Heap and kernel memory are what the first program added; peak
RSS has the making of the objects in it.
`

const howPeer = `
- **peer** is the program that PEER_KUBE_PROXY named. It reads the same objects as JSON from a small API server on
  loopback, so decoding is in its figures. A change lasts from the watch event to the next transaction. Its pause
  between rounds is 1 ms.
`

// whereTimeGoes is what profiles have shown; the bench does not measure it.
const whereTimeGoes = `
### Where the time goes

From profiles on Linux 6.18:

- **first program**: two thirds of the CPU time are the kernel's: new elements, messages about them to those who
  listen, as this proxy does to notice changes by others, and checks of what the verdict map leads to.
- **across a power of two**: the kernel checks all that the verdict map leads to, so it grows with the Services.
- **1,000 Services at once**: half is comparing elements, a third the tracker, a fifth the kernel.
- **restart**: the kernel lists a map in pieces of 32 KiB and walks it from its beginning for each.
- **connection**: most of the difference is connection tracking, which a direct connection beside the table has, too.
  Client and server run on one processor, so that nothing waits until another one wakes.
`
