// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package host

import (
	"context"
	"net/netip"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
)

// Flows are known on Linux only.
func Flows(context.Context, *service.Snapshot, route.Conn) ([]explain.Flow, error) { return nil, nil }

// Route is known on Linux only.
func Route(netip.Addr) (string, error) { return "", nil }

// Others follows rules on Linux only.
type Others struct{}

// Close closes o.
func (o *Others) Close() {}

// Add adds nothing.
func (o *Others) Add(context.Context, *explain.Walk, route.Conn, func(netip.Addr) bool, uint32) error {
	return nil
}
