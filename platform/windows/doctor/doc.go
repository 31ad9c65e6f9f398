// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package doctor has checks of a Windows node for common/doctor.
//
// What HNS and Windows list, and the options of the backend, go in; checks come out.
// Decisions use functions of the backend where it has them. They are built and tested on
// any system. Files ending in _windows.go only read.
package doctor
