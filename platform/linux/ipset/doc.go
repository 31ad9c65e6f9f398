// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ipset creates, fills, lists and destroys ipsets of the kernel. One iptables
// rule can match a whole set where it would otherwise need a rule per address, see
// ipset(8). The input are sets and their elements. Callers decide what they contain. The
// package uses netlink, so the command ipset need not be installed.
//
// The calls for ipsets of github.com/vishvananda/netlink v1.3.1 are not used, only its
// constants. They send one request per element: to add 10,000 elements with comments takes
// 124 ms of CPU instead of 15 ms, and to list them 490 ms instead of 14 ms. They panic if a
// reply is not as expected, and cannot list sets without their elements.
package ipset
