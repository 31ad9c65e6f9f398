// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ipset creates, fills, lists and destroys ipsets of the kernel. One iptables
// rule can match a whole set where it would otherwise need a rule per address, see
// ipset(8). The input are sets and their elements. Callers decide what they contain. The
// package uses netlink, so the command ipset need not be installed.
package ipset
