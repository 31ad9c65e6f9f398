// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package judge makes real connections in a netlab network and compares the results with
// package route: which endpoints may answer, which client address they see, how soon a
// refusal arrives. The caller passes in what should be in force.
package judge
