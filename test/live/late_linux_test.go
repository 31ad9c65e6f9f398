// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
)

// TestLateAnswers has endpoints whose SYN-ACKs come late. Connections wait for them, and none
// draws again, unless no endpoint is dialled: then the first ones to each do.
func TestLateAnswers(t *testing.T) {
	for _, tc := range []struct {
		mode, setting string
		late          time.Duration
		accelerated   bool
	}{
		{faultModes[0], "on", 1500 * time.Millisecond, false}, {faultModes[0], "off", 700 * time.Millisecond, false}, {faultModes[1], "on", 1500 * time.Millisecond, false},
		{faultModes[0], "on", 1500 * time.Millisecond, true},
	} {
		t.Run(fmt.Sprintf("%s %s accelerated=%t", tc.mode, tc.setting, tc.accelerated), func(t *testing.T) {
			t.Parallel()
			m := modeNamed(tc.mode)
			m.plain, m.accelerated = !tc.accelerated, tc.accelerated
			m.flags = append(slices.Clip(m.flags), "--silent-endpoints="+tc.setting)
			lateAnswers(t, m, tc.late, tc.setting == "on")
		})
	}
}

func lateAnswers(t *testing.T, m mode, late time.Duration, dialled bool) {
	c := newCluster(t, m)
	web := app{name: "web", number: 10, plain: true}.on(c.Host("web-3"), c.Host("web-4"))
	p := c.start(t, web)
	c.awaitProgrammed(t)
	for _, h := range []*netlab.Host{c.Host("web-3"), c.Host("web-4")} {
		holdAnswers(t, h, late)
	}
	r := c.Host("shopper").Load(t.Context(), netlab.LoadConfig{
		Query: netlab.Query{Proto: "tcp", To: web.at(service.ClusterIP, service.IPv4), Timeout: 20 * time.Second}, Workers: 2, Total: 12,
	}).Wait()
	draws := metric(t, p, "kubeproxy_second_draws_total")
	t.Logf("%v draws; %s", draws, r)
	if most := 4.0; r.Outcomes[netlab.Answered] != 12 || draws > most || dialled && draws > 0 {
		t.Errorf("%v draws again: %s", draws, r)
	}
	x := c.silent(t)
	kit.Check(t, len(x) == 0, "late endpoints are silent: %+v", x)
}

// holdAnswers delays the SYN-ACKs of IPv4 that h sends: they leave by a device whose reader
// sends them later.
func holdAnswers(t *testing.T, h *netlab.Host, late time.Duration) {
	t.Helper()
	const held, sent, table = 8, 7, 77
	var device *os.File
	var out int
	kit.Must(t, h.Do(func() (err error) {
		tun := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "held"}, Mode: netlink.TUNTAP_MODE_TUN, Flags: netlink.TUNTAP_NO_PI | netlink.TUNTAP_ONE_QUEUE, NonPersist: true, Queues: 1}
		kit.Must(t, netlink.LinkAdd(tun))
		kit.Must(t, netlink.LinkSetUp(tun))
		link, err := netlink.LinkByName("held")
		kit.Must(t, err)
		kit.Must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Table: table, Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}}))
		rule := netlink.NewRule()
		rule.Mark, rule.Table, rule.Family = held, table, unix.AF_INET
		kit.Must(t, netlink.RuleAdd(rule))
		device = tun.Fds[0]
		out, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		kit.Must(t, err)
		return unix.SetsockoptInt(out, unix.SOL_SOCKET, unix.SO_MARK, sent)
	}))
	nft(t, h, "table ip held { chain out { type route hook output priority mangle; tcp flags & (syn | ack) == (syn | ack) meta mark != 7 meta mark set 8; }; }\n")
	t.Cleanup(func() { _ = device.Close() })
	go func() {
		for {
			packet := make([]byte, 2048)
			n, err := device.Read(packet)
			if err != nil {
				return
			}
			if n < 20 || packet[0]>>4 != 4 {
				continue
			}
			time.AfterFunc(late, func() {
				to := netip.AddrPortFrom(netip.AddrFrom4([4]byte(packet[16:20])), 0)
				_ = unix.Sendto(out, packet[:n], 0, sockaddr(to)) // TCP repeats it
			})
		}
	}()
}
