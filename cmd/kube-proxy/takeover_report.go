// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"strings"

	"kubeproxy/common/service"
)

// unreadError is why the content of a target is unknown. The target may be empty.
type unreadError struct{ error }

// Unwrap returns the reason.
func (e unreadError) Unwrap() error { return e.error }

// inspect is Find with an unreadError as its error.
func (p cleanupTarget) inspect(ctx context.Context) (string, error) {
	what, err := p.Find(ctx)
	if err != nil {
		return "", unreadError{err}
	}
	return what, nil
}

const (
	unreadText = "Cannot tell what an earlier service proxy left; trying again later"
	stillText  = "What an earlier service proxy left is still there; trying again"
)

// report shows in the condition why old rules are still there, or may be. Then it logs
// each new error. err is about all targets. It, or else fallback, is shown for targets
// without a reason of their own.
func (t *takeover) report(fallback string, err error) {
	if err != nil {
		fallback = err.Error()
	}
	t.setCondition(fallback)
	if err != nil {
		t.logOnce(stillText, "", err)
	}
	for _, p := range t.targets {
		switch {
		case errors.As(p.err, &unreadError{}):
			t.logOnce(unreadText, p.String(), p.err)
		case p.err != nil:
			t.logOnce(stillText, p.String(), p.err)
		}
	}
}

// setCondition groups the targets by reason.
func (t *takeover) setCondition(fallback string) {
	var order []string // of the texts
	targets := map[string][]string{}
	for _, p := range t.targets {
		text := "an earlier service proxy left rules in %s: " + t.reason(p, fallback)
		if errors.As(p.err, &unreadError{}) {
			text = "whether an earlier service proxy left rules in %s cannot be told: " + p.err.Error()
		}
		if targets[text] == nil {
			order = append(order, text)
		}
		targets[text] = append(targets[text], p.String())
	}
	for i, text := range order {
		order[i] = strings.Replace(text, "%s", strings.Join(targets[text], ", "), 1)
	}
	t.condition(strings.Join(order, "; "))
}

// reason returns why p is still there.
func (t *takeover) reason(p cleanupTarget, fallback string) string {
	switch r := t.draining[p.String()]; {
	case p.err != nil:
		return p.err.Error()
	case r != nil:
		return "it takes no new connections and stays for those that it has: " + r.remaining
	}
	return fallback
}

// reportUnprogrammed reports which families are not programmed, and the leftovers of
// these families. The leftovers stay: outdated rules are better than none.
func (o *statusReporter) reportUnprogrammed(ctx context.Context, x *selectedMode) {
	o.setUnavailable(x.unavailable)
	if len(x.unavailable) == 0 {
		return
	}
	all, err := cleanupTargets(x.config)
	if err != nil {
		o.log.Error(err, unreadText)
	}
	left := map[service.Family][]string{}
	for _, p := range all {
		if x.unavailable[p.family] == "" {
			continue
		}
		if what, err := p.Find(ctx); err == nil && what != "" {
			o.log.Info("Found what an earlier service proxy left; it stays, as nothing takes its place", "family", p.family.String(), "place", p.String(), "what", what)
			left[p.family] = append(left[p.family], p.String())
		}
	}
	for f, targets := range left {
		o.health.SetCondition("leftovers-"+f.String(), "an earlier service proxy left rules in "+strings.Join(targets, ", ")+
			": they stay and get out of date, as nothing takes their place; --cleanup removes them")
	}
}

// logOnce logs an error unless it was the last one logged for the target. An empty target
// stands for all.
func (t *takeover) logOnce(what, target string, err error) {
	if t.logged[target] == err.Error() {
		return
	}
	t.logged[target] = err.Error()
	var args []any
	if target != "" {
		args = []any{"place", target}
	}
	t.log.Error(err, what, args...)
}
