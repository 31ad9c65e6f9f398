// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package host is what the proxy needs of its node besides the objects of a mode: system
// settings, addresses, the listeners and service proxies of others, and how proxies of
// one node find each other. It changes system settings only.
package host
