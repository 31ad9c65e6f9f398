// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package userspace

import (
	"io"
	"net"
	"syscall"
	"time"
)

// copier moves what one side sends to the other.
type copier struct{ limits *Limits }

// pump moves what src sends to dst until src ends, which is no error.
func (*copier) pump(dst, src *net.TCPConn) error {
	_, err := io.Copy(dst, src)
	return err
}

// awaitPacket waits for nothing: reading does.
func awaitPacket(syscall.RawConn) error { return nil }

// congestionControl is known on Linux only.
type congestionControl string

func avoidPacingOn(*net.TCPListener) congestionControl { return "" }

func (congestionControl) restoreIfFar(syscall.Conn, time.Duration) {}

// hasPacket cannot tell.
func hasPacket(syscall.RawConn) bool { return false }
