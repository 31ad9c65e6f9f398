// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package markdown writes the tables of the pages in docs that a tool makes.
package markdown
