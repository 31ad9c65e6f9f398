// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
)

// TestProgramsTellTheCookie compares what a program sees of network namespaces with what the
// kernel says from 5.14 on. Nothing of the question stays.
func TestProgramsTellTheCookie(t *testing.T) {
	root := filepath.Dir(newCgroup(t)) // or skip
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
	// Another proxy may ask at this moment.
	if !kit.Soon(func() bool { return !isAsked(t, root) }) {
		t.Errorf("the program stays in %s", root)
	}
}

// isAsked reports whether a cgroup has a program that askProgram attaches.
func isAsked(t *testing.T, cgroup string) bool {
	t.Helper()
	dir, err := os.Open(cgroup)
	kit.Must(t, err)
	defer dir.Close()
	all, err := link.QueryPrograms(link.QueryOptions{Target: int(dir.Fd()), Attach: ebpf.AttachCGroupInet4Connect})
	kit.Must(t, err)
	return slices.ContainsFunc(all.Programs, func(at link.AttachedProgram) bool {
		p, err := ebpf.NewProgramFromID(at.ID)
		if err != nil {
			return false // it has gone meanwhile
		}
		defer p.Close()
		info, err := p.Info()
		kit.Must(t, err)
		return info.Name == questionName
	})
}

// TestQuestionLetsOthersPass connects sockets while the program of the question is attached.
// It refuses only the one with which its process asks.
func TestQuestionLetsOthersPass(t *testing.T) {
	cgroup := newCgroup(t)
	asked := unix.SockaddrInet4{Addr: [4]byte{127, 1, 2, 3}, Port: 4567}
	netlab.InNamespace(t, func() {
		if err := raiseLoopback(); err != nil {
			t.Error(err)
			return
		}
		moveTo(t, cgroup)
		defer moveTo(t, filepath.Dir(cgroup))
		answer, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
		kit.Must(t, err)
		defer answer.Close()
		l, err := attachQuestion(cgroup, asked, answer)
		kit.Must(t, err)
		defer l.Close()
		for name, c := range map[string]struct {
			kind int
			to   unix.SockaddrInet4
			want error
		}{
			"the question":    {unix.SOCK_DGRAM, asked, unix.EPERM},
			"over TCP":        {unix.SOCK_STREAM, asked, unix.ECONNREFUSED},
			"another address": {unix.SOCK_DGRAM, unix.SockaddrInet4{Addr: [4]byte{127, 1, 2, 4}, Port: asked.Port}, nil},
			"another port":    {unix.SOCK_DGRAM, unix.SockaddrInet4{Addr: asked.Addr, Port: asked.Port + 1}, nil},
		} {
			s, err := unix.Socket(unix.AF_INET, c.kind|unix.SOCK_CLOEXEC, 0)
			kit.Must(t, err)
			if err := unix.Connect(s, &c.to); !errors.Is(err, c.want) {
				t.Errorf("%s: %v, want %v", name, err, c.want)
			}
			unix.Close(s)
		}
	})
}
