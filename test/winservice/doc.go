// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package winservice tests kube-proxy.exe as a Windows service: installed,
// started, asked, stopped and removed by itself, with the service manager of
// Wine.
package winservice
