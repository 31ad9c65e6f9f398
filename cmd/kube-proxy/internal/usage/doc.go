// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package usage checks the arguments and flags of commands. A command line goes in. An
// error in one line comes out, with the word that is wrong and the words that are right.
package usage
