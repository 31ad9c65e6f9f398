// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux && !windows

package main

import (
	"net/netip"

	"kubeproxy/common/track"
)

// listeningSockets knows of no program.
func listeningSockets() ([]track.Socket, error) { return nil, nil }

// portHolder knows of no program.
func portHolder(netip.AddrPort) string { return "" }
