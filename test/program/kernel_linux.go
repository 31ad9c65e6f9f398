// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package program

import (
	"cmp"
	"context"
	"io"
	"testing"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/conntrack"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/platform/linux/ipvs"
	"kubeproxy/platform/linux/nftables"
	"kubeproxy/test/netlab"
	"kubeproxy/test/nftmonitor"
)

// Kernel looks at what is in force on a host without changing it.
type Kernel struct {
	host     *netlab.Host
	backends []reconcile.Backend
	// proxyDiff tells what the proxy itself still has to do, and led what
	// connection tracking knows of, where these are questions.
	proxyDiff func(context.Context, *netlab.Host, *service.Snapshot) string
	tracked   func(context.Context, service.Family, *service.Snapshot) (*service.Snapshot, error)
}

// NewKernel looks at h, where a bit of the packet mark stands for
// masquerading, 0 for the usual one.
func NewKernel(t testing.TB, h *netlab.Host, bit int) *Kernel {
	t.Helper()
	return newKernel(t, h, func(f service.Family) (reconcile.Backend, error) {
		return nftables.New(f, nftables.Options{MasqueradeBit: cmp.Or(bit, 14), DropInvalid: true})
	})
}

// NewIPTablesKernel looks at h, where the mode is iptables.
func NewIPTablesKernel(t testing.TB, h *netlab.Host, o iptables.Options) *Kernel {
	t.Helper()
	return newKernel(t, h, func(f service.Family) (reconcile.Backend, error) { return iptables.New(f, o) })
}

// NewIPVSKernel looks at h, where the mode is ipvs.
func NewIPVSKernel(t testing.TB, h *netlab.Host, o ipvs.Options) *Kernel {
	t.Helper()
	return newKernel(t, h, func(f service.Family) (reconcile.Backend, error) { return ipvs.New(f, o) })
}

func newKernel(t testing.TB, h *netlab.Host, audit func(service.Family) (reconcile.Backend, error)) *Kernel {
	t.Helper()
	k := &Kernel{host: h}
	for _, f := range service.Families {
		var b reconcile.Backend
		err := h.Do(func() (err error) {
			b, err = audit(f)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if c, ok := b.(io.Closer); ok { // the whole machine has few of what it listens with
			t.Cleanup(func() { _ = c.Close() })
		}
		k.backends = append(k.backends, b)
	}
	return k
}

// AwaitProgrammed waits until the kernel holds exactly what want asks for, and no UDP
// flow that want does not allow.
func (k *Kernel) AwaitProgrammed(t testing.TB, want *service.Snapshot) {
	t.Helper()
	if !Poll(func() bool { return k.Diff(t, want) == "" && k.StaleFlows(t, want) == 0 }) {
		t.Fatalf("after %s the kernel still has %d stale UDP flows and lacks:\n%s", AwaitTimeout, k.StaleFlows(t, want), k.Diff(t, want))
	}
}

// Diff lists what is to be changed until the kernel holds want, nothing if
// it does.
func (k *Kernel) Diff(t testing.TB, want *service.Snapshot) string {
	t.Helper()
	for i, audit := range k.backends {
		var p reconcile.Plan
		err := k.host.Do(func() (err error) { // some run commands
			p, err = audit.Plan(t.Context(), want)
			return err
		})
		if err != nil { // it changes while it is read
			return err.Error()
		}
		if lack := p.String(); lack != "" {
			return service.Families[i].String() + ":\n" + lack
		}
	}
	if k.proxyDiff != nil {
		return k.proxyDiff(t.Context(), k.host, want)
	}
	return ""
}

// StaleFlows counts the UDP flows that want does not allow. A new client whose port
// is that of an old one would share its fate.
func (k *Kernel) StaleFlows(t testing.TB, want *service.Snapshot) int {
	t.Helper()
	n := 0
	for _, f := range service.Families {
		flows := conntrack.Reconciler{Driver: readOnlyConntrack{}, Family: f}
		known := want
		if k.tracked != nil {
			var err error
			if known, err = k.tracked(t.Context(), f, want); err != nil {
				t.Fatal(err)
			}
		}
		err := k.host.Do(func() error {
			found, err := flows.Sync(t.Context(), known)
			n += found
			return err
		})
		if err != nil {
			t.Fatalf("look for stale flows: %v", err)
		}
	}
	return n
}

// readOnlyConntrack is a conntrack driver that lists flows and leaves them alone.
type readOnlyConntrack struct{ conntrack.Netlink }

// Delete only pretends.
func (readOnlyConntrack) Delete(_ context.Context, flows []conntrack.Flow) (int, error) {
	return len(flows), nil
}

// Generation returns the number of the rules' latest change on h, whoever
// made it.
func Generation(t testing.TB, h *netlab.Host) uint32 {
	t.Helper()
	id, err := nftmonitor.Generation(h)
	if err != nil {
		t.Fatal(err)
	}
	return id
}
