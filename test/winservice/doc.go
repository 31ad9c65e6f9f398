// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package winservice tests kube-proxy.exe as a Windows service. The program installs,
// starts, queries, stops and removes the service, with the service manager of Wine.
package winservice
