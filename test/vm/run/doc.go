// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Command run runs one command in a virtual machine with another kernel, as package vm
// describes. Its exit code is the command's, or 124 if that took too long, 125 if the
// machine died, and 126 if the machine could not be created. It can run tests:
//
//	go test -exec 'go run kubeproxy/test/vm/run' ./platform/linux/...
//
// The folder testdata of the package is copied in, with its README, and the examples and
// the deployments of the module. Coverage and profiles are copied back.
package main
