// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Command controlplane builds the control plane that the end-to-end tests run
// and the kube-proxy.exe that ours is compared with, where they are not there
// yet, and prints the paths of the programs. Tests build
// it, too; here a person sees how it goes, and no time limit of a test runs.
// What is built and where it is kept is package cluster's business.
package main
