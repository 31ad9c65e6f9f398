// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package servicestate

import (
	"testing"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// TestUnavailableFamily checks that a Service shows why one family is unavailable, and
// that the other family determines its state.
func TestUnavailableFamily(t *testing.T) {
	for name, known := range map[string]func(*Store, *service.Snapshot){
		"from the start": func(b *Store, _ *service.Snapshot) {
			b.Unavailable = map[service.Family]string{service.IPv6: "the kernel has no IPv6"}
		},
		"by a round": func(b *Store, s *service.Snapshot) {
			b.Result(service.IPv6, reconcile.Result{Snapshot: s, Generation: 1, Start: at(0), Outcome: reconcile.Outcome{Unavailable: "the kernel has no IPv6"}})
		},
	} {
		t.Run(name, func(t *testing.T) { checkUnavailable(t, known) })
	}
}

func checkUnavailable(t *testing.T, known func(*Store, *service.Snapshot)) {
	t.Helper()
	s := service.New(1, &service.Node{NodePorts: service.AnyAddress()}, []*service.Port{port("both", service.IPv4, 1), port("both", service.IPv6, 1), port("six", service.IPv6, 1)})
	b := &Store{Latest: func() *service.Snapshot { return s }}
	known(b, s)
	b.Result(service.IPv4, reconcile.Result{Snapshot: s, Generation: 1, Start: at(0), Took: time.Second})
	want := map[string]State{"both": Programmed, "six": Skipped}
	for _, x := range b.All() {
		if x.State != want[x.Name] {
			t.Errorf("%s is %s, want %s", x.Name, x.State, want[x.Name])
		}
		last := x.Ports[len(x.Ports)-1]
		if last.Family != "IPv6" || last.State != Skipped || last.Error != "the kernel has no IPv6" || last.Since != nil {
			t.Errorf("%s: %+v, want IPv6 skipped with the reason", x.Name, last)
		}
	}
	if n := b.Summary().States; n[Programmed] != 1 || n[Skipped] != 1 {
		t.Errorf("counted %v, want one programmed and one skipped", n)
	}
}
