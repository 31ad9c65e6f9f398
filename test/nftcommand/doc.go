// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nftcommand asks the command nft about text, in a network namespace
// that goes with it, and knows which kernels the command can be too old for.
// What the text says is left to the tests.
package nftcommand
