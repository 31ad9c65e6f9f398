// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package host

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
)

// Flows are known on Linux only.
func Flows(context.Context, *service.Snapshot, route.Conn) ([]explain.Flow, error) { return nil, nil }

// Waiting is known on Linux only.
func Waiting(context.Context, *service.Snapshot) (map[explain.Wait]string, error) { return nil, nil }

// Route is known on Linux only.
func Route(netip.Addr) error { return nil }

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

// oneSYN has nothing to set.
func oneSYN(string, string, syscall.RawConn) error { return nil }

// namespaceOf knows this node only.
func namespaceOf(a netip.Addr) (within func(func()) error, enter string, end func(), err error) {
	has, err := hasAddr(a)
	if err == nil && !has {
		err = errors.New("on this system only the node itself can be dialed from")
	}
	return nil, "", func() {}, err
}

func dialSCTP(context.Context, string) error { return errors.ErrUnsupported }

// probePackets cannot tell.
func probePackets(context.Context, net.Conn) *explain.Packets {
	return &explain.Packets{State: explain.PacketsUnknown}
}
