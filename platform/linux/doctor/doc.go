// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package doctor has checks of a Linux node for common/doctor.
//
// The files of the node and what the kernel lists go in, checks come out. All decisions
// are made on values that were read, so they are built and tested on any system. Files
// ending in _linux.go only read.
package doctor
