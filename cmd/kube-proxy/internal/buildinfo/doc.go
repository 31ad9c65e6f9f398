// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package buildinfo says what this program was built from.
package buildinfo
