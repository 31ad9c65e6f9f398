// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

// Load opens connections continuously. It sends one request on each, closes it and counts
// the result.
type Load struct {
	host      *Host
	query     Query
	pause     time.Duration
	ctx       context.Context
	cancel    context.CancelFunc
	remaining chan struct{} // a token for each connection left to open; nil for no limit
	done      sync.WaitGroup

	mu     sync.Mutex
	report Report
}

// LoadConfig configures a Load.
type LoadConfig struct {
	Query   Query
	Workers int // how many connect in parallel
	Total   int // how many connections in all; 0 means until Stop
	// Pause is the pause of each worker between two connections. It leaves computing time
	// of a small machine to others.
	Pause time.Duration
}

// Report counts the results of a Load.
type Report struct {
	Connections int
	Outcomes    map[Outcome]int
	Backends    map[string]*Seen // by name
	Errors      []error          // at most ten, of failures that are no outcome
	Losses      []Loss           // at most ten, of connections that were not answered
}

// Loss is a connection without an answer.
type Loss struct {
	Asked time.Time
	From  netip.AddrPort // invalid if there was none yet
	Outcome
}

// Seen holds when a backend answered.
type Seen struct {
	Count       int
	First, Last time.Time
	LastAt      int // number of the last connection that it answered, from 1
}

// Lost returns the number of connections without an answer.
func (r Report) Lost() int { return r.Connections - r.Outcomes[Answered] }

// String returns the counts in one line.
func (r Report) String() string {
	parts := []string{fmt.Sprintf("%d connections", r.Connections)}
	for _, o := range slices.Sorted(maps.Keys(r.Outcomes)) {
		parts = append(parts, fmt.Sprintf("%d %s", r.Outcomes[o], o))
	}
	for _, name := range slices.Sorted(maps.Keys(r.Backends)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, r.Backends[name].Count))
	}
	for _, x := range r.Losses {
		parts = append(parts, fmt.Sprintf("%s at %s from %s", x.Outcome, x.Asked.Format("15:04:05.000"), x.From))
	}
	for _, err := range r.Errors {
		parts = append(parts, err.Error())
	}
	return strings.Join(parts, ", ")
}

// Load starts a load from h. It runs until it is stopped, has opened the configured
// number of connections, or ctx ends.
func (h *Host) Load(ctx context.Context, cfg LoadConfig) *Load {
	l := &Load{host: h, query: cfg.Query, pause: cfg.Pause}
	l.report = Report{Outcomes: map[Outcome]int{}, Backends: map[string]*Seen{}}
	l.ctx, l.cancel = context.WithCancel(ctx)
	if cfg.Total > 0 {
		l.remaining = make(chan struct{}, cfg.Total)
		for range cfg.Total {
			l.remaining <- struct{}{}
		}
		close(l.remaining)
	}
	for range max(cfg.Workers, 1) {
		l.done.Go(l.work)
	}
	h.atClose(func() error {
		l.Stop()
		return nil
	})
	return l
}

func (l *Load) work() {
	for l.ctx.Err() == nil {
		if l.remaining != nil {
			if _, more := <-l.remaining; !more {
				return
			}
		}
		// The end of the load does not cut off the last request, so that it is not
		// counted as lost.
		asked := time.Now()
		a, err := l.host.Ask(context.WithoutCancel(l.ctx), l.query)
		l.count(asked, a, err)
		l.sleep()
	}
}

func (l *Load) sleep() {
	if l.pause == 0 {
		return
	}
	select {
	case <-l.ctx.Done():
	case <-time.After(l.pause):
	}
}

func (l *Load) count(asked time.Time, a Answer, err error) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	r := &l.report
	r.Connections++
	if err != nil {
		if len(r.Errors) < 10 {
			r.Errors = append(r.Errors, err)
		}
		return
	}
	r.Outcomes[a.Outcome]++
	if a.Outcome != Answered {
		if len(r.Losses) < 10 {
			r.Losses = append(r.Losses, Loss{asked, a.From, a.Outcome})
		}
		return
	}
	s := r.Backends[a.Backend]
	if s == nil {
		s = &Seen{First: now}
		r.Backends[a.Backend] = s
	}
	s.Count++
	s.Last, s.LastAt = now, r.Connections
}

// Report returns the counts so far.
func (l *Load) Report() Report {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.report
	r.Outcomes = maps.Clone(r.Outcomes)
	r.Errors, r.Losses = slices.Clone(r.Errors), slices.Clone(r.Losses)
	r.Backends = make(map[string]*Seen, len(l.report.Backends))
	for name, s := range l.report.Backends {
		seen := *s
		r.Backends[name] = &seen
	}
	return r
}

// Wait waits until every connection has been opened and returns the counts. A load
// without a Total ends only with Stop.
func (l *Load) Wait() Report {
	l.done.Wait()
	l.cancel()
	return l.Report()
}

// Stop ends the load and returns the counts.
func (l *Load) Stop() Report {
	l.cancel()
	return l.Wait()
}
