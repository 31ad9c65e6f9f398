// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package completion says which values shells complete: modes, formats, and the names of
// Services that the running proxy has.
package completion
