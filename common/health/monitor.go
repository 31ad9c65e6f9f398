// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package health tells whether the proxy does its work, from the results of
// its rounds alone, and serves that over HTTP. It decides nothing about
// rounds; per-Service answers are left to packages servicecheck and
// servicestate below it.
package health

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// Options of a Monitor.
type Options struct {
	// Families are those that are programmed.
	Families []service.Family
	// SyncPeriod is the longest pause between two rounds. A change that is
	// not in force after twice as long makes its family unhealthy, and so
	// does the absence of rounds.
	SyncPeriod time.Duration
	// NodeRequired makes the node ineligible while the API does not know it.
	// Without it, only a node that was deleted or is about to be is.
	NodeRequired bool
	// Sources, if set, is asked for each answer.
	Sources func() []Source
	Now     func() time.Time // nil for time.Now
}

// Source is what is known of one place that objects come from. It is shown
// and has no say in health: with what was read last, traffic still flows, and
// a restart would lose it.
type Source struct {
	Name   string
	Synced bool
	// LastContact is when it was last known to be up to date, zero for never.
	LastContact time.Time
	Stale       bool   // LastContact is too long ago
	Err         string // the latest of its faults, empty without any
	Faults      int    // things that cannot be read or used now
}

// Monitor collects what happens and answers from it. All methods may be
// called from any goroutine.
type Monitor struct {
	options Options

	mu         sync.Mutex
	families   map[service.Family]*familyState
	node       node
	conditions map[string]condition
	standby    string
}

// familyState is what is known of one family.
type familyState struct {
	pending      pending
	rounds       int
	lastEnd      time.Time // of the latest round, or the start of the process
	lastProgress time.Time // when a round was last seen to get on
	lastSuccess  time.Time // end of the latest round that succeeded
	synced       bool      // there was one
	standby      bool      // another process does it

	generation                uint64 // in force
	failed                    int    // ports, in the latest round
	err                       string // of the latest round
	failing                   bool   // as the latest round showed, see FamilyReport
	waiting                   bool   // likewise, see reconcile.ErrWaiting
	driftFound, driftRepaired int    // drift
}

// New returns a Monitor that has heard of nothing yet.
func New(o Options) *Monitor {
	if o.Now == nil {
		o.Now = time.Now
	}
	m := &Monitor{options: o, families: map[service.Family]*familyState{}, conditions: map[string]condition{}}
	for _, f := range o.Families {
		m.families[f] = &familyState{lastEnd: o.Now()}
	}
	return m
}

// Queued notes that something is to be done for f, from now on. What was
// queued before stays the oldest.
func (m *Monitor) Queued(f service.Family) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.families[f]; s != nil && !s.standby {
		s.pending.add(m.options.Now())
	}
}

// Progress notes that rounds that are under way get on. A long one is no reason
// to begin anew with another process.
func (m *Monitor) Progress() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.families {
		s.lastProgress = m.options.Now()
	}
}

// Result takes in how a round for f went. A success settles what was queued
// before the round began, and nothing later.
func (m *Monitor) Result(f service.Family, r reconcile.Result) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.families[f]
	if s == nil {
		return
	}
	s.rounds++
	s.lastEnd = r.Start.Add(r.Took)
	s.driftFound += len(r.Drift)
	s.failed, s.err = len(reconcile.RetryablePortErrors(r.Err)), ""
	if r.Err != nil {
		s.err = r.Err.Error()
	}
	s.waiting = errors.Is(r.Err, reconcile.ErrWaiting)
	s.failing = r.Err != nil && !OnlyPortErrors(r.Err)
	if s.failing {
		// A failure shows that something is to be done, even if nobody
		// queued it: a resync found drift.
		s.pending.atLeast(r.Start)
		return
	}
	if r.Done() {
		s.driftRepaired += len(r.Drift)
	}
	s.pending.clearUntil(r.Start)
	s.lastSuccess, s.synced, s.generation = s.lastEnd, true, r.Generation
}

// OnlyPortErrors reports that err is about single Service ports only, while
// everything else is in force. It is false for nil.
func OnlyPortErrors(err error) bool {
	switch e := err.(type) {
	case nil:
		return false
	case *reconcile.PortError:
		return true
	case interface{ Unwrap() []error }:
		list := e.Unwrap()
		return len(list) > 0 && !slices.ContainsFunc(list, func(err error) bool { return !OnlyPortErrors(err) })
	}
	return OnlyPortErrors(errors.Unwrap(err))
}

