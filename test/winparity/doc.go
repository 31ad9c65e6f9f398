// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package winparity contains only tests. They run Kubernetes' own kube-proxy.exe and ours
// side by side, with the objects of one real API server and a simulated HNS each. After
// each change they compare which endpoints clients reach.
package winparity
