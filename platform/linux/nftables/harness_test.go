// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/test/backendtest"
	"kubeproxy/test/generate"
)

var errInjected = backendtest.ErrInjected

// refusals are what a kernel says that does nothing.
var refusals = []error{errInjected, fmt.Errorf("%w: %w", errInjected, syscall.ENOMEM)}

func TestSuites(t *testing.T) {
	backendtest.Run(t, backendtest.Harness{
		New: func(w generate.Cluster) backendtest.Node { return &node{&fake{family: w.Family}} },
		ReadBack: func(ctx context.Context, b reconcile.Backend, want *service.Snapshot) (held, wanted reconcile.Objects, err error) {
			return b.(*Backend).ReadBack(ctx, want)
		},
	})
}

// node is a fake kernel, for the suites.
type node struct{ *fake }

func (n *node) Start() reconcile.Backend {
	return &Backend{family: n.family, options: Options{MasqueradeBit: 14}, driver: n.fake}
}

func (n *node) Fresh() backendtest.Node { return &node{&fake{family: n.family}} }

func (n *node) Heal() { n.refuse = nil }

func (n *node) Inject(w generate.Cluster) func(error) bool {
	n.refuse = func([]op) error {
		if w.DrawBool("refuse") {
			return refusals[w.DrawInt("refusal", len(refusals))]
		}
		return nil
	}
	return nil
}

func (n *node) Tamper(w generate.Cluster) {
	n.touched = true
	if n.table == nil {
		return
	}
	chains := slices.Sorted(maps.Keys(n.table.chains))
	c := n.table.chains[chains[w.DrawInt("chain", len(chains))]]
	switch w.DrawInt("kind", 5) {
	case 0:
		n.table = nil
	case 1:
		c.rules = nil
	case 2:
		c.rules = append(c.rules, rule{verdict{code: verdictAccept}})
	case 3:
		for _, name := range slices.Sorted(maps.Keys(n.table.sets)) {
			if w.DrawBool("flush " + name) {
				clear(n.table.sets[name].elements)
			}
		}
	case 4:
		key := w.Pod(99).AsSlice()
		n.table.sets["cluster-ips"].elements[string(key)] = element{in: clusterIPs, key: key}
		n.table.chains["foreign"] = &fakeChain{}
		n.table.sets["foreign"] = &fakeSet{&set{name: "foreign"}, map[string]element{}}
	}
}

// State leaves out the order of slots, and the chains of classes, which stay when nobody
// needs them any more.
func (n *node) State() string {
	if n.table == nil {
		return ""
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(n.table.sets)) {
		fmt.Fprintf(&b, "set %s: %x\n", name, slices.Sorted(maps.Keys(n.table.sets[name].elements)))
	}
	for _, name := range slices.Sorted(maps.Keys(n.table.chains)) {
		if !strings.Contains(name, "pick-") && !strings.Contains(name, "cluster-") && !strings.Contains(name, "external-") {
			fmt.Fprintf(&b, "chain %s:\n", name)
			for _, r := range n.table.chains[name].rules {
				fmt.Fprintf(&b, "\t%v\n", r.fingerprint(n.family))
			}
		}
	}
	return b.String()
}

func (n *node) Changes() []string {
	all := n.done
	n.done = nil
	return all
}

func (n *node) Judge(t *rapid.T, want *service.Snapshot, c route.Conn) {
	v := route.Decide(want, c)
	expected := backendtest.Expect(v, func(e service.Endpoint) bool { return hairpins(want, c.From, e, n.family) })
	w := trace(n.table, n.family, c, generate.IsNodeLocal)
	got := backendtest.Outcome{Action: w.Action, Targets: slices.SortedFunc(maps.Keys(w.Targets), netip.AddrPort.Compare), Masq: w.Targets}
	if diff := backendtest.Diff(expected, got); diff != "" {
		t.Fatalf("%+v: %s (-decide +nftables):\n%s", c, v.Reason, diff)
	}
}

// hairpins accounts for an address that is local for one Port and remote for another.
// Only generated clusters have such addresses.
func hairpins(want *service.Snapshot, from netip.Addr, e service.Endpoint, f service.Family) bool {
	if e.Addr.Addr() != from {
		return false
	}
	s := newShared()
	for p := range want.Ports(f) {
		s.add(p, 1)
	}
	return s[sharedKey{hairpin, string(from.AsSlice())}] > 0
}

func (n *node) Check(*rapid.T, *service.Snapshot) {}

type fataler interface{ Fatalf(string, ...any) }

// apply runs one sync, which must succeed.
func apply(t fataler, b *Backend, want *service.Snapshot) {
	generate.Apply(t, b, want)
}

func addrPort(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
