// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// The bench measures the path from Kubernetes objects to the kernel, and new connections
// through the programmed rules. It compares them with a floor: a bare loop over a netlink
// library for the same map elements, and connections without rules. Each measurement runs
// in a process of its own, in network namespaces that end with it. The output is a
// document with a table for each part. Tests check correctness; the bench only refuses to
// time something that does not work.
package main
