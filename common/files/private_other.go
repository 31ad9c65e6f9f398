// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !windows

package files

import "os"

// MkdirPrivate makes the folder dir, and those above it, if they are missing.
func MkdirPrivate(dir string) error { return os.MkdirAll(dir, 0o755) }

// Protect is MkdirPrivate: outside of Windows, permissions of files do what is needed.
func Protect(dir string) error { return MkdirPrivate(dir) }

// Writers is for Windows.
func Writers(string) ([]string, error) { return nil, nil }
