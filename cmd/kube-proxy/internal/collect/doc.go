// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package collect makes the parts of the archive of kube-proxy support-dump: answers of
// the running proxy, what the node has installed, the state of the system, and the log.
// The configuration goes in; parts come out, which package support writes.
package collect
