// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func named(name string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
}

// TestFeed calls a feed like a reflector calls its store.
func TestFeed(t *testing.T) {
	var calls, alive []string
	f := &feed{
		kind: kindServices, known: map[types.NamespacedName]bool{}, listed: make(chan struct{}), pace: newPacer(),
		set:     func(o any) { calls = append(calls, "set "+o.(*corev1.Service).Name) },
		remove:  func(n types.NamespacedName) { calls = append(calls, "gone "+n.String()) },
		contact: func(kind string) { alive = append(alive, kind) },
	}
	steps := []struct {
		do   func() error
		want []string
	}{
		{func() error { return f.Replace([]any{named("a"), named("b")}, "1") }, []string{"set a", "set b"}},
		{func() error { return f.Add(named("c")) }, []string{"set c"}},
		{func() error { return f.Update(named("a")) }, []string{"set a"}},
		{func() error { return f.Delete(named("b")) }, []string{"gone shop/b"}},
		{func() error { return f.Replace([]any{named("d"), named("c")}, "9") }, []string{"set d", "set c", "gone shop/a"}},
		{func() error { return f.Replace(nil, "10") }, []string{"gone shop/c", "gone shop/d"}},
		{f.Resync, nil},
	}
	for i, s := range steps {
		calls = nil
		select {
		case <-f.listed:
			if i == 0 {
				t.Error("listed before the first list")
			}
		default:
			if i > 0 {
				t.Errorf("step %d: not listed after the first list", i)
			}
		}
		if err := s.do(); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		if i == 5 { // in random order
			calls = sorted(calls)
		}
		if diff := cmp.Diff(s.want, calls); diff != "" {
			t.Errorf("step %d (-want +got):\n%s", i, diff)
		}
	}
	if err := f.Bookmark("11"); err != nil {
		t.Error(err)
	}
	if len(alive) != len(steps) { // each step except Resync, and the bookmark
		t.Errorf("%d signs of life, want %d", len(alive), len(steps))
	}
	if err := f.Add("no object"); err == nil {
		t.Error("Add of no object = nil")
	}
	if err := f.Delete("no object"); err == nil {
		t.Error("Delete of no object = nil")
	}
}

func sorted(s []string) []string {
	slices.Sort(s)
	return s
}

// Existing objects are delivered while they are collected. Objects that are missing from
// the complete list, because they were deleted during an outage, are deleted at the end.
func TestFeedCollects(t *testing.T) {
	var calls []string
	f := &feed{
		kind: kindServices, known: map[types.NamespacedName]bool{}, listed: make(chan struct{}), pace: newPacer(),
		set:    func(o any) { calls = append(calls, "set "+o.(*corev1.Service).Name) },
		remove: func(n types.NamespacedName) { calls = append(calls, "gone "+n.Name) },
	}
	if err := f.Replace([]any{named("old")}, "1"); err != nil {
		t.Fatal(err)
	}
	var collected []any
	for _, name := range []string{"a", "b", "c"} {
		kept, err := f.Transformer()(named(name))
		if err != nil {
			t.Fatal(err)
		}
		if _, isObject := kept.(*corev1.Service); isObject {
			t.Errorf("all of %s is kept", name)
		}
		if name != "b" { // which was deleted meanwhile
			collected = append(collected, kept)
		}
	}
	if err := f.Replace(collected, "2"); err != nil {
		t.Fatal(err)
	}
	want := []string{"gone b", "gone old", "set a", "set b", "set c", "set old"}
	if diff := cmp.Diff(want, sorted(calls)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(f.known) != 2 {
		t.Errorf("known = %v, want a and c", f.known)
	}
}
