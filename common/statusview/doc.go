// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package statusview asks a running proxy for its state and prints the answer.
//
// A Query goes in: what to ask, and the address of the metrics server. An Answer comes
// out, which a View prints as a table or as JSON, and the exit code of kube-proxy status.
// The package parses no command line and reads no configuration.
package statusview
