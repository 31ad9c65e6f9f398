// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package examine is what doctor looks at on this node: the running proxy, its mode, and
// the checks of the node, the API server and the proxy. Options go in; checks come out.
// What a check finds is said in package doctor and those of each system.
package examine
