// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package sysctl

// Host returns the files of the running kernel. Those below proc/sys/net belong to the
// network namespace of the calling thread.
func Host() Files { return Dir("/") }
