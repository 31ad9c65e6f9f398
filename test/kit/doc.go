// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kit is what tests of many packages share: waiting for what must happen, the log
// and the Events of a test, golden files, sessions and tables in documents.
package kit
