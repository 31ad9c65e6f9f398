// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cluster runs a real control plane, etcd and kube-apiserver, for tests: on one
// host of a netlab network, with fresh certificates, where the nodes of that network
// reach it. No controller and no kubelet runs. Tests write EndpointSlices and Nodes
// themselves, and so decide what the proxy learns and when.
//
// The programs are built from source, at the versions in test/e2e/go.mod, and kept in the
// user's cache folder. That module has no packages of its own. The helpers of tests are
// here, in the product's module, beside the network they run in, and the API server's
// many requirements stay out of the product's go.mod. The tests define what the proxy
// should do.
package cluster
