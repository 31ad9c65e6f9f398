// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
)

// TestBoundAddress leaves an address of the node alone, and says so if it is none.
func TestBoundAddress(t *testing.T) {
	o := Options{Listen: [2]netip.Addr{service.IPv4: netip.MustParseAddr("127.0.0.1")}}
	if a := o.addr(service.IPv4); a != Addrs[service.IPv4] || o.rules().RelayPorts[service.IPv4].Last != 0 {
		t.Errorf("without a range of ports listeners are at %s", a)
	}
	o.Ports = Range{4000, 4999}
	if o.addr(service.IPv4) != o.Listen[service.IPv4] || o.addr(service.IPv6) != Addrs[service.IPv6] || o.rules().RelayPorts[service.IPv6].Last != 0 {
		t.Errorf("listeners are at %s and %s", o.addr(service.IPv4), o.addr(service.IPv6))
	}
	for text, want := range map[string]bool{"127.0.0.1": true, "203.0.113.77": false} {
		o.Listen[service.IPv4] = netip.MustParseAddr(text)
		a := addressOf(service.IPv4, o)
		if there, err := a.Has(); err != nil || there != want {
			t.Errorf("%s: %t, %v", text, there, err)
		}
		if err := a.Add(); err == nil || !strings.Contains(err.Error(), "no interface has it") {
			t.Errorf("Add = %v", err)
		}
		if err := a.Remove(); err != nil {
			t.Errorf("Remove: %v", err)
		}
	}
}

// TestBoundPassesOver has datagrams to endpoints come from no port whose rules take
// them for a listener's, as far as the system offers others.
func TestBoundPassesOver(t *testing.T) {
	_, to := listenAt(t)
	dial := func() (*net.UDPConn, error) { return net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to)) }
	one, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	_ = one.Close()
	odd := one.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	offers := []uint16{odd, odd, odd + 1}
	for _, r := range []Range{{odd, odd}, {1, 65535}, {}} {
		n := 0
		c, err := r.passOver(func() (*net.UDPConn, error) {
			n++
			at := net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 1, byte(n)}), offers[min(n, len(offers))-1]))
			return net.DialUDP("udp", at, net.UDPAddrFromAddrPort(to))
		})
		if err != nil {
			t.Fatal(err)
		}
		if want := map[uint16]int{odd: 3, 1: mostTaken + 1, 0: 1}[r.First]; n != want {
			t.Errorf("%v: %d ports, want %d", r, n, want)
		}
		_ = c.Close()
	}
}

// TestRaiseFileLimit checks that the limit is in force, and not lower than before.
func TestRaiseFileLimit(t *testing.T) {
	var before, after unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	n, err := RaiseFileLimit()
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &after); err != nil {
		t.Fatal(err)
	}
	if uint64(n) != after.Cur || after.Cur < before.Max {
		t.Errorf("raised to %d; the limit was %+v and is %+v", n, before, after)
	}
}
