// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package platform holds the scenarios that all backends share: small
// clusters, each beside what every backend makes of it. The backends
// themselves are in the packages below.
package platform
