// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package doctor looks at a Windows node for what keeps a service proxy from working.
//
// In go what HNS and Windows list, and the options of the backend. Out come checks for
// common/doctor. The decisions are the backend's own where it has them, and are built and
// tested on any system. Files ending in _windows.go only read.
package doctor