// SetSyncPeriod replaces Options.SyncPeriod. The silence so far does not count:
// it was not too long when it began.
func (m *Monitor) SetSyncPeriod(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.options.SyncPeriod = d
	for _, s := range m.families {
		s.lastEnd = m.options.Now()
	}
}

// SetNode takes in the own Node.
func (m *Monitor) SetNode(n *corev1.Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.node = readNode(n)
}

// DeleteNode notes that the own Node is gone.
func (m *Monitor) DeleteNode() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.node = node{state: nodeLeaving, reason: "the Node object was deleted"}
}

// SetStandby notes that the holder programs the node in place of this process, or
// with "" that it does not any more. What it does not do is no fault then, and another
// process in its place would stand by as well.
func (m *Monitor) SetStandby(holder string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.standby = holder
	for _, s := range m.families {
		s.standby, s.lastEnd = holder != "", m.options.Now()
		s.pending = pending{}
	}
}

// SetCondition shows a message under a name in every answer until the same
// name gets an empty one, for what needs somebody's attention but does not
// keep traffic from flowing, such as a setting that could not be made.
//
// The message is for everybody who reaches the health server, so it must not name
// Services. SetDetailedCondition is for one that has names.
func (m *Monitor) SetCondition(name, message string) {
	m.SetDetailedCondition(name, message, message)
}

// SetDetailedCondition is SetCondition with a second message, which may name
// Services and clients. The health server does not show it.
func (m *Monitor) SetDetailedCondition(name, message, detail string) {
	m.setCondition(name, condition{message: message, detail: detail})
}

// SetBlockingCondition is SetDetailedCondition for what keeps traffic from flowing
// though all is programmed. Reports name it as blocked; answers of the health server
// keep their status, see Report.Blocked. families are those of which nothing flows.
func (m *Monitor) SetBlockingCondition(name, message, detail string, families ...service.Family) {
	m.setCondition(name, condition{message, detail, true, families})
}

func (m *Monitor) setCondition(name string, c condition) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.message == "" {
		delete(m.conditions, name)
		return
	}
	m.conditions[name] = c
}

// condition is a message without names, and one that may have some.
type condition struct {
	message, detail string
	blocks          bool
	families        []service.Family // that it blocks as a whole
}

// sourcesCondition is the name of the condition that follows from the sources.
const sourcesCondition = "sources"

// addConditions adds copies of the conditions to r, and what is wrong with sources.
func (m *Monitor) addConditions(r *Report) {
	all := maps.Clone(m.conditions)
	if text := sourceFaults(r.Sources); text != "" {
		all[sourcesCondition] = condition{message: text, detail: text}
	}
	if len(all) == 0 {
		return
	}
	r.Conditions, r.publicConditions = make(map[string]string, len(all)), make(map[string]string, len(all))
	for name, c := range all {
		r.Conditions[name], r.publicConditions[name] = c.detail, c.message
		if c.blocks {
			r.Blocked = append(r.Blocked, name)
			for _, f := range c.families {
				r.BlockedFamilies = append(r.BlockedFamilies, f.String())
			}
		}
	}
	slices.Sort(r.Blocked)
	slices.Sort(r.BlockedFamilies)
	r.BlockedFamilies = slices.Compact(r.BlockedFamilies)
}

// Serving reports that at least one of families, or of all when none is
// given, does its work.
func (m *Monitor) Serving(families ...service.Family) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(families) == 0 {
		families = m.options.Families
	}
	now := m.options.Now()
	return slices.ContainsFunc(families, func(f service.Family) bool {
		s := m.families[f]
		return s != nil && s.unhealthyReason(now, 2*m.options.SyncPeriod) == ""
	})
}

// Report returns what is known now.
func (m *Monitor) Report() Report {
	var sources []Source
	if m.options.Sources != nil {
		sources = m.options.Sources() // which may take a lock of its own
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.options.Now()
	r := Report{CurrentTime: now, Healthy: true, Status: map[string]FamilyReport{}}
	first := true
	for _, f := range m.options.Families {
		s := m.families[f].report(now, 2*m.options.SyncPeriod)
		r.Status[f.String()] = s
		r.Healthy = r.Healthy && s.Healthy
		if first || s.LastUpdated.Before(r.LastUpdated) {
			r.LastUpdated, first = s.LastUpdated, false
		}
	}
	eligible, reason := m.node.eligible(m.options.NodeRequired)
	r.NodeEligible, r.NodeReason = &eligible, reason
	r.Standby = m.standby
	r.Sources = reportSources(sources, now)
	m.addConditions(&r)
	return r
}
