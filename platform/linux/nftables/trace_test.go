// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/test/backendtest"
	"kubeproxy/test/generate"
)

// meeting records the elements and chains that a packet meets.
type meeting struct {
	ruleset
	elements []element
	chains   []string
}

func (m *meeting) rules(chain string) []rule {
	if !slices.Contains(m.chains, chain) {
		m.chains = append(m.chains, chain)
	}
	return m.ruleset.rules(chain)
}

func (m *meeting) element(s *set, key []byte) (element, bool) {
	e, found := m.ruleset.element(s, key)
	if found {
		e.in = s
		m.elements = append(m.elements, e)
	}
	return e, found
}

// Whatever a packet meets, Trace finds that it is missing or changed, and finds nothing
// before.
func TestTraceFindsTampering(t *testing.T) {
	for _, f := range service.Families {
		t.Run(f.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				w := generate.Cluster{T: t, Family: f}
				ports := w.Ports()
				want := service.New(1, w.Node(), ports)
				k := &fake{family: f}
				b := &Backend{family: f, options: Options{MasqueradeBit: 14}, driver: k}
				apply(t, b, want)
				for range 2 {
					tamperOnPath(t, b, want, w.Conn(ports))
				}
			})
		})
	}
}

func tamperOnPath(t *rapid.T, b *Backend, want *service.Snapshot, c route.Conn) {
	k := b.driver.(*fake)
	look := func() *explain.Explanation {
		w, err := b.Trace(context.Background(), want, c, generate.IsNodeLocal)
		if err != nil {
			t.Fatal(err)
		}
		x := backendtest.Explain(route.Decide(want, c), func(e service.Endpoint) bool { return hairpins(want, c.From, e, b.family) })
		x.Compare(w.Path())
		return x
	}
	if x := look(); x.Verdict != explain.Agree {
		t.Fatalf("%+v: %q before anything was changed", c, x.Differences)
	}
	m := &meeting{ruleset: k.table}
	trace(m, b.family, c, generate.IsNodeLocal)
	whole := k.table
	for _, name := range m.chains {
		k.table = whole.clone()
		k.table.chains[name].rules = append(k.table.chains[name].rules, rule{verdict{code: verdictAccept}})
		x := look()
		if !slices.ContainsFunc(x.Differences, func(s string) bool { return strings.HasPrefix(s, "chain "+name+" has ") }) {
			t.Errorf("%+v: rules of chain %s changed, found %q", c, name, x.Differences)
		}
	}
	for _, e := range m.elements {
		k.table = whole.clone()
		s := k.table.sets[e.in.name]
		delete(s.elements, elementKey(e))
		if x := look(); x.Verdict != explain.Differ {
			t.Errorf("%+v: an element of %s is gone (%s), found %s", c, e.in.name, e.text(b.family), x.Verdict)
		}
	}
	k.table = whole
}

func TestTraceWithoutTable(t *testing.T) {
	want := service.New(1, &service.Node{}, nil)
	b := &Backend{family: service.IPv4, driver: &fake{}}
	w, err := b.Trace(context.Background(), want, route.Conn{To: addrPort("10.96.0.1:80")}, generate.IsNodeLocal)
	if err != nil || len(w.Faults) != 1 || w.Faults[0] != "there is no table ip kube-services" {
		t.Errorf("walk %+v, error %v", w, err)
	}
}
