// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package windows contains only tests. They run kube-proxy.exe as a whole, under Wine,
// with hcsshim and the simulated HNS, from manifests or a real API server. The node is a
// network namespace, beside which a Linux node may run the other program. The tests of
// the backend cover the calls to HNS in detail.
package windows
