// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import "testing"

// The stored parts of an element are enough to delete, compare and print it.
func TestObservedElements(t *testing.T) {
	for name, e := range map[string]element{
		"a key":           {in: hairpin, key: []byte("key")},
		"an address":      {in: endpoints, key: []byte("key"), value: []byte("value")},
		"a verdict":       {in: services, key: []byte("key"), verdict: gotoVerdict("pick-2"), comment: "shop/web"},
		"a drop":          {in: services, key: []byte("key"), verdict: verdict{code: verdictDrop}},
		"a range":         {in: sources, key: []byte("from"), end: []byte("upto")},
		"all":             {in: services, catchAll: true, verdict: verdict{code: verdictDrop}},
		"with expression": {in: hairpin, key: []byte("key"), expressions: true},
	} {
		s := newObservedSet(setSpec{})
		if !s.put(e) || s.put(e) {
			t.Errorf("%s: put does not say what is new", name)
		}
		got, found := s.get(elementKey(e))
		got.in = e.in
		if !found || got.compare(e) != 0 || !got.same(e) || got.catchAll != e.catchAll || !s.elements[elementKey(e)].same(e) {
			t.Errorf("%s: %+v is kept as %+v", name, e, got)
		}
		e.comment += "x"
		if s.elements[elementKey(e)].same(e) {
			t.Errorf("%s: another comment is the same", name)
		}
	}
	if _, found := newObservedSet(setSpec{}).get("key"); found {
		t.Error("an empty set has an element")
	}
}
