// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package monitoring is the suite that reads the proxy as its operators do: a real
// Prometheus scrapes proxies that read a real API server, evaluates the alerts of the
// chart, and answers the queries of its dashboard.
//
// Each fault has a node of its own, a network namespace, and one node stays well. An
// alert has to fire on the nodes whose fault it is for, nowhere else, and end with the
// fault. A minute of the alerts lasts a second here.
package monitoring
