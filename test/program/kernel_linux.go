// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package program

import (
	"cmp"
	"context"
	"testing"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/conntrack"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/platform/linux/ipvs"
	"kubeproxy/platform/linux/nftables"
	"kubeproxy/platform/linux/socketlb"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/nftmonitor"
)

// Kernel reads what is in force on a host without changing it.
type Kernel struct {
	host     *netlab.Host
	backends []reconcile.Backend
	layers   []*socketlb.Backend // empty without socket acceleration
	// proxyDiff, if set, returns what the proxy itself still has to do, and
	// trackedSnapshot the snapshot that conntrack entries follow.
	proxyDiff func(context.Context, *netlab.Host, *service.Snapshot) string
	tracked   func(context.Context, service.Family, *service.Snapshot) (*service.Snapshot, error)
	// silent says that the kernel does not report changes of others, so that a backend
	// would answer from its memory until its next comparison.
	silent bool
}

// NewKernel reads h in mode nftables. bit is the bit of the packet mark that means
// masquerading, 0 for the default one.
func NewKernel(t testing.TB, h *netlab.Host, bit int) *Kernel {
	t.Helper()
	return newKernel(t, h, func(f service.Family) (reconcile.Backend, error) {
		return nftables.New(f, nftables.Options{MasqueradeBit: cmp.Or(bit, 14), DropInvalid: true})
	})
}

// NewIPTablesKernel reads h in mode iptables.
func NewIPTablesKernel(t testing.TB, h *netlab.Host, o iptables.Options) *Kernel {
	t.Helper()
	return newKernel(t, h, func(f service.Family) (reconcile.Backend, error) { return iptables.New(f, o) })
}

// NewIPVSKernel reads h in mode ipvs.
func NewIPVSKernel(t testing.TB, h *netlab.Host, o ipvs.Options) *Kernel {
	t.Helper()
	k := newKernel(t, h, func(f service.Family) (reconcile.Backend, error) { return ipvs.New(f, o) })
	k.silent = true
	return k
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
		t.Cleanup(func() { _ = b.Close() }) // inotify instances and netlink sockets are scarce
		k.backends = append(k.backends, b)
	}
	return k
}

// Accelerate has k compare socket acceleration, too.
func (k *Kernel) Accelerate(t testing.TB, o socketlb.Options) {
	t.Helper()
	for _, f := range service.Families {
		err := k.host.Do(func() error {
			k.layers = append(k.layers, socketlb.New(f, socketlb.NewDriver(f, o), o))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Taken returns how many connections socket acceleration took.
func (k *Kernel) Taken(t testing.TB) (n uint64) {
	t.Helper()
	for _, b := range k.layers {
		taken, err := b.Taken()
		if err != nil {
			t.Fatal(err)
		}
		n += taken
	}
	return n
}

// AwaitProgrammed waits until the kernel holds exactly what want describes, and no UDP
// flow that want does not allow.
func (k *Kernel) AwaitProgrammed(t testing.TB, want *service.Snapshot) {
	t.Helper()
	if !kit.Soon(func() bool { return k.Diff(t, want) == "" && k.StaleFlows(t, want) == 0 }) {
		t.Fatalf("after %s the kernel still has %d stale UDP flows and lacks:\n%s", kit.Limit, k.StaleFlows(t, want), k.Diff(t, want))
	}
}

// Diff lists the changes that the kernel needs to hold want, empty for none.
func (k *Kernel) Diff(t testing.TB, want *service.Snapshot) string {
	t.Helper()
	for i, audit := range k.backends {
		var p reconcile.Plan
		if k.silent {
			audit.Forget()
		}
		err := k.host.Do(func() (err error) { // some run commands
			p, err = audit.Plan(t.Context(), want)
			return err
		})
		if err != nil { // it changed while it was read
			return err.Error()
		}
		if lack := p.Changes().String(); lack != "" {
			return service.Families[i].String() + ":\n" + lack
		}
	}
	for i, audit := range k.layers {
		audit.Forget() // others change the tables
		p, err := audit.Plan(t.Context(), want)
		if err != nil {
			return err.Error()
		}
		lack := p.Changes().String()
		audit.Forget()
		if lack != "" {
			return "socket acceleration of " + service.Families[i].String() + ":\n" + lack
		}
	}
	if k.proxyDiff != nil {
		return k.proxyDiff(t.Context(), k.host, want)
	}
	return ""
}

// StaleFlows counts the UDP flows that want does not allow. A new client on the port of
// an old one would use its flow.
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

// readOnlyConntrack is a conntrack driver that lists entries and deletes none.
type readOnlyConntrack struct{ conntrack.Netlink }

// Delete reports success without deleting.
func (readOnlyConntrack) Delete(_ context.Context, flows []conntrack.Flow) (int, error) {
	return len(flows), nil
}

// Generation returns the generation number of the nftables rules on h, whichever program
// changed them.
func Generation(t testing.TB, h *netlab.Host) uint32 {
	t.Helper()
	id, err := nftmonitor.Generation(h)
	if err != nil {
		t.Fatal(err)
	}
	return id
}
