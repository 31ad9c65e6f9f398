// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/test/generate"
)

// faultyDriver is a fake whose reads can fail.
type faultyDriver struct {
	*fake
	readErr, touchedErr, pruneErr error
}

func (f *faultyDriver) Read(ctx context.Context) (*table, error) {
	t, err := f.fake.Read(ctx)
	if f.readErr != nil {
		return nil, f.readErr
	}
	return t, err
}

func (f *faultyDriver) Touched(ctx context.Context) (bool, error) {
	if f.touchedErr != nil {
		return false, f.touchedErr
	}
	return f.fake.Touched(ctx)
}

func (f *faultyDriver) PruneClients(ctx context.Context, s *set, keep map[string]bool) error {
	if f.pruneErr != nil {
		return f.pruneErr
	}
	return f.fake.PruneClients(ctx, s, keep)
}

// After a failed read the next plan reads again. It repairs another process's change,
// although the driver does not report that change a second time.
func TestPlanAfterAFailedRead(t *testing.T) {
	u := &faultyDriver{fake: &fake{}}
	b := &Backend{driver: u}
	want := simple(2)
	apply(t, b, want)
	u.table.chains[dispatchChain].rules = nil
	u.fake.touched = true
	u.readErr = errInjected
	if _, err := b.Plan(context.Background(), want); !errors.Is(err, errInjected) || !strings.Contains(err.Error(), "read table ip kube-services") {
		t.Errorf("Plan = %v, want it to say what it read", err)
	}
	u.readErr = nil
	apply(t, b, want)
	if len(u.table.chains[dispatchChain].rules) == 0 {
		t.Error("the chain was not repaired")
	}
}

func TestPlanErrorNamesTable(t *testing.T) {
	u := &faultyDriver{fake: &fake{family: service.IPv6}}
	b := &Backend{family: service.IPv6, driver: u}
	apply(t, b, simple(0))
	u.touchedErr = errInjected
	if _, err := b.Plan(context.Background(), simple(1)); !errors.Is(err, errInjected) || !strings.Contains(err.Error(), "table ip6 kube-services") {
		t.Errorf("Plan = %v", err)
	}
}

func TestCleanup(t *testing.T) {
	ctx := context.Background()
	u := &faultyDriver{fake: &fake{}}
	b := &Backend{driver: u}
	if err := b.Cleanup(ctx); err != nil || u.commits != 0 {
		t.Errorf("nothing to clean up: %v, %d transactions", err, u.commits)
	}
	apply(t, b, simple(1))
	u.refuse = func([]op) error { return errInjected }
	if err := b.Cleanup(ctx); !errors.Is(err, errInjected) || !strings.Contains(err.Error(), "delete table ip kube-services") {
		t.Errorf("Cleanup = %v", err)
	}
	u.refuse = nil
	u.readErr = errInjected
	if err := b.Cleanup(ctx); !errors.Is(err, errInjected) || !strings.Contains(err.Error(), "read table ip kube-services") {
		t.Errorf("Cleanup = %v", err)
	}
	u.readErr = nil
	if err := b.Cleanup(ctx); err != nil || u.table != nil {
		t.Errorf("Cleanup = %v, table %v", err, u.table)
	}
	apply(t, b, simple(1))
	if u.table == nil {
		t.Error("nothing was programmed after a cleanup")
	}
}

// A client that cannot be deleted is an error of its Port, and the next sync retries.
func TestPruneClientsFails(t *testing.T) {
	u := &faultyDriver{fake: &fake{}}
	b := &Backend{driver: u}
	first, want := sticky(service.IPv4, 1, 3), sticky(service.IPv4, 3)
	apply(t, b, first)
	p := first.Port(service.IPv4, service.PortName{Namespace: "shop", Name: "cart", Protocol: service.TCP})
	clients := u.table.sets[clientSet(p, clusterList, 8081).name]
	client, gone := addr("192.0.2.7").AsSlice(), addr("10.244.1.1").AsSlice()
	clients.elements[string(client)] = element{in: clients.set, key: client, value: gone}

	u.pruneErr = errInjected
	plan, err := b.Plan(context.Background(), want)
	if err != nil {
		t.Fatalf("Plan: %v", err)
	}
	failed := reconcile.PortErrors(plan.Apply(context.Background()).Err)
	if len(failed) != 1 || failed[0].Name.Name != "cart" || !errors.Is(failed[0], errInjected) {
		t.Errorf("Apply failed for %v, want cart", failed)
	}
	u.pruneErr = nil
	apply(t, b, want)
	if len(u.table.sets[clients.name].elements) != 0 {
		t.Error("the client is still remembered")
	}
}

// sticky returns a Port with session affinity and endpoints at two ports. ends are the
// last parts of the endpoints' addresses.
func sticky(f service.Family, ends ...int) *service.Snapshot {
	p := &service.Port{
		Name:   service.PortName{Namespace: "shop", Name: "cart", Protocol: service.TCP},
		Family: f, Affinity: time.Hour,
		Frontends: []service.Frontend{{Addr: addr([]string{"10.96.0.20", "fd00:10:96::20"}[f]), Port: 80}},
	}
	for _, n := range ends {
		a := generate.NthAddr([]string{"10.244.1.0", "fd00:10:244:1::"}[f], n)
		p.Cluster = append(p.Cluster, service.Endpoint{Addr: netip.AddrPortFrom(a, uint16(8080+n%2))})
	}
	return service.New(1, &service.Node{NodePorts: service.AnyAddress()}, []*service.Port{p})
}
