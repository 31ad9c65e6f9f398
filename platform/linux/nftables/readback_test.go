// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"slices"
	"strings"
	"testing"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// TestSlotsInOrder checks that the endpoints of a Service are listed by number, also where
// the bytes of the number are in another order.
func TestSlotsInOrder(t *testing.T) {
	all, _ := Render(servicesWith(1, 300), Options{MasqueradeBit: 14})
	at := -1
	for _, n := range []string{" . 1 : ", " . 2 : ", " . 255 : ", " . 256 : ", " . 257 : ", " . 299 : "} {
		next := strings.Index(all.String(), n)
		if next < at || next < 0 {
			t.Errorf("%q stands before what has a lower number", n)
		}
		at = next
	}
}

// TestReadBackNames checks that what is read back names what is wrong, and where.
func TestReadBackNames(t *testing.T) {
	k := &fake{family: service.IPv4}
	b := &Backend{family: service.IPv4, options: Options{MasqueradeBit: 14}, driver: k}
	want := simple(1)
	if held, wanted, err := b.ReadBack(t.Context(), want); err != nil || held != nil || !strings.HasPrefix(wanted.String(), "table ip kube-services {\n") {
		t.Errorf("without a table: %v, %q", err, held)
	}
	apply(t, b, want)
	held, wanted, err := b.ReadBack(t.Context(), want)
	if err != nil || held.String() != wanted.String() {
		t.Errorf("%v; held:\n%s\nwanted:\n%s", err, held, wanted)
	}
	for _, objects := range []reconcile.Objects{held, wanted} {
		of := service.PortName{Namespace: "shop", Name: "web-000", Protocol: service.TCP}
		if !slices.ContainsFunc(objects, func(o reconcile.Object) bool { return o.Port == of }) {
			t.Errorf("nothing is for %s in\n%s", of, objects)
		}
	}
	k.table.chains[dispatchChain].rules = append(k.table.chains[dispatchChain].rules, rule{verdict{code: verdictAccept}})
	k.table.chains["foreign"] = &fakeChain{}
	k.table.sets["foreign"] = &fakeSet{&set{name: "foreign"}, map[string]element{}}
	clear(k.table.sets[clusterIPs.name].elements)
	held, _, err = b.ReadBack(t.Context(), want)
	for _, text := range []string{"# a rule that others wrote", "chain foreign {", "set or map foreign {\n\t\t# not one that is wanted"} {
		if err != nil || !strings.Contains(held.String(), text) {
			t.Errorf("%v, no %q in\n%s", err, text, held)
		}
	}
	if !strings.Contains(wanted.String(), "set cluster-ips {\n\t\ttypeof ip daddr\n\t\telements") || strings.Contains(held.String(), "set cluster-ips {\n\t\ttypeof ip daddr\n\t\telements") {
		t.Errorf("an emptied set is read back as\n%s", held)
	}
}
