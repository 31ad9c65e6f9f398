// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Command kubectl-svcproxy is a plugin of kubectl. It finds the pod of the proxy on a Node
// and runs a command of kube-proxy in it. It runs kubectl for that, and so has its contexts
// and its rights, and links nothing but the standard library and package printable.
package main
