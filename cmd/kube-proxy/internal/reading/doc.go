// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package reading reads once what a node must forward, for commands that change nothing.
// The configuration and manifests, or an API server, go in. A snapshot comes out. A
// Client asks a running proxy instead.
package reading
