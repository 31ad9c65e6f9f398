// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package backendtest has the suites that each backend passes. A backend describes itself
// by a Harness. The suites draw clusters, failures and changes by others, and compare the
// rules of the backend with route.Decide, with its own plans, and with the rules of a new
// process.
package backendtest
