// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package listen explains on every system why a program cannot listen.
package listen

import (
	"errors"
	"syscall"
)

// InUse reports that err says that an address is in use. Windows has a number of its own
// for that, WSAEADDRINUSE:
// https://learn.microsoft.com/en-us/windows/win32/winsock/windows-sockets-error-codes-2
func InUse(err error) bool {
	const wsaAddrInUse = syscall.Errno(10048)
	return errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, wsaAddrInUse)
}
