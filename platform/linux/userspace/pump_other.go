// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package userspace

import (
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// copier copies data between sockets.
type copier struct{ limits *Limits }

// pump copies from src to dst until its end, which is no error, and counts bytes in copied, if set.
func (*copier) pump(dst, src *net.TCPConn, copied *atomic.Uint64) error {
	n, err := io.Copy(dst, src)
	add(copied, int(n))
	return err
}

// awaitPacket does nothing: reading waits.
func awaitPacket(syscall.RawConn) error { return nil }

// congestionControl is for Linux only.
type congestionControl string

func avoidPacingOn(*net.TCPListener) congestionControl { return "" }

func (congestionControl) restoreIfFar(syscall.Conn, time.Duration) {}

// hasPacket is not supported.
func hasPacket(syscall.RawConn) bool { return false }

// waits is not supported.
func waits(*net.TCPConn) bool { return false }

// Hop limits are available on Linux only.
func saveSYN(*net.TCPListener) {}

func synHops(*net.TCPConn) int { return 0 }

func receiveHops(*net.UDPConn) {}

func datagramHops([]byte) int { return 0 }
