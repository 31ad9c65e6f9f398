// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/klog/v2/textlogger"
)

// unreadableLeftovers is an empty place whose first reads fail.
type unreadableLeftovers struct{ times int }

func (u *unreadableLeftovers) String() string { return "another place" }

func (u *unreadableLeftovers) Find(context.Context) (string, error) {
	if u.times--; u.times >= 0 {
		return "", errUnreadableTest
	}
	return "", nil
}

func (u *unreadableLeftovers) Remove(context.Context) error { return nil }

var errUnreadableTest = errors.New("it is dark")

// TestUnreadIsNotLeft checks that an unreadable place is not reported as occupied, nor an
// occupied one as unreadable, and that each is logged once.
func TestUnreadIsNotLeft(t *testing.T) {
	const (
		dark  = "it is unknown whether an earlier service proxy left rules in another place: it is dark"
		there = "an earlier service proxy left rules in a place: "
	)
	stuck := &fakeLeftovers{what: "rules", fail: []error{errSystemTest, errSystemTest, errSystemTest}}
	runTakeovers(t, []Target{{Leftovers: stuck}, {Leftovers: &unreadableLeftovers{times: 3}}}, &fakeAuditor{}, func(s *takeoverTest) {
		s.after(0, nil)
		advance(10 * time.Second)
		want := []string{
			there + "they are removed as soon as the new rules are in force; " + dark,
			there + "the kernel is out of order; " + dark,
			there + "the kernel is out of order; " + dark,
			there + "the kernel is out of order",
			"",
		}
		if !slices.Equal(s.conditions, want) {
			t.Errorf("conditions\n%s\nwant\n%s", strings.Join(s.conditions, "\n"), strings.Join(want, "\n"))
		}
		for _, once := range []string{UnreadText, stillText} {
			if n := strings.Count(s.logText.String(), once); n != 1 {
				t.Errorf("%q was logged %d times:\n%s", once, n, s.logText)
			}
		}
	})
}

// lineFunc is called with each line that is logged.
type lineFunc func(line string)

func (l lineFunc) Write(line []byte) (int, error) {
	l(string(line))
	return len(line), nil
}

// TestErrorIsReportedBeforeItIsLogged checks that a log line about old rules follows the
// condition in the health report.
func TestErrorIsReportedBeforeItIsLogged(t *testing.T) {
	var condition string
	logged := 0
	line := func(line string) {
		logged++
		if !strings.Contains(condition, "no right") {
			t.Errorf("%q is said, and %q shown", line, condition)
		}
	}
	x := New(Options{
		Targets:   []Target{{Leftovers: &fakeLeftovers{}, err: errors.New("no right")}},
		Condition: func(text string) { condition = text },
		Log:       textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(lineFunc(line)))),
	})
	if x.report("", nil); logged != 1 {
		t.Errorf("said %d times", logged)
	}
}

// TestErrorsNameTheirPlace logs an error about all places, and one with the place that it is of.
func TestErrorsNameTheirPlace(t *testing.T) {
	var text bytes.Buffer
	s := New(Options{Log: textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&text))), Condition: func(string) {}})
	s.targets = []Target{{Leftovers: &fakeLeftovers{}, err: errSystemTest}, {Leftovers: &unreadableLeftovers{}, err: unreadError{errUnreadableTest}}}
	s.report("", errors.New("nothing can be planned"))
	for _, want := range []string{
		stillText + `" err="nothing can be planned"` + "\n",
		stillText + `" err="the kernel is out of order" place="a place"` + "\n", UnreadText + `" err="it is dark" place="another place"` + "\n",
	} {
		if strings.Count(text.String(), want) != 1 {
			t.Errorf("want %q once in\n%s", want, text.String())
		}
	}
}
