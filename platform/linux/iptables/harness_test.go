// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/test/backendtest"
	"kubeproxy/test/generate"
	"kubeproxy/test/xtables"
)

var errInjected = backendtest.ErrInjected

func TestSuites(t *testing.T) { runSuites(t, 0, Options{}) }

// The suites pass if iptables-restore gets new chains in pieces, and with lists of two
// endpoints that have branches.
func TestSuitesInPieces(t *testing.T) { runSuites(t, 7, Options{ListSize: 1}) }

func runSuites(t *testing.T, piece int, o Options) {
	backendtest.Run(t, backendtest.Harness{
		New:     func(w generate.Cluster) backendtest.Node { return newNode(w.Family, piece, o) },
		Cluster: func(w generate.Cluster) backendtest.Cluster { return generate.WithoutServiceCIDRs{Cluster: w} },
		ReadBack: func(ctx context.Context, b reconcile.Backend, want *service.Snapshot) (held, wanted reconcile.Objects, err error) {
			return b.(*Backend).ReadBack(ctx, want)
		},
	})
}

// foreignChains are chains of other components.
var foreignChains = map[id][]string{
	{nat, "CNI-HOSTPORT"}:        {"-p tcp -m tcp --dport 8443 -j DNAT --to-destination 10.244.1.7:443"},
	{nat, "KUBE-MARK-DROP"}:      {"-j MARK --set-xmark 0x8000/0x8000"},
	{filter, "KUBE-FIREWALL"}:    {"-m mark --mark 0x8000/0x8000 -j DROP"},
	{nat, "KUBE-KUBELET-CANARY"}: nil,
}

func (f *fake) addForeignChains() {
	for i, rules := range foreignChains {
		f.Tables[i.table][i.name] = slices.Clone(rules)
	}
	f.Tables[nat]["PREROUTING"] = []string{"-j CNI-HOSTPORT"}
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

// node is a fake system with chains of others, for the suites.
type node struct {
	*fake
	family  service.Family
	options Options
}

func newNode(f service.Family, piece int, o Options) *node {
	k := newFake()
	k.Piece = piece
	k.addForeignChains()
	o.MasqueradeBit, o.DropInvalid = 14, true
	return &node{k, f, o}
}

func (n *node) Start() reconcile.Backend { return NewWith(n.family, n.options, n.fake) }

func (n *node) Fresh() backendtest.Node { return newNode(n.family, n.Piece, n.options) }

func (n *node) Heal() { n.Refuse = nil }

// Inject has texts refused for their content, or because another process holds the lock.
func (n *node) Inject(w generate.Cluster) func(error) bool {
	n.Refuse = func(string) error {
		switch w.DrawInt("refuse", 4) {
		case 0:
			return errInjected
		case 1:
			return ErrBusy
		}
		return nil
	}
	return func(err error) bool { return errors.Is(err, ErrBusy) }
}

func (n *node) Tamper(w generate.Cluster) {
	n.Dirty = true
	table := tables[w.DrawInt("table", 2)]
	var ours []string
	for _, name := range slices.Sorted(maps.Keys(n.Tables[table])) {
		if (*Role)(nil).owns(id{table, name}) {
			ours = append(ours, name)
		}
	}
	if len(ours) == 0 {
		return
	}
	name := ours[w.DrawInt("chain", len(ours))]
	switch w.DrawInt("kind", 4) {
	case 0: // as when a firewall restarts
		for x := range n.Tables[table] {
			n.Tables[table][x] = slices.Clone(foreignChains[id{table, x}])
		}
		if table == nat {
			n.Tables[nat]["PREROUTING"] = []string{"-j CNI-HOSTPORT"}
		}
	case 1:
		n.Tables[table][name] = nil
	case 2:
		n.Tables[table][name] = append(n.Tables[table][name], "-j ACCEPT")
	case 3:
		n.Tables[nat]["KUBE-SVC-STRAY"] = []string{"-j RETURN"}
	}
}

func (n *node) State() string { return n.Text() }

func (n *node) Judge(t *rapid.T, want *service.Snapshot, c route.Conn) {
	v := route.Decide(want, c)
	// One rule for all endpoints detects hairpin connections and does not check where the
	// endpoint is. A remote endpoint whose connection comes this way needs it, too.
	expected := backendtest.Expect(v, func(e service.Endpoint) bool { return e.Addr.Addr() == c.From })
	if diff := backendtest.Diff(expected, n.Trace(c, generate.IsNodeLocal)); diff != "" {
		t.Fatalf("%+v: %s (-decide +iptables):\n%s\n%s", c, v.Reason, diff, n.Text())
	}
}

func (n *node) Check(t *rapid.T, _ *service.Snapshot) {
	if missing := parse(n.Text(), nil).missingJumps(layout{family: n.family}.jumps()); len(missing) > 0 {
		t.Fatalf("missing: %v", missing)
	}
	wantForeignChains(t, n.fake)
}

func newBackend(f service.Family, k *fake) *Backend {
	return NewWith(f, Options{MasqueradeBit: 14, DropInvalid: true}, k)
}

type fataler interface{ Fatalf(string, ...any) }

// apply runs one sync that must succeed.
func apply(t fataler, b *Backend, want *service.Snapshot) *plan {
	return generate.Apply(t, b, want).(*plan)
}

// fake is a system that is as strict as a real one.
type fake struct{ *xtables.System }

func newFake() *fake { return &fake{xtables.New(nil)} }
