// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package winservice is the proxy as a Windows service: with which arguments it is
// installed, how it runs, and how its state is printed. The control of services is in
// package scm.
package winservice
