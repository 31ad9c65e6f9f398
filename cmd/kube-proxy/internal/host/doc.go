// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package host reads and prepares the node, apart from the objects of a mode: system
// settings, addresses, listeners and other service proxies, and the transport by which
// proxies of one node find each other. It changes system settings only.
package host
