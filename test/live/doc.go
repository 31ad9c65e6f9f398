// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package live holds tests only: they run the real program on a node made of
// network namespaces and send it real packets. What should come of a
// connection is judged by package route, from the very manifests that the
// program reads. How the network is made is package netlab's business.
package live
