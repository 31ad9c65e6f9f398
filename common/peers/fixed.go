// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package peers

import "net/netip"

// Fixed are the addresses of nodes, read once, for commands that change nothing. All of them count as
// peers. It implements mode.Peers.
type Fixed map[string][]netip.Addr

// Want changes nothing.
func (Fixed) Want([]string) {}

// Settled returns true.
func (Fixed) Settled() bool { return true }

// Missing returns none: nobody was asked.
func (Fixed) Missing(IPv6) map[string]string { return nil }

// Answering returns Known.
func (f Fixed) Answering(ipv6 IPv6) map[string]netip.Addr { return f.Known(ipv6) }

// Known returns the nodes with an address of the family.
func (f Fixed) Known(ipv6 IPv6) map[string]netip.Addr {
	all := map[string]netip.Addr{}
	for name, addrs := range f {
		for _, a := range addrs {
			if _, has := all[name]; a.Is6() == bool(ipv6) && !has {
				all[name] = a
			}
		}
	}
	return all
}
