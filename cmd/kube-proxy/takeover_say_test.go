// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

// unseen is an empty place that cannot be looked at for some times.
type unseen struct{ times int }

func (u *unseen) String() string { return "another place" }

func (u *unseen) Find(context.Context) (string, error) {
	if u.times--; u.times >= 0 {
		return "", errUnseenTest
	}
	return "", nil
}

func (u *unseen) Remove(context.Context) error { return nil }

var errUnseenTest = errors.New("it is dark")

// What cannot be looked at is not said to be there, nor what is there to be
// unknown, and each is logged once.
func TestUnreadIsNotLeft(t *testing.T) {
	const (
		dark  = "whether an earlier service proxy left rules in another place cannot be told: it is dark"
		there = "an earlier service proxy left rules in a place: "
	)
	stuck := &leftRules{what: "rules", fail: []error{errSystemTest, errSystemTest, errSystemTest}}
	takingOverAll(t, []place{{remains: stuck}, {remains: &unseen{times: 3}}}, &auditor{}, func(s *story) {
		s.after(0, nil)
		pass(10 * time.Second)
		want := []string{
			there + "they go as soon as all that is wanted is in force; " + dark,
			there + "the kernel is out of order; " + dark,
			there + "the kernel is out of order; " + dark,
			there + "the kernel is out of order",
			"",
		}
		if !slices.Equal(s.shown, want) {
			t.Errorf("conditions\n%s\nwant\n%s", strings.Join(s.shown, "\n"), strings.Join(want, "\n"))
		}
		for _, once := range []string{unreadText, stillText} {
			if n := strings.Count(s.errors.String(), once); n != 1 {
				t.Errorf("%q was logged %d times:\n%s", once, n, s.errors)
			}
		}
	})
}
