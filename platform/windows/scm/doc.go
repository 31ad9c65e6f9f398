// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package scm installs a program as a Windows service, controls the service, and runs the
// program under the service control manager (SCM). A Spec describes the service. The
// results are states and errors that name the remedy. The caller provides the work of the
// service. Only the driver calls Windows. All other files interpret its answers, on any
// system.
package scm
