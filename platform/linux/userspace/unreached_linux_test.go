// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"kubeproxy/common/service"
)

// TestUnreachedIsReported checks for a report if no endpoint accepts a connection, and
// if one refuses datagrams, and for none if another endpoint served the client.
func TestUnreachedIsReported(t *testing.T) {
	e := newEcho(t)
	for _, proto := range []service.Protocol{service.TCP, service.UDP} {
		n := newNode(t, Options{UDPIdle: time.Minute}, 4096)
		type miss struct {
			name service.PortName
			n    int
			err  error
		}
		reports := make(chan miss, 10)
		n.ObserveUnreached(func(name service.PortName, clients int, err error) { reports <- miss{name, clients, err} })
		down, up := port("down", proto, dead(1), dead(2)), port("up", service.TCP, dead(3), e.at)
		if err := n.apply(t, down, up); err != nil {
			t.Fatal(err)
		}
		for range 4 {
			answers(t, n.dial(t, up))
		}
		if proto == service.TCP {
			_ = n.dialRejected(t, down)
		} else if _, err := n.caller(t, down).Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		select {
		case m := <-reports:
			if m.name != down.Name || m.n != 1 || !errors.Is(m.err, syscall.ECONNREFUSED) {
				t.Errorf("reported %d clients of %s: %v", m.n, m.name, m.err)
			}
		case <-time.After(long):
			t.Errorf("%s: nothing is reported", proto)
		}
	}
}

// TestUnreachedIsSummedUp checks that one report covers many clients.
func TestUnreachedIsSummedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTarget(service.PortName{Namespace: "shop", Name: "web"})
		miss := func(want int) {
			t.Helper()
			if _, n := x.countUnserved(time.Now()); n != want {
				t.Errorf("%d clients, want %d", n, want)
			}
		}
		miss(1)
		miss(0)
		miss(0)
		time.Sleep(reportInterval)
		miss(3)
		miss(0)
		time.Sleep(2 * reportInterval)
		miss(2)
	})
}
