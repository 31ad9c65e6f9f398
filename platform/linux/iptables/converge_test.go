// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/test/generate"
)

var errInjected = errors.New("injected")

// foreignChains are chains of other components.
var foreignChains = map[id][]string{
	{nat, "CNI-HOSTPORT"}:        {"-p tcp -m tcp --dport 8443 -j DNAT --to-destination 10.244.1.7:443"},
	{nat, "KUBE-MARK-DROP"}:      {"-j MARK --set-xmark 0x8000/0x8000"},
	{filter, "KUBE-FIREWALL"}:    {"-m mark --mark 0x8000/0x8000 -j DROP"},
	{nat, "KUBE-KUBELET-CANARY"}: nil,
}

func (k *fake) addForeignChains() {
	for i, rules := range foreignChains {
		k.Tables[i.table][i.name] = slices.Clone(rules)
	}
	k.Tables[nat]["PREROUTING"] = []string{"-j CNI-HOSTPORT"}
}

func wantForeignChains(t fataler, k *fake) {
	for i, rules := range foreignChains {
		got, found := k.Tables[i.table][i.name]
		if !found || !slices.Equal(got, rules) {
			t.Fatalf("chain %s of somebody else is now %q", i.name, got)
		}
	}
	if !slices.Contains(k.Tables[nat]["PREROUTING"], "-j CNI-HOSTPORT") {
		t.Fatalf("a rule of somebody else is gone")
	}
}

// TestConvergesAfterRefusals runs syncs that the kernel refuses at random and that
// others disturb. One clean sync must reach the desired state, and the next must find
// nothing to do.
func TestConvergesAfterRefusals(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := generate.Cluster{T: t, Family: service.Family(rapid.IntRange(0, 1).Draw(t, "family"))}
		k := newFake()
		k.addForeignChains()
		b := newBackend(w.Family, k)
		var want *service.Snapshot
		var ports []*service.Port
		for n := range 4 {
			ports = w.Ports()
			want = service.New(uint64(n), nodeOf(w), ports)
			want.Incomplete = w.DrawBool("partial")
			k.Refuse = refuse(w)
			if w.DrawBool("meddle") {
				tamper(w, k)
			}
			if w.DrawBool("restart") {
				b = newBackend(w.Family, k)
			}
			if p, err := b.Plan(context.Background(), want); err != nil {
				t.Fatalf("Plan: %v", err)
			} else if err = p.Apply(context.Background()); err != nil && !errors.Is(err, errInjected) && !errors.Is(err, errBusy) {
				t.Fatalf("Apply: %v\n%s", err, p)
			}
		}
		k.Refuse = nil
		want = service.New(9, want.Node, ports)
		apply(t, b, want)
		if p, err := b.Plan(context.Background(), want); err != nil || !p.Empty() {
			t.Fatalf("after a clean round: %v, still to do:\n%s", err, p)
		}
		wantSameAsFresh(t, w.Family, k, want)
		wantForeignChains(t, k)
		for range 5 {
			judge(t, k, want, w.Conn(ports))
		}
	})
}

// refuse draws how texts are refused: for their content, or because another process
// holds the lock.
func refuse(w generate.Cluster) func(string) error {
	return func(string) error {
		switch w.DrawInt("refuse", 4) {
		case 0:
			return errInjected
		case 1:
			return errBusy
		}
		return nil
	}
}

// tamper makes a change that another process might make.
func tamper(w generate.Cluster, k *fake) {
	k.Dirty = true
	table := tables[w.DrawInt("table", 2)]
	var ours []string
	for _, n := range slices.Sorted(maps.Keys(k.Tables[table])) {
		if (id{table, n}).isOwned() {
			ours = append(ours, n)
		}
	}
	if len(ours) == 0 {
		return
	}
	name := ours[w.DrawInt("chain", len(ours))]
	switch w.DrawInt("kind", 4) {
	case 0: // as when a firewall restarts
		for n := range k.Tables[table] {
			k.Tables[table][n] = slices.Clone(foreignChains[id{table, n}])
		}
		if table == nat {
			k.Tables[nat]["PREROUTING"] = []string{"-j CNI-HOSTPORT"}
		}
	case 1:
		k.Tables[table][name] = nil
	case 2:
		k.Tables[table][name] = append(k.Tables[table][name], "-j ACCEPT")
	case 3:
		k.Tables[table]["KUBE-SVC-STRAY"] = []string{"-j RETURN"}
	}
}

