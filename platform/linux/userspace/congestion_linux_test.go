// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Sockets of a listener do without the system's congestion control where the
// other side is near, and have it where it is far.
func TestPacing(t *testing.T) {
	l, at := listen(t)
	raw, err := l.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	chosen := control(t, l)
	var p congestionControl
	if err := raw.Control(func(fd uintptr) { p.replace(fd, chosen) }); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		near time.Duration
		want string
	}{
		{"near", time.Minute, "reno"},
		{"far", 0, chosen},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := net.Dial("tcp", at.String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			s, err := l.AcceptTCP()
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			p.restoreIfFar(s, tt.near)
			if got := control(t, s); got != tt.want {
				t.Errorf("congestion control %q, want %q", got, tt.want)
			}
		})
	}
}

// A socket is eased if, and only if, the system would pace it.
func TestAvoidPacing(t *testing.T) {
	l, _ := listen(t)
	chosen := control(t, l)
	p, got := avoidPacingOn(l), control(t, l)
	switch {
	case chosen == "bbr" && (got != "reno" || p != "bbr"):
		t.Errorf("a paced listener has %q and remembers %q", got, p)
	case chosen != "bbr" && (got != chosen || p != ""):
		t.Errorf("a listener with %q has %q now and remembers %q", chosen, got, p)
	}
}

// control is the congestion control of a socket.
func control(t *testing.T, c syscall.Conn) string {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var name string
	if ctl := raw.Control(func(fd uintptr) {
		name, err = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	}); ctl != nil || err != nil {
		t.Fatal(ctl, err)
	}
	return name
}
