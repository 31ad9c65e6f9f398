// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package build checks the repository: it contains the house rules as tests, the
// committed lists of linked packages, and the scripts behind the Makefile. It has no code
// for the product.
package build
