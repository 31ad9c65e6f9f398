// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package platform contains the scenarios that all backends share. The input of a
// scenario is a small cluster and options of the operator. The output is what each
// backend renders for it, all in one file. The backends themselves are in the packages
// below.
package platform
