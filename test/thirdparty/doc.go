// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package thirdparty builds programs of other projects for tests, from source and at the
// versions that modules of this tree pin, and keeps them in the user's cache folder:
// Kubernetes, etcd, containerd, CoreDNS, Helm and Prometheus.
//
// A module names its programs as tools in go.mod. So the requirements of those projects
// stay out of the product's go.mod. After a change of go.mod, go.sum or the version of
// Go, they are built again.
package thirdparty
