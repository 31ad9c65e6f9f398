// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nftmonitor listens to what becomes of the nftables rules of a host. The
// kernel tells of every change after its commit, whoever made it, so tests and
// the bench learn what a proxy wrote, and when it came into force. What should
// be written is left to them.
package nftmonitor
