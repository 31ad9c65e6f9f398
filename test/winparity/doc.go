// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package winparity runs Kubernetes' own kube-proxy.exe and ours side by side: the
// same objects of one real API server, a simulated HNS each. After each change
// it compares what clients reach. It has tests only.
package winparity
