// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// The demo shows the proxy at work on real connections: it makes a small network of
// namespaces, starts the proxy on a node in it, connects to every kind of Service
// address, and compares the answers with a table in the folder of the manifests. Only
// that table says what the proxy should do.
package main
