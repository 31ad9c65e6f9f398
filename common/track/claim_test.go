// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// contender is Service i of many that want the same ClusterIP.
func contender(i int, created int64) *corev1.Service {
	s := plainService(0)
	s.Namespace, s.Name = "d", fmt.Sprintf("s%06d", i)
	s.CreationTimestamp = metav1.Unix(created, 0)
	return s
}

func leave(t *Tracker, i int) {
	t.DeleteService(types.NamespacedName{Namespace: "d", Name: contender(i, 0).Name})
}

// TestContendersCost wants a claim to cost the same however many others want the
// address, as long as it stays with whom it is.
func TestContendersCost(t *testing.T) {
	const n = 1000
	tracker := New(Options{})
	for i := range n {
		tracker.SetService(contender(i, 2))
	}
	tracker.Synced()
	for _, step := range []struct {
		name string
		do   func()
		want int
	}{
		{"one more", func() { tracker.SetService(contender(n, 3)) }, 1},
		{"one less", func() { leave(tracker, n/2) }, 1},
		{"an older one, gone before anybody looked", func() {
			tracker.SetService(contender(2*n, 1))
			leave(tracker, 2*n)
		}, 2},
	} {
		tracker.Latest()
		step.do()
		tracker.claims.resolve()
		if len(tracker.dirty) > step.want {
			t.Errorf("%s at %d who want one address: %d Services are worked on; want %d", step.name, n, len(tracker.dirty), step.want)
		}
	}
	tracker.Latest()
	tracker.SetService(contender(2*n, 1))
	tracker.Latest()
	all := tracker.Problems()
	if len(all) != n {
		t.Errorf("%d problems; want one for each of %d who do not have the address", len(all), n)
	}
	for _, p := range all {
		if want := "belongs to service d/" + contender(2*n, 0).Name; !strings.Contains(p.Message, want) {
			t.Fatalf("after the address has gone to an older one: %s; want %q", p, want)
		}
	}
}

// TestContendersInOrder lists who wants an address, oldest first, and the names of one
// namespace.
func TestContendersInOrder(t *testing.T) {
	tracker := New(Options{})
	tracker.SetService(plainService(1)) // in namespace ns-1
	for i, created := range []int64{9, 3, 7, 5, 1, 8} {
		tracker.SetService(contender(i, created))
	}
	tracker.Synced()
	seen := false
	for p := range tracker.Latest().Ports(0) {
		if p.Name.Namespace != "d" {
			continue
		}
		seen = true
		c := tracker.Claimants(p, p.Frontends[0])
		got := c.Holder
		for _, other := range c.Others {
			name, _, _ := strings.Cut(other, ",")
			got += " " + name
		}
		if want := "d/s000004 d/s000001 d/s000003 d/s000002 d/s000005 d/s000000"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if all, few := tracker.Names(""), tracker.Names("ns-1"); len(all) != 7 || len(few) != 1 || !seen {
		t.Errorf("names %v, in one namespace %v", all, few)
	}
}

// TestContestCost has many Services want one address as ClusterIP and as external IP,
// in the order that changes the holder each time and in the other one. Four times as
// many cost about four times as much.
func TestContestCost(t *testing.T) {
	for name, created := range map[string]func(i int) int64{
		"each loses": func(i int) int64 { return int64(i) },
		"each wins":  func(i int) int64 { return int64(1e6 - i) },
	} {
		t.Run(name, func(t *testing.T) {
			const few, times, limit = 5000, 4, 9
			best := 1e9
			for range 5 { // other work on the machine takes turns
				small := contest(few, created)
				best = min(best, contest(few*times, created).Seconds()/small.Seconds())
				if best < limit {
					break
				}
			}
			t.Logf("%d times as many cost %.1f times as much", times, best)
			if best >= limit {
				t.Errorf("%d times as many Services at one address cost %.1f times as much; want less than %d", times, best, limit)
			}
		})
	}
}

// contest returns how long it takes to add and remove n Services.
func contest(n int, created func(i int) int64) time.Duration {
	start := time.Now()
	t := New(Options{})
	for i := range n {
		s := contender(i, created(i))
		s.Spec.ExternalIPs = []string{s.Spec.ClusterIP}
		t.SetService(s)
	}
	t.Synced()
	t.Latest()
	for i := range n {
		leave(t, (i+n/2)%n)
	}
	t.Latest()
	return time.Since(start)
}
