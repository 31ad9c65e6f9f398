// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"strings"

	"kubeproxy/common/service"
)

// errUnread is why it is not known what is in a place. There may well be nothing.
type errUnread struct{ error }

// Unwrap returns the reason.
func (e errUnread) Unwrap() error { return e.error }

// look is Find, whose error is an errUnread.
func (p place) look(ctx context.Context) (string, error) {
	what, err := p.Find(ctx)
	if err != nil {
		return "", errUnread{err}
	}
	return what, nil
}

const (
	unreadText = "Cannot tell what an earlier service proxy left; trying again later"
	stillText  = "What an earlier service proxy left is still there; trying again"
)

// complain shows why old rules are still there, or that they may be, and then logs
// each trouble when it is a new one. err is about all places, and why what is shown
// of those that nothing else is known of.
func (t *takeover) complain(why string, err error) {
	if err != nil {
		why = err.Error()
	}
	t.show(why)
	if err != nil {
		t.tell(stillText, "", err)
	}
	for _, p := range t.places {
		switch {
		case errors.As(p.trouble, &errUnread{}):
			t.tell(unreadText, p.String(), p.trouble)
		case p.trouble != nil:
			t.tell(stillText, p.String(), p.trouble)
		}
	}
}

// show names the places, together where the same is to be said of them.
func (t *takeover) show(why string) {
	var order []string // of the texts
	places := map[string][]string{}
	for _, p := range t.places {
		text := "an earlier service proxy left rules in %s: " + t.reason(p, why)
		if errors.As(p.trouble, &errUnread{}) {
			text = "whether an earlier service proxy left rules in %s cannot be told: " + p.trouble.Error()
		}
		if places[text] == nil {
			order = append(order, text)
		}
		places[text] = append(places[text], p.String())
	}
	for i, text := range order {
		order[i] = strings.Replace(text, "%s", strings.Join(places[text], ", "), 1)
	}
	t.condition(strings.Join(order, "; "))
}

// reason says why p is still there.
func (t *takeover) reason(p place, why string) string {
	switch r := t.retired[p.String()]; {
	case p.trouble != nil:
		return p.trouble.Error()
	case r != nil:
		return "it takes no new connections and stays for those that it has: " + r.stays
	}
	return why
}

// doWithout says which families are not programmed, and what is left for them. That
// stays as it is: what gets out of date is better than nothing.
func (o *observers) doWithout(ctx context.Context, x *chosen) {
	o.lack(x.missing)
	if len(x.missing) == 0 {
		return
	}
	all, err := places(x.config)
	if err != nil {
		o.log.Error(err, unreadText)
	}
	left := map[service.Family][]string{}
	for _, p := range all {
		if x.missing[p.family] == "" {
			continue
		}
		if what, err := p.Find(ctx); err == nil && what != "" {
			o.log.Info("Found what an earlier service proxy left; it stays, as nothing takes its place", "family", p.family.String(), "place", p.String(), "what", what)
			left[p.family] = append(left[p.family], p.String())
		}
	}
	for f, places := range left {
		o.health.SetCondition("leftovers-"+f.String(), "an earlier service proxy left rules in "+strings.Join(places, ", ")+
			": they stay and get out of date, as nothing takes their place; --cleanup removes them")
	}
}

// tell logs what has not been logged last of a place, or of all without one.
func (t *takeover) tell(what, place string, err error) {
	if t.told[place] == err.Error() {
		return
	}
	t.told[place] = err.Error()
	var where []any
	if place != "" {
		where = []any{"place", place}
	}
	t.log.Error(err, what, where...)
}
