// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package xtables simulates iptables and ipsets as a kernel has them, for tests of
// what programs them, and walks packets through their rules. It knows no backend.
package xtables
