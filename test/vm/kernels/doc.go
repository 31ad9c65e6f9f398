// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Command kernels runs the live tests on each kernel of package vm, and writes the
// results to a page. Results of earlier runs stay on the page if they are not replaced,
// so that a part can be run alone.
package main
