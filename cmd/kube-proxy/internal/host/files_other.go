// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package host

// FilesLimit is known on Linux only.
func FilesLimit() (uint64, bool) { return 0, false }
