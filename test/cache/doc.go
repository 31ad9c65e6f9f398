// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cache keeps what tests make once on a machine and use again: kernels, programs of
// other projects, prefixes of Wine. One process makes a thing while others wait. What nobody
// has used for a month goes.
package cache
