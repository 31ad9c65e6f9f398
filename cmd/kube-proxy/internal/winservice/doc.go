// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package winservice runs the proxy as a Windows service. It has the arguments of its
// installation, the code that runs it, and the output of its state. Package scm controls
// services.
package winservice
