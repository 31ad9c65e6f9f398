// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package live contains only tests. They run the real program on a node made of network
// namespaces and send it real packets. Package route computes the expected result of each
// connection from the manifests that the program reads. Package netlab builds the
// network.
package live
