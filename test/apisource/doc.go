// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package apisource tests how the proxy reads a real API server: one that is slow,
// silent, refuses requests or cannot be reached. It also tests what the proxy logs
// first, and the cost of reading.
package apisource
