// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// The demo shows the proxy at work on real connections: it makes a small
// network of namespaces, starts the proxy on a node in it, connects to every
// kind of Service address, and compares who answered with a table that lies
// beside the manifests. What the proxy should do it does not know otherwise.
package main
