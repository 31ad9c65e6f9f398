// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package reading reads once what a node must forward, for commands that only look. The
// configuration and manifests, or an API server, go in. A snapshot comes out. An Asker
// asks a running proxy instead.
package reading
