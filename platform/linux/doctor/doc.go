// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package doctor looks at a Linux node for what keeps a service proxy from working.
//
// In go the files of the node and what the kernel lists. Out come checks for
// common/doctor. All decisions are made on values that were read, so they are built and
// tested on any system. Files ending in _linux.go only read.
package doctor
