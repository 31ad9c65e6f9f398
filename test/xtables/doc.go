// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package xtables simulates the iptables rules and ipsets of a kernel, and traces packets
// through them. Tests of the backends that program them pass in rules as text and read
// the outcome of packets. It knows no backend.
package xtables
