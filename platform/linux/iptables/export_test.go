// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"net/netip"

	"kubeproxy/common/route"
)

// Fake is the fake system, for tests of packages that use this one.
type Fake = fake

// NewFake returns a system with empty tables.
func NewFake() *Fake { return newFake() }

// RefuseWith sets the function that refuses texts. It returns nil for a text that is
// accepted.
func (k *fake) RefuseWith(f func(string) error) { k.Refuse = f }

// TraceResult is what the rules of a Fake do with a connection.
type TraceResult struct {
	Action     route.Action
	Targets    []netip.AddrPort
	Masquerade bool
}

// Trace evaluates the rules for a connection.
func Trace(k *Fake, c route.Conn, local func(netip.Addr) bool) TraceResult {
	o := trace(k, c, local)
	w := TraceResult{Action: o.Action, Targets: o.Targets}
	for _, m := range o.Masq {
		w.Masquerade = w.Masquerade || m
	}
	return w
}

// ErrBusy is errBusy.
var ErrBusy = errBusy
