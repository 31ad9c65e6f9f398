// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/mode"
)

// deafBackend has rules in order, and a watch that ends once.
type deafBackend struct {
	auditor
	watches atomic.Int32
}

func (d *deafBackend) Watch(ctx context.Context, _ func()) error {
	if d.watches.Add(1) == 1 {
		return errors.New("messages were lost")
	}
	<-ctx.Done()
	return nil
}

// TestWatchEnds checks that a watch begins again, and that the rules are looked at then:
// nobody saw what changed meanwhile.
func TestWatchEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &deafBackend{}
		d.good.Store(true)
		m := &member{Backend: &mode.Backend{Backend: d}, loop: reconcile.NewLoop(d)}
		m.loop.Resync = time.Hour
		want := service.New(1, &service.Node{}, nil)
		m.loop.Latest, m.loop.Report = func() *service.Snapshot { return want }, func(reconcile.Result) {}
		ctx, end := context.WithCancel(t.Context())
		go func() { _ = m.loop.Run(ctx) }()
		go func() { _ = m.watch(ctx) }()
		time.Sleep(time.Minute)
		if watches, rounds := d.watches.Load(), d.asked.Load(); watches != 2 || rounds != 2 {
			t.Errorf("%d watches and %d rounds in a minute, want two of each", watches, rounds)
		}
		end()
		synctest.Wait()
	})
}
