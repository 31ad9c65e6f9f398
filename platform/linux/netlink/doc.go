// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package netlink exchanges messages with the kernel as netlink(7) describes them. Encoder
// writes requests, Messages and Attributes read answers, Socket sends and receives. Callers
// know the subsystem. The package has what general libraries lack: one acknowledgement for
// a transaction, one buffer for all answers instead of memory for each attribute, and
// notifications without those about a caller's own changes.
package netlink
