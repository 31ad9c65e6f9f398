// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package servicestate

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

// TestRelayed lets connections fail and succeed, and endpoints go.
func TestRelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var detail string
		logged := 0
		b := newScenario()
		b.Relayed = &Relayed{Condition: func(_, text string) { detail = text }, Log: func(service.Family, service.PortName, string) { logged++ }}
		web := port("web", service.IPv4, 2)
		web.Frontends = []service.Frontend{{Kind: service.ClusterIP, Addr: netip.MustParseAddr("10.96.0.1"), Port: 80}}
		first, second := web.Cluster[0].Addr, web.Cluster[1].Addr
		refused := errors.Join(errors.New("dial"), syscall.ECONNREFUSED)
		fails := func(endpoints ...netip.AddrPort) {
			for _, e := range append(endpoints, netip.AddrPort{}) {
				b.Relayed.Attempted(service.IPv4, web.Name, e, refused)
			}
		}
		expect := func(situation, reason string, failed, unserved, logs int) {
			t.Helper()
			b.round(service.IPv4, nil)
			f := b.All()[0].Ports[0].Frontends[0]
			_, all := b.Relayed.Of(service.IPv4, web.Name)
			if f.Why != reason || (f.Reason == NotReached) != (reason != "") || len(all) != failed || logged != logs || (detail == "") != (reason == "") {
				t.Errorf("%s: frontend %+v, %d failed endpoints, %d logs, condition %q; want %q, %d, %d", situation, f, len(all), logged, detail, reason, failed, logs)
			}
			if n := b.Summary().Unserved[NotReached]; n != unserved {
				t.Errorf("%s: %d Services reach nothing, want %d", situation, n, unserved)
			}
		}
		b.setWanted(web)
		b.Relayed.Attempted(service.IPv4, web.Name, first, nil)
		expect("all is well", "", 0, 0, 0)
		b.Relayed.Attempted(service.IPv4, web.Name, first, refused)
		b.Relayed.Attempted(service.IPv4, web.Name, second, nil)
		expect("one endpoint is passed over", "", 1, 0, 0)
		fails(first, second)
		expect("both fail", "the last connection reached no endpoint: connection refused", 2, 1, 1)
		fails(first, second)
		expect("again", "the last 2 connections reached no endpoint: connection refused", 2, 1, 1)
		kit.Same(t, "condition (-want +got)", "connections to Services reach no endpoint: "+web.Name.String()+" (tcp, IPv4): connection refused", detail)
		time.Sleep(2 * quiet)
		fails(first, second)
		expect("for long", "the last 3 connections reached no endpoint: connection refused", 2, 1, 1)
		b.Relayed.Attempted(service.IPv4, web.Name, second, nil)
		expect("one is back", "", 1, 0, 1)
		left := *web
		left.Cluster, left.Draining = web.Cluster[1:], web.Cluster[:1]
		b.setWanted(&left)
		expect("the other gets no connections", "", 0, 0, 1)
		b.setWanted(web)
		fails(first, second)
		expect("a second fault", "the last connection reached no endpoint: connection refused", 2, 1, 2)
		replaced := port("web", service.IPv4, 2)
		replaced.Frontends, replaced.Cluster = web.Frontends, []service.Endpoint{{Addr: netip.MustParseAddrPort("10.244.9.9:80")}}
		b.setWanted(replaced)
		expect("the endpoints are gone", "", 0, 0, 2)
		kit.Same(t, "total (-want +got)", map[service.Family]uint64{service.IPv4: 4, service.IPv6: 0}, b.Relayed.Totals())
	})
}
