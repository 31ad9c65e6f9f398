// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"cmp"
	"context"
	"errors"
	"time"
)

// drainInterval is how often draining targets are checked for ended connections.
const drainInterval = 5 * time.Second

// drainState is the progress of a target's drain.
type drainState struct {
	started   time.Time
	found     string // what was there at first
	remaining string
}

// remove empties targets. It keeps those where that fails or where connections go on.
func (t *Takeover) remove(ctx context.Context) error {
	var left []Target
	var errs []error
	for _, p := range t.targets {
		what, done, err := t.removeOrDrain(ctx, p)
		switch {
		case err != nil:
			p.err = err
			left, errs = append(left, p), append(errs, err)
			t.removed[p.String()] = cmp.Or(what, t.removed[p.String()])
		case !done:
			p.err = nil
			left = append(left, p)
		case cmp.Or(what, t.removed[p.String()]) != "":
			t.options.Log.Info("Removed what an earlier service proxy left", "place", p.String(), "what", cmp.Or(what, t.removed[p.String()]))
		}
	}
	t.targets = left
	err := errors.Join(errs...)
	switch {
	case err != nil:
		t.options.CountFailure()
		t.report("", nil)
	case len(left) > 0:
		t.report("", nil)
	}
	return err
}

// removeOrDrain empties a target. It returns what was there, and whether the target is
// done.
func (t *Takeover) removeOrDrain(ctx context.Context, p Target) (what string, done bool, err error) {
	r, is := p.Leftovers.(Draining)
	if !is {
		what, err = removeLeftovers(ctx, p)
		return what, true, err
	}
	now := t.draining[p.String()]
	if now == nil {
		now = &drainState{}
		if now.found, err = p.inspect(ctx); err != nil || now.found == "" {
			return "", true, err
		}
	}
	first := now.started.IsZero()
	if now.remaining, err = r.Drain(ctx, now.started); err != nil {
		return "", false, err
	}
	if now.remaining == "" {
		delete(t.draining, p.String())
		_, err := removeLeftovers(ctx, p) // or another program has added it again
		return now.found, true, err
	}
	if first {
		now.started = time.Now()
		t.draining[p.String()] = now
		t.options.Log.Info("What an earlier service proxy left takes no new connections from now on; it is removed when its connections have ended", "place", p.String(), "stays", now.remaining)
	}
	return "", false, nil
}
