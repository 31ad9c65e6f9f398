// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package events

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestManyNodes has a hundred nodes that see the same mistake.
func TestManyNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		written := 0
		for i := range 100 {
			r := newRecorder(Options{Node: fmt.Sprint("node-", i), Written: func() { written++ }}, s)
			all.Go(func() { r.Run(ctx) })
			r.Failed(serviceObject("web"), mistake, "spec.clusterIPs[0]: is a loopback address")
			r.Recovered(serviceObject("api"), mistake, "")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := len(s.events); n != 1 || written != 1 {
			t.Errorf("%d Events, %d of them written, want one", n, written)
		}
		seconds := map[string]int{}
		for _, c := range s.takeCalls() {
			at, _, _ := strings.Cut(c, " ")
			seconds[at]++
		}
		if len(seconds) < 15 {
			t.Errorf("a hundred nodes wrote within %d seconds, want them spread", len(seconds))
		}
		stop()
		all.Wait()
	})
}
