// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package doctor finds what keeps a service proxy, or its traffic, from working on a
// node, and says how to correct it.
//
// Checks go in; they read the node, the API server or a running proxy and change nothing.
// A Report of Findings comes out, as text or JSON. The checks of the systems are in
// platform/linux/doctor and platform/windows/doctor, those of the API server in
// common/doctor/apiserver.
package doctor
