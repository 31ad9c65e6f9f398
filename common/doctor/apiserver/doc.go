// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package apiserver looks for what keeps a service proxy from the API server, and at the
// Node.
//
// In go the settings of the connection and the name of the Node. Out come checks for
// common/doctor. All requests read, or ask what the account may do.
package apiserver