// wantSameAsFresh compares k with tables that were made in one step.
func wantSameAsFresh(t *rapid.T, f service.Family, k *fake, want *service.Snapshot) {
	fresh := newFake()
	apply(t, newBackend(f, fresh), want)
	if diff := cmp.Diff(parse(fresh.Text(), Standalone).chains, parse(k.Text(), Standalone).chains, cmp.AllowUnexported(id{})); diff != "" {
		t.Fatalf("chains (-fresh +converged):\n%s", diff)
	}
	if missing := parse(k.Text(), Standalone).missingJumps(layout{family: f}.jumps()); len(missing) > 0 {
		t.Fatalf("missing: %v", missing)
	}
}

// simple returns a snapshot of n Services with two endpoints each.
func simple(n int) *service.Snapshot {
	var ports []*service.Port
	for i := range n {
		ports = append(ports, simplePort(i))
	}
	return service.New(1, &service.Node{NodePorts: service.AnyAddress()}, ports)
}

func simplePort(i int) *service.Port {
	return &service.Port{
		Name: service.PortName{Namespace: "shop", Name: fmt.Sprintf("web-%03d", i), Protocol: service.TCP},
		Frontends: []service.Frontend{
			{Addr: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), Port: 80},
			{Kind: service.NodePort, Port: uint16(30000 + i)},
		},
		Cluster: []service.Endpoint{
			{Addr: netip.MustParseAddrPort("10.244.1.1:8080")}, {Addr: netip.MustParseAddrPort("10.244.1.2:8080")},
		},
	}
}

// TestOneRefusedPortDoesNotBlockOthers refuses everything that concerns one Service.
func TestOneRefusedPortDoesNotBlockOthers(t *testing.T) {
	want := simple(100)
	k := newFake()
	b := newBackend(service.IPv4, k)
	k.Refuse = func(text string) error {
		if strings.Contains(text, "shop/web-042") {
			return errInjected
		}
		return nil
	}
	p, err := b.Plan(context.Background(), want)
	if err != nil {
		t.Fatalf("Plan: %v", err)
	}
	err = p.Apply(context.Background())
	failed := reconcile.PortErrors(err)
	if len(failed) != 1 || failed[0].Name.Name != "web-042" || !errors.Is(failed[0], errInjected) {
		t.Errorf("Apply = %v, want one failure of web-042", err)
	}
	if got := strings.Count(k.Text(), "shop/web-"); got != 198 {
		t.Errorf("%d entries programmed, want 198", got)
	}
	if k.Restores > 30 {
		t.Errorf("%d restores, want about two per halving", k.Restores)
	}
	k.Refuse = nil
	apply(t, b, want)
	if got := strings.Count(k.Text(), "shop/web-"); got != 200 {
		t.Errorf("%d entries programmed after the retry, want 200", got)
	}
}

// TestRefusedPortKeepsWhatItHad changes a Service and removes another while the kernel
// refuses the change.
func TestRefusedPortKeepsWhatItHad(t *testing.T) {
	k := newFake()
	apply(t, newBackend(service.IPv4, k), simple(3))
	changed := simplePort(1)
	changed.Cluster = changed.Cluster[:1]
	want := service.New(2, &service.Node{NodePorts: service.AnyAddress()}, []*service.Port{simplePort(0), changed})
	had := k.Tables[nat][portChainName(clusterPrefix, changed)]
	k.Refuse = func(text string) error {
		if strings.Contains(text, "-A "+portChainName(clusterPrefix, changed)) {
			return errInjected
		}
		return nil
	}
	b := newBackend(service.IPv4, k) // as after a restart
	p, err := b.Plan(context.Background(), want)
	if err != nil {
		t.Fatal(err)
	}
	if failed := reconcile.PortErrors(p.Apply(context.Background())); len(failed) != 1 || failed[0].Name.Name != "web-001" {
		t.Errorf("failed: %v, want web-001", failed)
	}
	if got := k.Tables[nat][portChainName(clusterPrefix, changed)]; !slices.Equal(got, had) {
		t.Errorf("the refused Service has now %q, had %q", got, had)
	}
	if text := k.Text(); !strings.Contains(text, "shop/web-001") || strings.Contains(text, "shop/web-002") {
		t.Errorf("want web-001 to be there and web-002 to be gone:\n%s", text)
	}
}

// nodeOf draws a node without ServiceCIDRs, which these rules do not use.
func nodeOf(w generate.Cluster) *service.Node {
	n := w.Node()
	n.ServiceCIDRs = nil
	return n
}
