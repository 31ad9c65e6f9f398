// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux && !windows

package host

import (
	"net/netip"

	"kubeproxy/common/track"
)

// listeningSockets returns nothing.
func listeningSockets() ([]track.Socket, error) { return nil, nil }

// PortHolder returns nothing.
func PortHolder(netip.AddrPort) string { return "" }
