// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package windows tests kube-proxy.exe as a whole: the real program, under
// Wine, with hcsshim and the simulated HNS, from manifests or a real API
// server. The node it runs on is a network namespace, beside which a Linux node
// may run the other program. It tests only; what HNS is told in detail is left
// to the tests of the backend.
package windows
