// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package incluster contains only tests. They run the real program on a node made of
// network namespaces. It reads a real API server with the privileges of the deployment,
// and the tests send real packets. Package route computes the expected results from the
// API server's objects.
package incluster
