// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package userspace

import "net"

// Hop limits are available on Linux only.
func saveSYN(*net.TCPListener) {}

func synHops(*net.TCPConn) int { return 0 }

func receiveHops(*net.UDPConn) {}

func datagramHops([]byte) int { return 0 }
