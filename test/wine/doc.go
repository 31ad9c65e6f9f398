// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package wine runs Windows programs for tests on a machine without Windows. It sets up
// Wine with two DLLs that connect to the simulated HNS of package hns, and adds what Go
// programs miss in Wine 8. Input is a program with its arguments, output its log and its
// exit code. Each Wine has its own registry, disk and services, so tests run in parallel.
// The caller decides what a program does.
package wine
