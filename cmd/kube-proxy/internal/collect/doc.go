// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package collect has the parts of what kube-proxy support-dump archives: what the running
// proxy says, what the node has installed, what the system says, and the log. The
// configuration goes in; parts come out, which package support writes.
package collect
