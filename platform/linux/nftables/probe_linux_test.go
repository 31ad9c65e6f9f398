// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
)

// TestProbe checks that this kernel passes, and that the probe leaves nothing behind and
// does not change a table in use.
func TestProbe(t *testing.T) {
	inNamespace(t, func() {
		for _, f := range service.Families {
			if err := Probe(f); err != nil {
				t.Errorf("Probe(%s) = %v", f, err)
			}
			for _, n := range kernelFeatures(f) {
				if err := dryRun(t, f, n.ops); err != nil {
					t.Errorf("%s: %s: %v", f, n.name, err)
				}
			}
		}
		if got := runNft(t, "", "list", "ruleset"); got != "" {
			t.Errorf("after the probe:\n%s", got)
		}
		b := newKernel(t, service.IPv4)
		defer b.driver.(*kernel).close()
		apply(t, b, service.New(1, &service.Node{NodePorts: service.AnyAddress()}, nil))
		before := runNft(t, "", "list", "ruleset")
		if err := Probe(service.IPv4); err != nil {
			t.Errorf("beside our table: %v", err)
		}
		if after := runNft(t, "", "list", "ruleset"); after != before {
			t.Errorf("the probe changed the rules:\n%s", after)
		}
		if touched, err := b.driver.Touched(context.Background()); touched || err != nil {
			t.Errorf("the probe was noticed as a change: %v, %v", touched, err)
		}
		if err := dryRun(t, service.IPv4, []op{{verb: addChain, chain: &chain{name: strings.Repeat("x", 500)}}}); err == nil {
			t.Error("a rehearsal accepts what the kernel cannot hold")
		}
	})
}

func dryRun(t *testing.T, f service.Family, ops []op) error {
	t.Helper()
	s, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	e := newEncoder(f)
	e.name = probeTable
	batch, err := e.dryRun(append([]op{{verb: addTable}}, ops...))
	if err != nil {
		t.Fatal(err)
	}
	return s.Transact(batch)
}

// The error names the missing capability.
func TestProbeWithoutCapability(t *testing.T) {
	inNamespace(t, func() {
		// The thread ends with the test, and so does the loss of capabilities.
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&header, &none[0]); err != nil {
			t.Fatal(err)
		}
		err := Probe(service.IPv4)
		if err == nil || !strings.Contains(err.Error(), "the right CAP_NET_ADMIN is needed") {
			t.Errorf("Probe = %v, want one that names CAP_NET_ADMIN", err)
		}
	})
}

// TestNewWithoutDescriptors has the sockets of a Backend fail one after the other. The error
// says why, and no descriptor stays open.
func TestNewWithoutDescriptors(t *testing.T) {
	inNamespace(t, func() {
		next := func() int {
			fd, err := unix.Dup(0)
			if err != nil {
				t.Fatal(err)
			}
			_ = unix.Close(fd)
			return fd
		}
		free := next()
		var limit unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &limit) }()
		for sockets := range 3 {
			lower := limit
			lower.Cur = uint64(free + sockets)
			if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &lower); err != nil {
				t.Fatal(err)
			}
			_, err := New(service.IPv4, Options{MasqueradeBit: 14})
			if e := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); e != nil || !errors.Is(err, unix.EMFILE) {
				t.Errorf("New with %d sockets = %v, want %v (%v)", sockets, err, unix.EMFILE, e)
			}
			if now := next(); now != free {
				t.Fatalf("New with %d sockets leaves descriptor %d open", sockets, free)
			}
		}
	})
}
