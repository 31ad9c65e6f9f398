// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

const howMeasured = `
Each column is measured in a process of its own, in network namespaces that are
gone afterwards. Floor and ours take turns three times, and the tables have the
median of the three; the peer has one turn. Every Service has one TCP port, one ClusterIP and ten ready
endpoints in one EndpointSlice; endpoints are spread over 50 nodes, of which
the own one is one.

- **floor** is the least that the library takes: a bare loop over
  github.com/google/nftables that makes two maps, three rules, and puts the
  same keys and values into them as we do, in transactions of the same size.
  For connections it is a direct one, to an endpoint's own address, in a
  second network in which there is no table and so no connection tracking.
- **ours** is what runs between a source of objects and the kernel: tracker,
  snapshot, plan, netlink. Reading objects from an API server or from files is
  not in it, and neither is the pause that the proxy makes between two rounds
  to gather changes.

| row | from | to |
|-----|------|----|
| objects to tracker | first call with an object | return of the last |
| first program | Synced, after the last object | commit of the last transaction |
| one endpoint ... | call with the changed EndpointSlice | commit |
| across a power of two | the same; the count goes from 8 to 9 or back, which changes rules in use, not only data | |
| 1,000 Services changed at once | first of 1,000 calls | commit; median of 20 |
| restart on its own table | Synced in a new proxy | the table is read, compared, and found to be right |
| Go heap per endpoint | living objects before the first object | after the first program, objects of the API dropped |
| peak RSS | start of the process | end of the changes; the making of the objects is in it |
| kernel memory | before the first program | after it |

Small changes are made 2,000 times, spread over all Services. CPU is that of
the whole process in user and kernel mode, but not what the kernel frees later
in threads of its own.

Connections go from a client's namespace through the node's to a server's, by
veth, with the proxy's table in the node's. One is: connect, send 64 bytes,
wait for their echo; it is ended by a reset. Paths take turns of 60 ms in 15
rounds; the figure is the median of the rounds' medians, the ratio the median
of the ratios to the direct path in the same round. "connect alone" stops the
clock when the connection is made. "Against 10 Services" compares that ratio
with the one of a table with 10 Services.
`

const howPeer = `
- **peer** is the program that PEER_KUBE_PROXY named. It gets the same objects
  as JSON from a small API server inside the bench on the node's loopback
  interface, so decoding them is part of its figures, while ours begin with
  decoded objects. Its first program is measured from the last byte of the
  last list to the transaction after which connections through the first,
  middle and last Service work; a change from the write of the watch event to
  the next transaction. Its period between rounds is set to 1 ms. CPU is that
  of its process and of the programs that it ran and waited for.
`

// whereTimeGoes is what profiles have shown; the bench does not measure it.
const whereTimeGoes = `
### Where the time goes

Profiles on Linux 6.18 show what is behind the larger figures:

- **first program**: two thirds of its CPU time are the kernel's. Of these a
  third (at 10,000 Services) or two fifths (at 30,000) go into messages about
  each new element, which the kernel writes when anybody listens to changes;
  we do, to notice what others alter. Another 6 % and 14 % go into checking,
  transaction by transaction, whatever the verdict map leads to. The floor has
  neither to bear.
- **across a power of two**: the Service's verdict changes, so the kernel checks
  again everything that the verdict map leads to. This grows with the number
  of Services. Changes within a power of two touch data only and do not.
- **1,000 Services at once**: half goes into making and comparing the elements
  of each changed Service, a third into the tracker, a fifth into the kernel.
  The floor knows beforehand which element to change.
- **restart**: the kernel lists a map in pieces of 32 KiB and walks it from its
  beginning for each, so a listing grows with the square of the map: it is half
  of the CPU time at 10,000 Services and two thirds at 30,000.
- **connection**: most of the difference to a direct one is connection tracking,
  which translation needs and which a direct connection beside the table pays
  as well. Client and server run on one processor, so that nothing waits until
  another one wakes; "connect alone" wakes nobody at all.
`
