// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"flag"
	"net"
	"testing"
	"time"

	"github.com/moby/ipvs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"kubeproxy/common/service"
	"kubeproxy/test/generate"
	"kubeproxy/test/netlab"
)

// inNamespace runs f on a thread in a network namespace of its own, which ends with the
// thread. The node's addresses are on its loopback interface.
func inNamespace(t *testing.T, f func()) {
	t.Helper()
	if !Installed() {
		t.Skip("the kernel has no IPVS; make vm runs this on one that has")
	}
	netlab.InNamespace(t, func() {
		if err := addAddrs(); err != nil {
			t.Errorf("give the node its addresses: %v", err)
			return
		}
		f()
	})
}

func addAddrs() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	for _, f := range service.Families {
		for _, a := range []net.IP{generate.NodeAddr[f].AsSlice(), generate.OtherNodeAddr[f].AsSlice()} {
			bits := 8 * len(a)
			x := &netlink.Addr{IPNet: &net.IPNet{IP: a, Mask: net.CIDRMask(bits, bits)}, Flags: unix.IFA_F_NODAD}
			if err := netlink.AddrAdd(lo, x); err != nil {
				return err
			}
		}
	}
	return nil
}

// newMobyHandle returns a second client of IPVS, until t ends.
func newMobyHandle(t *testing.T) *ipvs.Handle {
	t.Helper()
	h, err := ipvs.New("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

func newKernel(t fataler, f service.Family, o Options) *Backend {
	b, err := New(f, o)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	return b
}

// someDraws is rapid.Check with fewer draws, unless a number is requested: an emulated
// processor needs seconds for each.
func someDraws(t *testing.T, check func(*rapid.T)) {
	t.Helper()
	if n := flag.Lookup("rapid.checks"); n.Value.String() == n.DefValue {
		if err := n.Value.Set("20"); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = n.Value.Set(n.DefValue) }()
	}
	rapid.Check(t, check)
}

// TestKernelHoldsWhatWasPlanned programs random snapshots one after the other, and
// checks that a second backend without state finds nothing to do.
func TestKernelHoldsWhatWasPlanned(t *testing.T) {
	inNamespace(t, func() {
		someDraws(t, func(t *rapid.T) {
			w := generate.Cluster{T: t, Family: service.Family(rapid.IntRange(0, 1).Draw(t, "family"))}
			b := newKernel(t, w.Family, Options{MasqueradeBit: 14, SyncPeriod: time.Minute})
			defer func() { _ = b.Close() }()
			for n := range 3 {
				want := service.New(uint64(n), w.Node(), w.Ports())
				apply(t, b, want)
				b.lastDrainCheck = time.Time{}
				apply(t, b, want) // destinations without connections have drained
				fresh := newKernel(t, w.Family, Options{MasqueradeBit: 14, SyncPeriod: time.Minute})
				generate.RequireNoChange(t, fresh, want)
				_ = fresh.Close()
			}
			if err := b.Cleanup(context.Background()); err != nil {
				t.Fatalf("Cleanup: %v", err)
			}
		})
	})
}
