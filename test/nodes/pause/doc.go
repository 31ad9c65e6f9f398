// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Command pause holds the namespaces of a pod. It ends on a signal, and reaps orphaned
// processes, as process 1 must.
package main
