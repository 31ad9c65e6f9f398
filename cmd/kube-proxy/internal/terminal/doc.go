// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package terminal has what a command needs to know of the person who reads its output:
// when to say that something takes long, and whether colours are seen.
package terminal
