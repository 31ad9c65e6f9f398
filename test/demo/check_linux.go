// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"kubeproxy/test/netlab"
)

const (
	fewest = 6   // questions to each address, so that a stray answer shows
	most   = 200 // questions until each of a handful of endpoints has answered

	// atOnce is how late a refusal may be: a client that heard of it only
	// when it tried again, after a second, was not refused at once.
	atOnce = 900 * time.Millisecond
)

// finding is what came of a row in one family.
type finding struct {
	outcome  netlab.Outcome
	backends []string     // those that answered, in order of name
	seen     []netip.Addr // clients as they saw them, sorted
	asked    int
}

// checkTable makes the table's connections, several at a time, and prints
// what came of them in the table's order.
func (d *demo) checkTable(ctx context.Context, table []group) error {
	for _, g := range table {
		found := make([][2]finding, len(g.rows))
		var asking errgroup.Group
		asking.SetLimit(8)
		for i, r := range g.rows {
			for f := range r.to {
				asking.Go(func() (err error) {
					found[i][f], err = d.ask(ctx, r, f)
					return err
				})
			}
		}
		if err := asking.Wait(); err != nil {
			return err
		}
		d.printGroup(g, found)
	}
	return nil
}

// ask asks row r's address of family f until everybody who should answer has.
func (d *demo) ask(ctx context.Context, r row, f int) (finding, error) {
	var found finding
	from := d.lab.Host(r.from)
	if from == nil {
		return found, fmt.Errorf("expectations name a client %q that is not in the demo's network", r.from)
	}
	q := netlab.Query{Proto: r.proto, To: r.to[f]}
	switch r.outcome {
	case netlab.TimedOut:
		q.Timeout = netlab.SilenceTimeout
	case netlab.Refused:
		q.Timeout = atOnce
	}
	for found.asked < most {
		a, err := from.Ask(ctx, q)
		if err != nil {
			return found, fmt.Errorf("%s connects to %s %s: %w", r.from, r.proto, q.To, err)
		}
		found.asked++
		found.outcome = a.Outcome
		if r.outcome == netlab.Refused && a.Outcome == netlab.TimedOut && found.asked < fewest {
			continue // on a busy machine any refusal may be late, but not all
		}
		if a.Outcome != netlab.Answered {
			break
		}
		found.backends = insert(found.backends, a.Backend, strings.Compare)
		found.seen = insert(found.seen, a.Client.Addr(), netip.Addr.Compare)
		if found.asked >= fewest && (r.sticky || covers(found.backends, r.backends)) {
			break
		}
	}
	return found, nil
}

// insert adds x to a sorted list that has no two alike.
func insert[T any](list []T, x T, compare func(T, T) int) []T {
	i, found := slices.BinarySearchFunc(list, x, compare)
	if found {
		return list
	}
	return slices.Insert(list, i, x)
}

func covers(have, want []string) bool {
	for _, w := range want {
		if !slices.Contains(have, w) {
			return false
		}
	}
	return true
}

// compare compares a finding with its row, nil if it is as expected.
func (d *demo) compare(r row, found finding) error {
	switch {
	case found.outcome != r.outcome:
		return fmt.Errorf("expected %s", r.expectation())
	case r.sticky && len(found.backends) != 1:
		return errors.New("expected always the same endpoint")
	case !covers(r.backends, found.backends), !r.sticky && !covers(found.backends, r.backends):
		return fmt.Errorf("expected %s", r.expectation())
	}
	for _, a := range found.seen {
		if whose := d.owner(r, a); whose != r.seen && !(whose == "itself" && r.seen == r.from) {
			return fmt.Errorf("expected the client to be seen as %s", r.seen)
		}
	}
	return nil
}

func (r row) expectation() string {
	if r.outcome != netlab.Answered {
		return outcomeText(r.outcome)
	}
	return strings.Join(r.backends, " ")
}

// outcomeText says an outcome in the table's words.
func outcomeText(o netlab.Outcome) string {
	if o == netlab.TimedOut {
		return "dropped"
	}
	return o.String()
}

// owner tells whose address an endpoint saw: the client's itself, a node's,
// or nobody's in particular.
func (d *demo) owner(r row, a netip.Addr) string {
	from := d.lab.Host(r.from)
	switch {
	case a == from.Addr(a):
		return "itself"
	case a == d.lab.Node.Addr(a), a == gateway(a):
		return netlab.NodeName
	}
	return "somebody else"
}

// gateway is node-a's address towards its own pods.
func gateway(like netip.Addr) netip.Addr {
	if like.Is4() {
		return netip.MustParseAddr("10.244.1.1")
	}
	return netip.MustParseAddr("fd00:10:244:1::1")
}

func (d *demo) printGroup(g group, found [][2]finding) {
	d.out.heading(g.title)
	rows := [][]string{{"FROM", "TO", "", "ADDRESS", "PROTO", "ANSWERED BY", "CLIENT SEEN AS", "VERDICT"}}
	for i, r := range g.rows {
		for f := range r.to {
			rows = append(rows, d.printRow(r, f, found[i][f]))
		}
	}
	d.out.table(rows)
}

func (d *demo) printRow(r row, f int, found finding) []string {
	answered, seen := outcomeText(found.outcome), ""
	if found.outcome == netlab.Answered {
		answered, seen = strings.Join(found.backends, " "), d.describe(r, found)
	}
	if r.sticky {
		answered += fmt.Sprintf(" (%d times)", found.asked)
	}
	verdict := d.out.good("ok")
	if err := d.compare(r, found); err != nil {
		verdict = d.out.bad("WRONG: " + err.Error())
		d.problems = append(d.problems, fmt.Sprintf("%s to %s %s %s (%s): %s %s: %v",
			r.from, r.kind, r.service, r.to[f], r.proto, answered, seen, err))
	}
	return []string{r.from, r.kind, r.service, r.to[f].String(), r.proto, answered, seen, verdict}
}

// describe names the addresses that the endpoints saw, and whose they are.
func (d *demo) describe(r row, found finding) string {
	var parts []string
	last := ""
	for _, a := range found.seen {
		whose := d.owner(r, a)
		if r.from == netlab.NodeName && whose == "itself" {
			whose = netlab.NodeName
		}
		if whose == last {
			parts = append(parts, a.String())
		} else {
			parts = append(parts, whose+" "+a.String())
		}
		last = whose
	}
	return strings.Join(parts, " ")
}
