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

// TestPacing checks that sockets of a listener do not use the system's congestion
// control with near peers, and use it with distant ones.
func TestPacing(t *testing.T) {
	l, at := listenAt(t)
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

// TestAvoidPacing checks that the congestion control of a socket is replaced if, and
// only if, the default uses pacing.
func TestAvoidPacing(t *testing.T) {
	l, _ := listenAt(t)
	chosen := control(t, l)
	p, got := avoidPacingOn(l), control(t, l)
	switch {
	case chosen == "bbr" && (got != "reno" || p != "bbr"):
		t.Errorf("a paced listener has %q and remembers %q", got, p)
	case chosen != "bbr" && (got != chosen || p != ""):
		t.Errorf("a listener with %q has %q now and remembers %q", chosen, got, p)
	}
}

// control returns the congestion control of a socket.
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
