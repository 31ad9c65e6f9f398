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

// maxUnsent limits the number of unsent bytes in a socket. The kernel would accept
// several megabytes, which are no longer in any cache of the processor when they are
// sent.
const maxUnsent = 512 << 10

// limitUnsent limits the unsent bytes of a socket (TCP_NOTSENT_LOWAT, see
// tcp_notsent_lowat in docs.kernel.org/networking/ip-sysctl.html). Errors are ignored,
// because the socket works without the limit.
func limitUnsent(fd uintptr) {
	_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, maxUnsent)
}

// congestionControl is the system's default congestion control, if that uses pacing, ""
// otherwise.
//
// BBR delays packets by timers to keep remote queues short. Over short distances that
// costs half of the throughput of a relay: a paced client in front of a paced relay never
// measures the capacity of the path. A socket that has used pacing once keeps it after
// its congestion control changes (kernel: net/ipv4/tcp_bbr.c, bbr_init sets
// sk_pacing_status). So the relay replaces BBR before it connects, and restores the
// default for remote peers.
type congestionControl string

// avoidPacing must be called before a socket is connected. Accepted sockets inherit the
// setting of their listener.
func (p *congestionControl) avoidPacing(fd uintptr) {
	name, err := unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	if err == nil && strings.HasPrefix(name, "bbr") {
		p.replace(fd, name)
	}
}

// replace sets a congestion control that every kernel has and every process may use
// instead of name.
func (p *congestionControl) replace(fd uintptr, name string) {
	if unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno") == nil {
		*p = congestionControl(name)
	}
}

// avoidPacingOn calls avoidPacing for a listener.
func avoidPacingOn(l *net.TCPListener) congestionControl {
	var p congestionControl
	if raw, err := l.SyscallConn(); err == nil {
		_ = raw.Control(p.avoidPacing)
	}
	return p
}

// restoreIfFar restores the default of a connected socket, unless the round-trip time is
// less than near.
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
