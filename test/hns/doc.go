// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hns simulates the Host Networking Service of Windows, for tests: the
// objects, the versions, the error codes and the quirks that are known of it.
// A program that calls the real service's DLLs talks to a Simulator over
// loopback, through the DLLs that package wine puts in their place; a test
// plays CNI, a stranger, a crash and a restart with the Simulator's methods or
// over HTTP. No packet is forwarded. README.md lists each behaviour, where it
// is known from and how sure that is.
package hns
