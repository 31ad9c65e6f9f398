// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package examine selects what doctor checks on this node: the running proxy, its mode,
// and the checks of the node, the API server and the proxy. Options go in; checks come
// out. Package doctor and those of each system have the checks themselves.
package examine
