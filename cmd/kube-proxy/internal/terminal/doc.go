// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package terminal has what commands need for output to a terminal: a notice if something
// takes long, colours, and pages that replace each other.
package terminal
