// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ipset keeps ipsets of the kernel, which rules of iptables can match
// with one look where they would need a rule for each address. It speaks
// netlink; the command ipset need not be installed.
package ipset
