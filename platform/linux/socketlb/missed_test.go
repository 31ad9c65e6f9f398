// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"kubeproxy/common/service"
)

// TestMissedPods has clients connect whose connections the rules see.
func TestMissedPods(t *testing.T) {
	pods := service.LocalPods{Prefixes: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}
	for name, c := range map[string]struct {
		from, to string
		taken    Taken // in each round
		pods     service.LocalPods
		options  Options
		want     bool
	}{
		"all of pods":           {"10.1.0.9", "10.96.0.10:80", Taken{}, pods, Options{}, true},
		"but those of the node": {"10.1.0.9", "10.96.0.10:80", Taken{Node: 1}, pods, Options{}, true},
		"some are taken":        {"10.1.0.9", "10.96.0.10:80", Taken{Pods: 1}, pods, Options{}, false},
		"of the node":           {"192.0.2.1", "10.96.0.10:80", Taken{}, pods, Options{}, false},
		"to another address":    {"10.1.0.9", "10.96.0.10:81", Taken{}, pods, Options{}, false},
		"pods are not known":    {"10.1.0.9", "10.96.0.10:80", Taken{}, service.LocalPods{}, Options{}, false},
		"pods by interface":     {"10.1.0.9", "10.96.0.10:80", Taken{}, service.LocalPods{InterfacePrefix: "veth"}, Options{}, false},
		"pods keep the rules":   {"10.1.0.9", "10.96.0.10:80", Taken{}, pods, Options{NodeOnly: true}, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			k := &fake{family: service.IPv4}
			port := uint16(1000)
			o := c.options
			o.Connections = func(_ context.Context, _ service.Family, each func(from, to netip.AddrPort)) error {
				each(netip.MustParseAddrPort("10.1.0.8:7"), netip.MustParseAddrPort("10.96.0.10:80")) // an old one
				for range fewMissed {
					port++
					each(netip.AddrPortFrom(netip.MustParseAddr(c.from), port), netip.MustParseAddrPort(c.to))
				}
				return nil
			}
			b := New(service.IPv4, k, o)
			all := snapshot([]string{"10.96.0.10:80", "10.1.0.1:80"})
			node := *nodeA
			node.Pods = c.pods
			s := service.New(1, &node, allPorts(all))
			var said string
			for range 4 {
				_, out := round(t, b, s)
				said = out.Degraded
				k.taken.Node += c.taken.Node
				k.taken.Pods += c.taken.Pods
				time.Sleep(time.Second)
			}
			if got := strings.Contains(said, "takes no connection of pods: the rules saw 3 new connections of pods, as from 10.1.0.9:"); got != c.want || !c.want && said != "" {
				t.Errorf("%s: %q", name, said)
			}
			k.taken.Pods += 2
			if _, out := round(t, b, s); out.Degraded != "" {
				t.Errorf("%s, then taken: %q", name, out.Degraded)
			}
			o.Connections = func(context.Context, service.Family, func(from, to netip.AddrPort)) error {
				return fmt.Errorf("no conntrack")
			}
			b.missed.list = o.Connections
			if _, out := round(t, b, s); out.Degraded != "" {
				t.Errorf("%s, table not read: %q", name, out.Degraded)
			}
		})
	}
}

func allPorts(s *service.Snapshot) (all []*service.Port) {
	for p := range s.Ports(service.IPv4) {
		all = append(all, p)
	}
	return all
}
