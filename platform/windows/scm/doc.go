// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package scm installs a program as a Windows service, steers it and runs
// under the service control manager. What the service does is the caller's. Only
// the driver calls Windows; what it answers is judged here, on any system.
package scm
