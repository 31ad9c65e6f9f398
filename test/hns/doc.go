// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hns simulates the Host Networking Service of Windows for tests: the objects,
// the versions, the error codes and the known quirks. A program that calls the real
// service's DLLs connects to a Simulator over loopback, through the DLLs that package
// wine installs in their place. A test simulates CNI, foreign programs, crashes and
// restarts with the Simulator's methods or over HTTP. It forwards no packets. README.md
// lists each behaviour, its source and how certain it is. The real interface is described
// at https://learn.microsoft.com/windows-server/networking/technologies/hcn/hcn-top
package hns
