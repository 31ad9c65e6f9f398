// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import (
	"net/netip"

	"kubeproxy/common/track"
)

// listeningSockets knows of no program: a load balancer of HNS and a socket on one port
// exclude each other already.
func listeningSockets() ([]track.Socket, error) { return nil, nil }

// holderOf knows of no program, see listeningSockets.
func holderOf(netip.AddrPort) string { return "" }
