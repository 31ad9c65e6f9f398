// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package silence

import (
	"context"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/platform/linux/conntrack"
)

// Run looks at the table of this network namespace until ctx ends. An error means that the
// kernel does not show it.
func (w *Watch) Run(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	w.driver, w.cpuTime = conntrack.Netlink{}, ThreadTime
	return w.run(ctx)
}

// delayAck keeps the kernel from acknowledging a SYN-ACK at once (kernel: net/ipv4/tcp_input.c,
// tcp_rcv_synsent_state_process, and net/ipv4/tcp.c, __tcp_sock_set_quickack).
func delayAck(fd uintptr) {
	_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 0) // a server that notices is no harm
}

// ThreadTime returns how long the calling thread has run.
func ThreadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) // no kernel lacks it
	return time.Duration(t.Nano())
}
