// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Command pause holds the namespaces of a pod. It ends when it is asked to, and waits for
// orphans as process 1 must.
package main
