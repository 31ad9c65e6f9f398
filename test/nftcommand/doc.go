// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nftcommand runs the command nft on texts, in a network namespace of its own,
// and knows the kernels for which the command may be too old. Tests decide about the
// texts.
package nftcommand
