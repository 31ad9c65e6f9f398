// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"strings"
	"time"
)

// The times of looks for what was removed and comes back.
const (
	// relook is the pause before the first look and while nothing comes back.
	relook = time.Minute
	// relookMax is the longest pause where somebody else makes rules again and
	// again. Those of both are in force then and serve alike.
	relookMax = 16 * time.Minute
)

// run takes over until ctx ends. What comes back after it was removed is somebody's
// who runs beside this process.
func (t *takeover) run(ctx context.Context) {
	for pause := relook; ctx.Err() == nil; {
		t.once(ctx)
		anew := false
		select {
		case <-ctx.Done():
			return
		case <-t.anew:
			anew = true
		case <-time.After(pause):
		}
		there := t.find(ctx)
		switch {
		case there == "":
			t.rival("")
			pause = relook
		case anew: // another process had the node, see lease.Lease
			t.log.Info("Found what another service proxy left meanwhile; it stays in force until all that is wanted is", "what", there)
		default:
			t.rival(there)
			pause = min(2*pause, relookMax)
		}
	}
}

// once returns when all is taken over, or ctx ends.
func (t *takeover) once(ctx context.Context) {
	if len(t.places) == 0 {
		return
	}
	defer t.condition("")
	if !t.verified(ctx) {
		return
	}
	for failures := 0; ; {
		there, retired := len(t.places), len(t.retired)
		pause := retirePause
		if err := t.removeAlone(ctx); err != nil {
			pause = min(time.Second<<min(failures, 10), takeoverPause)
			failures++
		}
		if len(t.places) < there || len(t.retired) > retired {
			t.done()
		}
		if len(t.places) == 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// removeAlone removes what it can unless another process programs the node.
func (t *takeover) removeAlone(ctx context.Context) error {
	if t.enter != nil {
		leave, ok := t.enter(ctx)
		if !ok {
			return nil
		}
		defer leave()
	}
	return t.remove(context.WithoutCancel(ctx))
}

// missing notes that another process has the node: what it may leave is to be taken
// over once this one has it again.
func (t *takeover) missing() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.want, t.missed = nil, true
	select {
	case <-t.good:
	default:
	}
}

// find looks at all places again, and says what is there to take over.
func (t *takeover) find(ctx context.Context) string {
	if t.enter != nil {
		leave, ok := t.enter(ctx)
		if !ok {
			return ""
		}
		defer leave()
	}
	var found []string
	t.places = nil
	for _, p := range t.all {
		p.trouble = nil
		what, err := p.Find(ctx)
		if err != nil || what == "" {
			continue // it was looked at well before
		}
		t.places = append(t.places, p)
		found = append(found, p.String()+": "+what)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(found) > 0 && t.want != nil {
		t.verify()
	}
	return strings.Join(found, "; ")
}
