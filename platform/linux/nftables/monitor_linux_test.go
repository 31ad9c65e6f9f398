// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"testing"
	"time"

	"kubeproxy/common/service"
)

// foreignChanges are changes by nft. touches states whether they concern the IPv4 table
// of simple(2).
var foreignChanges = map[string]struct {
	script  string
	touches bool
}{
	"an element goes":                  {"delete element ip kube-services services { 10.96.0.1 . tcp . 80 }", true},
	"an element comes":                 {"add element ip kube-services cluster-ips { 10.9.9.9 }", true},
	"a rule comes":                     {"add rule ip kube-services refuse drop", true},
	"a chain is flushed":               {"flush chain ip kube-services dispatch", true},
	"a chain comes":                    {"add chain ip kube-services x", true},
	"a set comes":                      {"add set ip kube-services x { type ipv4_addr; }", true},
	"the table is flushed":             {"flush table ip kube-services", true},
	"the table goes":                   {"delete table ip kube-services", true},
	"everything goes":                  {"flush ruleset", true},
	"ours among others":                {"add table ip a\nadd chain ip kube-services x\nadd table ip b", true},
	"another table":                    {"add table ip other\nadd chain ip other x\nadd rule ip other x drop", false},
	"a table whose name begins so":     {"add table ip kube-services-2\nadd chain ip kube-services-2 x", false},
	"the table of the other family":    {"add table ip6 kube-services\nadd chain ip6 kube-services x", false},
	"a table of that name for bridges": {"add table bridge kube-services", false},
}

func TestTouched(t *testing.T) {
	for name, tt := range foreignChanges {
		t.Run(name, func(t *testing.T) {
			inNamespace(t, func() {
				b := newKernel(t, service.IPv4)
				defer b.driver.(*kernel).close()
				apply(t, b, simple(2))
				apply(t, b, simple(3)) // our own changes
				if wasTouched(t, b) {
					t.Error("touched by ourselves")
				}
				runNft(t, tt.script, "-f", "-")
				if got := wasTouched(t, b); got != tt.touches {
					t.Errorf("touched = %v, want %v", got, tt.touches)
				}
				apply(t, b, simple(3))
				if wasTouched(t, b) {
					t.Error("still touched after the repair")
				}
			})
		})
	}
}

func wasTouched(t *testing.T, b *Backend) bool {
	t.Helper()
	touched, err := b.driver.Touched(context.Background())
	if err != nil {
		t.Errorf("Touched: %v", err)
	}
	return touched
}

// whileWatching runs body while b watches. calls has room for all calls.
func whileWatching(t *testing.T, b *Backend, body func(calls <-chan struct{})) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	calls, done := make(chan struct{}, 100), make(chan error, 1)
	go func() { done <- b.Watch(ctx, func() { calls <- struct{}{} }) }()
	body(calls)
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("Watch = %v, want nil", err)
		}
	case <-time.After(time.Minute):
		t.Error("Watch goes on after its context ended")
	}
}

func wantCall(t *testing.T, calls <-chan struct{}, when string) {
	t.Helper()
	select {
	case <-calls:
	case <-time.After(time.Minute):
		t.Errorf("%s: not reported", when)
	}
}

// Watch reports each change that a sync then repairs, and also the next one, whatever we
// changed in between.
func TestWatch(t *testing.T) {
	inNamespace(t, func() {
		b := newKernel(t, service.IPv4)
		defer b.driver.(*kernel).close()
		apply(t, b, simple(2))
		whileWatching(t, b, func(calls <-chan struct{}) {
			for _, when := range []string{"a first change", "a second one", "a third one"} {
				runNft(t, "", "add", "rule", "ip", TableName, refuseChain, "drop")
				wantCall(t, calls, when)
				apply(t, b, simple(2))
			}
		})
	})
}

// Watch reports neither changes of other tables nor our own.
func TestWatchIsQuiet(t *testing.T) {
	inNamespace(t, func() {
		b := newKernel(t, service.IPv4)
		defer b.driver.(*kernel).close()
		whileWatching(t, b, func(calls <-chan struct{}) {
			for n := range 5 {
				apply(t, b, simple(n))
				runNft(t, "", "add", "table", "ip", "other")
				runNft(t, "", "delete", "table", "ip", "other")
			}
			wasTouched(t, b) // reads all notifications
			if n := len(calls); n != 0 {
				t.Errorf("reported %d times", n)
			}
		})
	})
}

// A change whose notification arrives during our commit is reported too, because that
// sync has already read the table. So is a change from before the watch began.
func TestWatchReportsChangesSeenDuringCommit(t *testing.T) {
	for name, late := range map[string]bool{"watched": false, "watched later": true} {
		t.Run(name, func(t *testing.T) {
			inNamespace(t, func() {
				b := newKernel(t, service.IPv4)
				defer b.driver.(*kernel).close()
				apply(t, b, simple(2))
				if !late {
					whileWatching(t, b, func(calls <-chan struct{}) {
						changeBetweenPlanAndApply(t, b)
						wantCall(t, calls, "a change within a round")
					})
					return
				}
				changeBetweenPlanAndApply(t, b)
				whileWatching(t, b, func(calls <-chan struct{}) { wantCall(t, calls, "a change from before") })
			})
		})
	}
}

// changeBetweenPlanAndApply runs a sync in which another process changes the table
// between Plan and Apply.
func changeBetweenPlanAndApply(t *testing.T, b *Backend) {
	t.Helper()
	p, err := b.Plan(context.Background(), simple(3))
	if err != nil {
		t.Errorf("Plan: %v", err)
		return
	}
	runNft(t, "", "add", "chain", "ip", TableName, "x")
	if err := p.Apply(context.Background()).Err; err != nil {
		t.Errorf("Apply: %v", err)
	}
}
