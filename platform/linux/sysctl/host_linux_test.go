// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package sysctl

import (
	"errors"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
)

// TestHost sets the parameters of a network namespace in a new one. The table size
// belongs to the whole machine, so the kernel rejects changes there.
func TestHost(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("making a network namespace needs root")
	}
	runtime.LockOSThread() // forever: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatalf("unshare network namespace: %v", err)
	}
	files := Host()
	got := Apply(files, Settings{MaxPerCore: 1 << 30, Min: 1 << 30, CPUs: 1, TCPEstablished: 1234 * time.Second, UDP: 57 * time.Second, TCPBeLiberal: true})
	for i, want := range []struct {
		parameter
		action Action
		value  string
	}{{conntrackMax, Failed, ""}, {tcpEstablished, Written, "1234"}, {udp, Written, "57"}, {tcpBeLiberal, Written, "1"}} {
		o := got[i]
		b, err := files.ReadFile(want.file)
		if o.Name != want.name || o.Action != want.action || err != nil {
			t.Errorf("%s (read again: %v), want action %d", o, err, want.action)
		}
		if value := strings.TrimSpace(string(b)); want.value != "" && value != want.value {
			t.Errorf("%s is %q, want %q", want.file, value, want.value)
		}
	}
	if !errors.Is(got[0].Err, fs.ErrPermission) || !errors.Is(got[0].Err, ErrFixed) {
		t.Errorf("%s, want %v", got[0], ErrFixed)
	}
	again := Apply(files, Settings{TCPEstablished: 1234 * time.Second})
	if o := again[0]; o.Action != Unchanged || !o.Writable {
		t.Errorf("the second time: %s, want unchanged, and that it could be written", o)
	}
	if o := Forwarding(files, service.IPv4)[0]; o.Name != "net.ipv4.ip_forward" || o.Err != nil {
		t.Errorf("Forwarding = %s", o)
	}
}
