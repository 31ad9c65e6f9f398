// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package apisource tests how the proxy reads a real API server: what it makes
// of one that is slow, silent, of another mind or not there, what it says
// first, and what reading costs.
package apisource
