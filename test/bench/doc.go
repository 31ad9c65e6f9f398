// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// The bench measures the road from Kubernetes objects to the kernel, and new
// connections through what lies there, beside a floor: what a bare loop over
// a netlink library takes for the same map elements, and what a connection
// takes where no rule is. Each measurement runs in a process of its own, in
// network namespaces that go with it. What is right it leaves to the tests;
// it only refuses to time something that does not work.
package main
