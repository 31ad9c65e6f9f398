// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"net/netip"

	"kubeproxy/common/route"
)

// Fake is the fake system, for tests of what is built upon this package.
type Fake = fake

// NewFake returns a system with empty tables.
func NewFake() *Fake { return newFake() }

// RefuseWith has f refuse texts, nil for none.
func (k *fake) RefuseWith(f func(string) error) { k.Refuse = f }

// TraceResult is what the rules of a Fake make of a connection.
type TraceResult struct {
	Action     route.Action
	Targets    []netip.AddrPort
	Masquerade bool
}

// Trace walks a connection through the rules.
func Trace(k *Fake, c route.Conn, local func(netip.Addr) bool) TraceResult {
	o := trace(k, c, local)
	w := TraceResult{Action: o.Action, Targets: o.Targets}
	for _, m := range o.Masq {
		w.Masquerade = w.Masquerade || m
	}
	return w
}

// ErrBusy is why iptables could not be asked.
var ErrBusy = errBusy
