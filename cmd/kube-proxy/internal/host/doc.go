// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package host reads what the node has besides the objects of the proxy: its addresses,
// the listeners of other programs, and how many files this process may open. It changes
// nothing.
package host
