// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"net/netip"
	"os"

	"kubeproxy/common/metrics"
	"kubeproxy/common/service"
	"kubeproxy/common/takeover"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
)

func system() *mode.System {
	return &mode.System{
		Probe:     func(c *config.Config, f service.Family) error { return Probe(f, OptionsOf(c)) },
		Open:      mode.OpenEach(newOf, complete),
		Owned:     Owned,
		Targets:   targets,
		ReadBack:  mode.ReadBack(newOf),
		Conntrack: true, Translates: true,
	}
}

func newOf(c *config.Config, f service.Family) (*Backend, error) { return New(f, OptionsOf(c)) }

// complete adds to x counters, and what the rules of b cannot do here.
func complete(s mode.Setup, x *mode.Backend, b *Backend) error {
	x.LacksLocalhost = b.NeedListeners()
	x.LetGo = letGo
	x.Packets = func(ctx context.Context) (metrics.Packets, error) {
		p, err := b.Packets(ctx)
		return metrics.Packets(p), err
	}
	if s.Config.CountTraffic {
		x.Traffic = NewCounters(x.Family, OptionsOf(s.Config))
	}
	return nil
}

// letGo removes a client from the list of those that use an endpoint (kernel:
// net/netfilter/xt_recent.c, recent_mt_proc_write).
func letGo(p *service.Port, client netip.Addr, e service.Address) error {
	list := recentList(p, netip.AddrPortFrom(e.Addr, e.Port))
	return os.WriteFile("/proc/thread-self/net/xt_recent/"+list, []byte("-"+client.String()+"\n"), 0)
}

// Owned names the targets that rounds of modes iptables and userspace keep in order: the
// chains in the variant of iptables that this node uses.
func Owned(_ *config.Config, f service.Family) ([]string, error) {
	v, err := NodeVariant(f)
	return []string{Leftovers{Variant: v, Family: f}.String()}, err
}

func targets(context.Context, mode.Setup) ([]takeover.Target, error) {
	var all []takeover.Target
	for _, f := range service.Families {
		for _, v := range Variants {
			all = append(all, takeover.Target{Leftovers: Leftovers{Variant: v, Family: f}, Family: f})
		}
	}
	return all, nil
}
