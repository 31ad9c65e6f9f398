// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"net/netip"
	"slices"

	"kubeproxy/common/route"
	"kubeproxy/test/xtables"
)

// trace evaluates the chains of the hooks that c passes.
func trace(k *fake, c route.Conn, local func(netip.Addr) bool) xtables.Outcome {
	t := &xtables.Tracer{System: k.System, Conn: c, Local: local}
	if c.Interface == "" {
		t.Hook(nat, "OUTPUT")
	} else {
		t.Hook(nat, "PREROUTING")
	}
	o := t.Out
	if o.Action != route.Forward {
		return xtables.Outcome{Action: after(t, c.To).Action}
	}
	slices.SortFunc(o.Targets, netip.AddrPort.Compare)
	o.Targets = slices.Compact(o.Targets)
	o.Masq = map[netip.AddrPort]bool{}
	for _, to := range o.Targets {
		then := after(t, to)
		o.Masq[to] = then.Masq != nil
		if then.Action != route.Pass {
			o.Action = then.Action
		}
	}
	return o
}

// after evaluates what follows translation.
func after(t *xtables.Tracer, to netip.AddrPort) xtables.Outcome {
	x := t.AfterDNAT(to)
	x.Translated = t.Out.Action == route.Forward
	switch {
	case t.Conn.Interface == "":
		x.Hook(filter, "OUTPUT")
	case t.Local(to.Addr()):
		x.Hook(filter, "INPUT")
	default:
		x.Hook(filter, "FORWARD")
	}
	x.Hook(nat, "POSTROUTING")
	return x.Out
}
