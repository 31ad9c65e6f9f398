// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// Check examines one thing. It changes nothing.
type Check struct {
	// Name is what it examines, in a few words.
	Name string
	// Look examines it. An error means that this was impossible. What keeps the proxy
	// from working is not an error but a Finding.
	Look func(ctx context.Context) (Seen, error)
}

// Seen is what a Check saw.
type Seen struct {
	Findings []Finding
	// Note says in a few words what was examined, or why there is nothing to examine.
	Note string
	// Absent means that there is nothing to examine.
	Absent bool
}

// NothingToSee returns what a Check saw that does not apply here.
func NothingToSee(format string, args ...any) Seen {
	return Seen{Note: fmt.Sprintf(format, args...), Absent: true}
}

// State is how a Check ended.
type State string

// The states of a Check.
const (
	OK      State = "ok"
	Found   State = "found"
	Skipped State = "skipped" // there is nothing to look at
	Failed  State = "failed"  // it could not look
)

// CheckResult is how one Check ended.
type CheckResult struct {
	Name  string `json:"name"`
	State State  `json:"state"`
	Note  string `json:"note,omitempty"`
}

// Runner runs checks.
type Runner struct {
	Checks []Check
	// Timeout bounds each Check, which then counts as failed.
	Timeout time.Duration
	// Progress receives which checks still run, after Patience and then again after each
	// further Patience.
	Progress func(text string)
	Patience time.Duration
}

// parallel is how many checks run at once. Some wait for the network.
const parallel = 4

// Run runs all checks, and returns their results in the order of the checks, and the
// findings sorted.
func (r *Runner) Run(ctx context.Context) ([]CheckResult, []Finding) {
	results, found := make([]CheckResult, len(r.Checks)), make([][]Finding, len(r.Checks))
	p := &progress{running: make([]bool, len(r.Checks))}
	defer p.report(r)()
	var group errgroup.Group
	group.SetLimit(parallel)
	for i, c := range r.Checks {
		group.Go(func() error {
			p.set(i, begun)
			defer p.set(i, ended)
			results[i], found[i] = c.run(ctx, r.Timeout)
			return nil
		})
	}
	_ = group.Wait() // no check returns an error
	var all []Finding
	for _, f := range found {
		all = append(all, f...)
	}
	return results, sorted(all)
}

// run runs c, but does not wait for longer than timeout, even if a call hangs.
func (c Check) run(ctx context.Context, timeout time.Duration) (CheckResult, []Finding) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	type outcome struct {
		seen Seen
		err  error
	}
	done := make(chan outcome, 1)
	go func() {
		seen, err := c.Look(ctx)
		done <- outcome{seen, err}
	}()
	var o outcome
	select {
	case o = <-done:
	case <-ctx.Done():
		o.err = fmt.Errorf("no answer within %s", timeout)
	}
	result := CheckResult{Name: c.Name, State: OK, Note: o.seen.Note}
	switch {
	case o.err != nil:
		result.State, result.Note = Failed, strings.Join(strings.Fields(o.err.Error()), " ")
	case len(o.seen.Findings) > 0:
		result.State = Found
	case o.seen.Absent:
		result.State = Skipped
	}
	return result, o.seen.Findings
}

// progress records which checks run.
type progress struct {
	mu       sync.Mutex
	running  []bool
	finished int
}

type step int

const (
	begun step = iota
	ended
)

func (p *progress) set(i int, s step) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running[i] = s == begun
	if s == ended {
		p.finished++
	}
}

// report calls Progress of r from time to time, until end is called.
func (p *progress) report(r *Runner) (end func()) {
	if r.Progress == nil {
		return func() {}
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(r.Patience)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				r.Progress(p.text(r.Checks))
			}
		}
	}()
	return func() {
		close(stop)
		<-stopped
	}
}

func (p *progress) text(checks []Check) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var names []string
	for i, running := range p.running {
		if running {
			names = append(names, checks[i].Name)
		}
	}
	return fmt.Sprintf("%d of %d checks done, still looking at: %s", p.finished, len(checks), strings.Join(names, ", "))
}
