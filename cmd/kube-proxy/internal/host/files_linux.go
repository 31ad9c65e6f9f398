// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import "golang.org/x/sys/unix"

// FilesLimit returns how many files this process may open, false if that is unknown. See
// RLIMIT_NOFILE in getrlimit(2).
func FilesLimit() (uint64, bool) {
	var limit unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
	return limit.Cur, err == nil
}
