// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package tiny has tests that run in a virtual machine.
package tiny

import "os"

// Read reads a file of testdata.
func Read() (string, error) {
	text, err := os.ReadFile("testdata/word")
	return string(text), err
}
