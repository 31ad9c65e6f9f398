// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Command controlplane builds the control plane that the end-to-end tests run,
// where it is not there yet, and prints the paths of its programs. Tests build
// it, too; here a person sees how it goes, and no time limit of a test runs.
// What is built and where it is kept is package cluster's business.
package main
