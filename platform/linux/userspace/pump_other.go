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

// mover moves what one side sends to the other.
type mover struct{ limits *Limits }

// pump moves what src sends to dst until src ends, which is no error.
func (*mover) pump(dst, src *net.TCPConn) error {
	_, err := io.Copy(dst, src)
	return err
}

// awaitPacket waits for nothing: reading does.
func awaitPacket(syscall.RawConn) error { return nil }

// pacing is known on Linux only.
type pacing string

func easeListener(*net.TCPListener) pacing { return "" }

func (pacing) settle(syscall.Conn, time.Duration) {}

// waits cannot tell.
func waits(syscall.RawConn) bool { return false }
