// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Command run starts and ends the cluster of package nodes, and runs what is tried in it:
//
//	run up           a cluster with this proxy and a demo application
//	run down         removes it
//	run enter HOST COMMAND...  a command on n1, n2, n3 or control
//	run conformance  Kubernetes' own tests, with this proxy and with kube-proxy
//	run changes      installs, rolls, drains, reboots and goes back under load
//	run pages        types docs/install.md and the EKS part of docs/distributions.md
//	run page         writes docs/conformance.md again
//	run obstacle     prints why no cluster could start within a minute
package main
