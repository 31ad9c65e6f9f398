// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Command prepare prepares the Wine of the tests, if that was not done yet. The tests do
// that, too; this command shows the progress and has no time limit. If Wine is not
// installed, it prints that, and the tests are skipped.
package main
