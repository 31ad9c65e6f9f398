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

// Forwards is asked on Linux only.
func Forwards(service.Family) bool { return false }

// Others follows rules on Linux only.
type Others struct{ Most int }

// Close closes o.
func (o *Others) Close() {}

// Add says what is not looked at.
func (o *Others) Add(_ context.Context, w *explain.Walk, _ route.Conn, _ func(netip.Addr) bool, _ uint32) error {
	if w.Action == route.Forward {
		w.Doubts = append(w.Doubts, explain.Doubt{Rule: "routes, interfaces and firewalls are not looked at on this system, and may stop it", Look: "route print"})
	}
	return nil
}
