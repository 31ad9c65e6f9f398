// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import "os"

func checkName(path string) error { return checkWindowsName(path) }

func openNonblocking(path string) (*os.File, error) { return os.Open(path) }

func checkNotKernelFile(*os.File) error { return nil }
