// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

const howMeasured = `
Each Service has one TCP port, one ClusterIP and ten ready endpoints on 50 nodes. The tables have the medians of three
turns; the peer has one. Single changes are 2,000, spread over all Services; those across a power of two change rules in
use, not only data. A connection sends 64 bytes through three namespaces and waits for their echo; a ratio is the median of
15 rounds.

- **floor** is a bare loop over github.com/google/nftables that writes the same keys and values in transactions of the
  same size. For connections it is a direct one, without connection tracking.
- **ours** begins with the last object in memory and ends with the last commit. Decoding objects and the pause between
  two rounds are not in it.
`

const howPeer = `- **peer** is the program that PEER_KUBE_PROXY named. It reads JSON from a small API server, so decoding is in its
  figures. Its pause between rounds is 1 ms. Its peak RSS is that of its largest process.
`
