// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Command kernels runs the live tests on each kernel that package vm knows,
// and writes the outcome to a page. What was run before and is not run now
// stays on the page, so that a part can be run alone.
package main
