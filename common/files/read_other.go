// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux && !windows

package files

import (
	"os"
	"syscall"
)

func checkName(string) error { return nil }

func openNonblocking(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

func checkNotKernelFile(*os.File) error { return nil }
