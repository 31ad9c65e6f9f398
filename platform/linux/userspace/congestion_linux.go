// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"net"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxUnsent is how many bytes may wait in a socket to be sent. The kernel would
// take several megabytes, which are no longer in any cache of the processor when
// they go on.
const maxUnsent = 512 << 10

// limitUnsent makes a socket take no more than is soon sent. Without that it
// works, too.
func limitUnsent(fd uintptr) {
	_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, maxUnsent)
}

// congestionControl is the congestion control that the system would have for a socket, if
// it is one that paces, "" otherwise.
//
// BBR spaces packets out by timers, for the sake of queues far away. Between
// neighbours that takes half of the throughput of a relay: a client that is paced
// in front of a relay that is paced never finds out what both could do. A socket
// that has been paced once stays so whatever it is told, therefore it is eased
// before it is connected, and the far ones get back what the system chose.
type congestionControl string

// avoidPacing is for a socket that is not connected. Those that a listener accepts
// inherit what it has.
func (p *congestionControl) avoidPacing(fd uintptr) {
	name, err := unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	if err == nil && strings.HasPrefix(name, "bbr") {
		p.replace(fd, name)
	}
}

// replace gives a socket what every kernel has and everybody may have, in the
// place of name.
func (p *congestionControl) replace(fd uintptr, name string) {
	if unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno") == nil {
		*p = congestionControl(name)
	}
}

// avoidPacingOn is ease for a listener.
func avoidPacingOn(l *net.TCPListener) congestionControl {
	var p congestionControl
	if raw, err := l.SyscallConn(); err == nil {
		_ = raw.Control(p.avoidPacing)
	}
	return p
}

// restoreIfFar gives a connected socket back what the system chose, unless the other
// side answers sooner than near.
func (p congestionControl) restoreIfFar(c syscall.Conn, near time.Duration) {
	if p == "" {
		return
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil || time.Duration(info.Min_rtt)*time.Microsecond >= near {
			_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, string(p))
		}
	})
}
