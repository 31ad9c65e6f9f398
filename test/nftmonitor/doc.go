// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nftmonitor listens to changes of the nftables rules of a host. The kernel
// reports every change of every process after its commit. So tests and the bench learn
// what a proxy wrote, and when it came into force. They decide what should be written.
package nftmonitor
