// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pipe is how the service proxies of a Windows node find each other: a named
// pipe, which goes with its process. See package lease.
package pipe
