// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

// filesLimit is known on Linux only.
func filesLimit() (uint64, bool) { return 0, false }
