// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"errors"
	"strings"

	"k8s.io/klog/v2"

	"kubeproxy/common/service"
)

// The texts of errors in the log. UnreadText is also for an error that hides the targets
// themselves.
const (
	UnreadText = "It is unknown what an earlier service proxy left; trying again later"
	stillText  = "What an earlier service proxy left is still there; trying again"
)

// report shows in the condition why old rules are still there, or may be. Then it logs
// each new error. err is about all targets. It, or else fallback, is shown for targets
// without a reason of their own.
func (t *Takeover) report(fallback string, err error) {
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
			t.logOnce(UnreadText, p.String(), p.err)
		case p.err != nil:
			t.logOnce(stillText, p.String(), p.err)
		}
	}
}

// setCondition groups the targets by reason.
func (t *Takeover) setCondition(fallback string) {
	var order []string // of the texts
	targets := map[string][]string{}
	for _, p := range t.targets {
		text := "an earlier service proxy left rules in %s: " + t.reason(p, fallback)
		if errors.As(p.err, &unreadError{}) {
			text = "it is unknown whether an earlier service proxy left rules in %s: " + p.err.Error()
		}
		if targets[text] == nil {
			order = append(order, text)
		}
		targets[text] = append(targets[text], p.String())
	}
	for i, text := range order {
		order[i] = strings.Replace(text, "%s", strings.Join(targets[text], ", "), 1)
	}
	t.options.Condition(strings.Join(order, "; "))
}

// reason returns why p is still there.
func (t *Takeover) reason(p Target, fallback string) string {
	switch r := t.draining[p.String()]; {
	case p.err != nil:
		return p.err.Error()
	case r != nil:
		return "it takes no new connections, and stays until its connections end: " + r.remaining
	}
	return fallback
}

// ReportUnprogrammed reports what is in targets whose families no backend programs. The
// leftovers stay: outdated rules are better than none. show receives the text of the
// condition of a family.
func ReportUnprogrammed(ctx context.Context, log klog.Logger, targets []Target, show func(f service.Family, text string)) {
	left := map[service.Family][]string{}
	for _, p := range targets {
		if what, err := p.Find(ctx); err == nil && what != "" {
			log.Info("Found what an earlier service proxy left; it stays, because nothing replaces it", "family", p.Family.String(), "place", p.String(), "what", what)
			left[p.Family] = append(left[p.Family], p.String())
		}
	}
	for f, targets := range left {
		show(f, "an earlier service proxy left rules in "+strings.Join(targets, ", ")+
			": they stay and get out of date, because nothing replaces them; --cleanup removes them")
	}
}

// logOnce logs an error unless it was the last one logged for the target. An empty target
// stands for all.
func (t *Takeover) logOnce(what, target string, err error) {
	if t.logged[target] == err.Error() {
		return
	}
	t.logged[target] = err.Error()
	var args []any
	if target != "" {
		args = []any{"place", target}
	}
	t.options.Log.Error(err, what, args...)
}
