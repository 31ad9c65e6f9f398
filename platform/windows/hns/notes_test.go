// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// Notes are returned after each sync, also by one without changes. Notes that were
// returned are never modified.
func TestNotesOfRounds(t *testing.T) {
	b := newTestNode(t, v13, bridgeN)
	b.pods("10.244.1.11")
	notesOf := func(want *service.Snapshot) reconcile.Notes {
		b.now = b.now.Add(time.Second)
		p := b.plan(want)
		if !p.Empty() {
			if err := p.Apply(t.Context()).Err; err != nil {
				t.Fatal(err)
			}
		}
		return p.Outcome().Notes
	}
	const timeout, refuse = "session affinity has no timeout: HNS has none", "it has no ready endpoint, and HNS cannot refuse connections: they time out"
	sticky := clusterIP("sticky", "10.96.0.10", "10.244.1.11:80")
	sticky.Affinity = time.Hour
	plain := clusterIP("plain", "10.96.0.11", "10.244.1.11:80")
	first := notesOf(snapshot(1, sticky, plain))
	var all []string
	for i, want := range []*service.Snapshot{
		snapshot(2, sticky, plain),
		snapshot(3, sticky, clusterIP("plain", "10.96.0.11")),
		snapshot(4, sticky, clusterIP("plain", "10.96.0.11")),
		snapshot(5, clusterIP("sticky", "10.96.0.10", "10.244.1.11:80"), plain),
	} {
		notes := notesOf(want)
		for _, name := range []service.PortName{plain.Name, sticky.Name} {
			for _, n := range notes[name] {
				all = append(all, fmt.Sprint(i, " ", name.Name, " ", n.Text, " ", n.Transient))
			}
		}
	}
	want := []string{
		"0 sticky " + timeout + " false", "1 plain " + refuse + " true", "1 sticky " + timeout + " false",
		"2 plain " + refuse + " true", "2 sticky " + timeout + " false",
	}
	if diff := cmp.Diff(want, all); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(reconcile.Notes{sticky.Name: {{Text: timeout}}}, first); diff != "" {
		t.Errorf("what was reported first (-want +now):\n%s", diff)
	}
}
