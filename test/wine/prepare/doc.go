// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Command prepare prepares the Wine that tests run Windows programs under,
// where that was not done yet. Tests do it, too; here a person sees how it
// goes, and no time limit of a test runs. Where Wine is not installed it says
// so, and the tests are skipped.
package main
