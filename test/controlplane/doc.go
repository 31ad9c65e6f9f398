// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Command controlplane builds the control plane that the end-to-end tests run
// and the kube-proxy.exe that ours is compared with, where they are not there
// yet, and prints the paths of the programs. Tests build
// it, too; here a person sees how it goes, and no time limit of a test runs.
// What is built and where it is kept is package cluster's business.
//
// Each test starts a control plane of its own. A start takes 2.3 s on two idle
// cores, 1.3 s of processor time. Of the 27 starts of make check, 11 in
// test/apisource could be spared: 14 s of processor time in half an hour. The
// tests would then have to remove each other's Nodes, rights and ranges, and
// could not run in parallel, which saves more: test/apisource took 90 s
// instead of 186 s.
package main
