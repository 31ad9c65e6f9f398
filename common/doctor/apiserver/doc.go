// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package apiserver has checks of the API server and of the Node for common/doctor.
//
// The settings of the connection and the name of the Node go in, checks come out. All
// requests read, or ask what the account may do.
package apiserver
