// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package incluster holds tests only: they run the real program on a node made
// of network namespaces, have it read a real API server with no more rights
// than the deployment gives it, and send real packets. What should come of
// them is judged by package route, from what the API server holds.
package incluster
