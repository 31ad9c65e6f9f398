// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package wine runs Windows programs for tests on a machine without Windows:
// under Wine, which it sets up with two DLLs that lead to the simulated HNS of
// package hns, and with what Go programs miss in Wine 8. Each Wine has its own
// registry, disk and services, so tests run side by side. What a program does
// is left to those who start it.
package wine
