// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"testing"

	"golang.org/x/sys/unix"

	"kubeproxy/test/netlab"
)

// TestProgramsTellTheCookie compares what a program sees of network namespaces with what the
// kernel says from 5.14 on. Nothing of the question stays.
func TestProgramsTellTheCookie(t *testing.T) {
	newCgroup(t) // or skip
	seen := map[uint64]bool{}
	for range 2 {
		netlab.InNamespace(t, func() {
			s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Error(err)
				return
			}
			defer unix.Close(s)
			got, err := askProgram(s)
			if err != nil || got == 0 {
				t.Errorf("cookie %d, %v", got, err)
			}
			if again, err := askProgram(s); err != nil || again != got {
				t.Errorf("then %d, %v; before %d", again, err, got)
			}
			if want, err := unix.GetsockoptUint64(s, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE); err == nil && got != want {
				t.Errorf("a program sees %d, the kernel says %d", got, want)
			}
			seen[got] = true
			if err := raiseLoopback(); err != nil {
				t.Error(err)
			}
			if err := unix.Connect(s, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: 53}); err != nil {
				t.Errorf("after the question: %v", err)
			}
		})
	}
	if len(seen) != 2 {
		t.Errorf("two network namespaces have the cookies %v", seen)
	}
}
