// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package health determines whether the proxy works, and serves that over HTTP. Results
// of rounds, the own Node and conditions go in, a Report comes out. It does not control
// rounds. Answers about single Services are CheckServers and package servicestate
// below it.
package health

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubeproxy/common/condition"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// Options of a Monitor.
type Options struct {
	// Families are those that are programmed.
	Families []service.Family
	// SyncPeriod is the longest pause between two rounds. A family is unhealthy if a change is not
	// in force, or no round was, for twice that time.
	SyncPeriod time.Duration
	// NodeRequired makes the node ineligible while the API has no Node object for it.
	// Otherwise a node is ineligible only if it was deleted or is about to be.
	NodeRequired bool
	// Sources, if set, is called for each answer.
	Sources func() []Source
	Now     func() time.Time // nil for time.Now
}

// Source is the state of one source of objects. It is reported but does not affect
// health: traffic still flows with the objects read last, and a restart would lose them.
type Source struct {
	Name   string
	Synced bool
	// LastContact is when it was last known to be up to date. Zero means never.
	LastContact time.Time
	Stale       bool   // LastContact is too long ago
	Err         string // its latest fault, or empty
	Faults      int    // things that cannot be read or used at present
}

// Monitor collects events of the proxy and answers from them. It is safe for concurrent use.
type Monitor struct {
	options Options

	mu         sync.Mutex
	families   map[service.Family]*familyState
	node       node
	conditions map[condition.Name]shown
	standby    string
}

// familyState is the state of one family.
type familyState struct {
	pending      pending
	rounds       int
	lastEnd      time.Time // of the latest round, or the start of the process
	lastProgress time.Time // when a round was last known to progress
	lastSuccess  time.Time // end of the latest round that succeeded
	synced       bool      // a round has succeeded
	standby      bool      // another process programs it
	holderFailed time.Time // since when its rules are not in force, zero if they are

	generation                uint64 // in force
	failed                    int    // ports, in the latest round
	err                       string // of the latest round
	failing                   bool   // the latest round failed, see FamilyReport
	waiting                   bool   // the latest round waits, see reconcile.ErrWaiting
	driftFound, driftRepaired int    // drift
}

// New returns a Monitor without any events.
func New(o Options) *Monitor {
	m := &Monitor{conditions: map[condition.Name]shown{}}
	m.Configure(o)
	return m
}

// Configure replaces the options of a Monitor that knows of no round yet. Conditions stay: a
// dataplane that is being opened reports some before its families are known.
func (m *Monitor) Configure(o Options) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if o.Now == nil {
		o.Now = time.Now
	}
	m.options, m.families = o, map[service.Family]*familyState{}
	for _, f := range o.Families {
		m.families[f] = &familyState{lastEnd: o.Now()}
	}
}

// Queued records that f has something to do from now on, if it had nothing before.
func (m *Monitor) Queued(f service.Family) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.families[f]; s != nil && !s.standby {
		s.pending.add(m.options.Now())
	}
}

// Progress records that the current rounds progress: a long one is no reason to restart.
func (m *Monitor) Progress() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.families {
		s.lastProgress = m.options.Now()
	}
}

// Result records a round for f. A success completes what was queued before the round began.
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
	s.failing = !reconcile.OnlyPortErrors(r.Err)
	if s.failing {
		// A failure means that something remains, even if nothing was queued: drift of a resync.
		s.pending.atLeast(r.Start)
		return
	}
	if r.Done() {
		s.driftRepaired += len(r.Drift)
	}
	s.pending.clearUntil(r.Start)
	s.lastSuccess, s.synced, s.generation = s.lastEnd, true, r.Generation
}

// SetSyncPeriod replaces Options.SyncPeriod. The time without rounds starts again,
// because it was permitted under the old period.
func (m *Monitor) SetSyncPeriod(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.options.SyncPeriod = d
	for _, s := range m.families {
		s.lastEnd = m.options.Now()
	}
}

// SetNode sets the own Node.
func (m *Monitor) SetNode(n *corev1.Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.node = readNode(n)
}

// DeleteNode records that the own Node was deleted.
func (m *Monitor) DeleteNode() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.node = node{state: nodeLeaving, reason: "the Node object was deleted"}
}

// SetStandby records that holder programs the node instead of this process. With "", this
// process does. A standby that programs nothing is not a fault, unless the rules of holder
// have a fault, and are not in force for as long as its own may not be. A new process would take over then.
func (m *Monitor) SetStandby(holder, fault string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.standby = holder
	now := m.options.Now()
	for _, s := range m.families {
		s.standby, s.lastEnd = holder != "", now
		s.pending = pending{}
		switch {
		case fault == "":
			s.holderFailed = time.Time{}
		case s.holderFailed.IsZero():
			s.holderFailed = now
		}
	}
}

// SetCondition adds a message under a name to every answer, until it gets an empty one. It is for
// what needs an operator but does not stop traffic. Every client can read it, so it must not name
// Services, see SetDetailedCondition.
func (m *Monitor) SetCondition(name condition.Name, message string) {
	m.SetDetailedCondition(name, message, message)
}

// SetDetailedCondition is SetCondition with a second message, which may name Services and
// clients. The health server does not serve that one.
func (m *Monitor) SetDetailedCondition(name condition.Name, message, detail string) {
	m.setCondition(name, shown{message: message, detail: detail})
}

// SetBlockingCondition is SetDetailedCondition for what keeps traffic from flowing
// though all is programmed. Reports name it as blocked. families are those of which nothing
// flows, and which are not healthy then; a new process would not help, so they are alive.
func (m *Monitor) SetBlockingCondition(name condition.Name, message, detail string, families ...service.Family) {
	m.setCondition(name, shown{message, detail, true, families})
}

func (m *Monitor) setCondition(name condition.Name, c shown) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.message == "" {
		delete(m.conditions, name)
		return
	}
	m.conditions[name] = c
}

// shown is the text of a condition: a message without names, and one that may contain some.
type shown struct {
	message, detail string
	blocks          bool
	families        []service.Family // that it blocks as a whole
}

// addConditions adds copies of the conditions and the faults of sources to r.
func (m *Monitor) addConditions(r *Report) {
	all := maps.Clone(m.conditions)
	if text := sourceFaults(r.Sources); text != "" {
		all[condition.Sources] = shown{message: text, detail: text}
	}
	if len(all) == 0 {
		return
	}
	r.Conditions, r.publicConditions = make(map[string]string, len(all)), make(map[string]string, len(all))
	for name, c := range all {
		r.Conditions[string(name)], r.publicConditions[string(name)] = c.detail, c.message
		if c.blocks {
			r.Blocked = append(r.Blocked, string(name))
			for _, f := range c.families {
				r.BlockedFamilies = append(r.BlockedFamilies, f.String())
			}
		}
	}
	slices.Sort(r.Blocked)
	slices.Sort(r.BlockedFamilies)
	r.BlockedFamilies = slices.Compact(r.BlockedFamilies)
}

// Blocking returns the texts of the conditions that keep traffic of a family from flowing: of
// those that stop all of it, and of those that stop some.
func (m *Monitor) Blocking(f service.Family) (all, some map[condition.Name]string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all, some = map[condition.Name]string{}, map[condition.Name]string{}
	for name, c := range m.conditions {
		switch {
		case c.blocks && len(c.families) == 0:
			some[name] = c.detail
		case c.blocks && slices.Contains(c.families, f):
			all[name] = c.detail
		}
	}
	return all, some
}

// Serving reports whether at least one of families, or without them any, is healthy.
func (m *Monitor) Serving(families ...service.Family) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(families) == 0 {
		families = m.options.Families
	}
	now := m.options.Now()
	return slices.ContainsFunc(families, func(f service.Family) bool {
		s := m.families[f]
		return s != nil && s.unhealthyReason(now, 2*m.options.SyncPeriod) == "" && m.blockedBy(f) == ""
	})
}

// blockedBy names the conditions because of which no traffic of f flows, "" for none.
func (m *Monitor) blockedBy(f service.Family) string {
	var names []string
	for name, c := range m.conditions {
		if slices.Contains(c.families, f) {
			names = append(names, string(name))
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// Fault returns why a family is not in force, empty if all are or a round progresses. It
// names no Service.
func (m *Monitor) Fault() string {
	r := m.Report()
	var all []string
	for _, f := range m.options.Families {
		if s := r.Status[f.String()]; !s.Healthy && !s.Busy && !s.Blocked {
			all = append(all, f.String()+": "+s.Reason)
		}
	}
	return strings.Join(all, "; ")
}

// Report returns the present state.
func (m *Monitor) Report() Report {
	var sources []Source
	if m.options.Sources != nil {
		sources = m.options.Sources() // outside the lock, because it may take its own
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.options.Now()
	r := Report{CurrentTime: now, Healthy: true, Status: map[string]FamilyReport{}}
	first := true
	for _, f := range m.options.Families {
		s := m.families[f].report(now, 2*m.options.SyncPeriod)
		if by := m.blockedBy(f); by != "" && s.Healthy {
			s.Healthy, s.Blocked, s.Reason = false, true, "no traffic flows because of "+by
		}
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

// deletionTaint announces the deletion by the cluster autoscaler: kubernetes/enhancements#3836.
const deletionTaint = "ToBeDeletedByClusterAutoscaler"

// node determines whether load balancers should send new connections to this node.
type node struct {
	state  nodeState
	reason string // for nodeLeaving
}

type nodeState uint8

const (
	nodeUnknown nodeState = iota
	nodeActive
	nodeLeaving
)

func readNode(n *corev1.Node) node {
	if !n.DeletionTimestamp.IsZero() {
		return node{nodeLeaving, "the Node object is being deleted"}
	}
	for _, t := range n.Spec.Taints {
		if t.Key == deletionTaint {
			return node{nodeLeaving, "the Node has the taint " + deletionTaint}
		}
	}
	return node{state: nodeActive}
}

// eligible also returns why not.
func (n node) eligible(required bool) (bool, string) {
	if n.state == nodeUnknown && required {
		return false, "the Node object is not known"
	}
	return n.state != nodeLeaving, n.reason
}

// maxTimes bounds the memory of pending. It is even, see thinOut.
const maxTimes = 64

// pending records since when there is something to do. A round completes what came before
// it began. The times of what came during the round remain.
type pending struct {
	times []time.Time // the oldest first
}

func (p *pending) add(t time.Time) {
	if len(p.times) == maxTimes {
		p.thinOut()
	}
	p.times = append(p.times, t)
}

// thinOut removes every second time except the first and the last. The one after stands in for it:
// an age can come out too low, but no change counts as done too early.
func (p *pending) thinOut() {
	kept := p.times[:1]
	for i := 1; i < len(p.times); i += 2 {
		kept = append(kept, p.times[i])
	}
	p.times = kept
}

// clearUntil removes times up to start.
func (p *pending) clearUntil(start time.Time) {
	p.times = slices.DeleteFunc(p.times, func(t time.Time) bool { return !t.After(start) })
}

// atLeast ensures that there is an entry no later than t.
func (p *pending) atLeast(t time.Time) {
	if len(p.times) == 0 || t.Before(p.times[0]) {
		p.times = slices.Insert(p.times, 0, t)
	}
}

// oldest returns since when there is something to do, or the zero time.
func (p *pending) oldest() time.Time {
	if len(p.times) == 0 {
		return time.Time{}
	}
	return p.times[0]
}

// Report is the body of /healthz and /livez.
type Report struct {
	// LastUpdated is the earliest time, over all families, at which a family was last
	// fully programmed. It is zero if one never was.
	LastUpdated time.Time `json:"lastUpdated"`
	CurrentTime time.Time `json:"currentTime"`
	// NodeEligible is for /healthz only.
	NodeEligible *bool  `json:"nodeEligible,omitempty"`
	NodeReason   string `json:"nodeReason,omitempty"`
	// Healthy is true if every family is healthy.
	Healthy bool                    `json:"healthy"`
	Status  map[string]FamilyReport `json:"status"` // by "IPv4" and "IPv6"
	// Standby is the service proxy that programs the node in place of this one.
	Standby    string            `json:"standby,omitempty"`
	Sources    []SourceReport    `json:"sources,omitempty"`
	Conditions map[string]string `json:"conditions,omitempty"`
	// Blocked names the conditions that keep traffic from flowing. One that concerns single
	// Services, such as a health check that cannot be answered, does not change the status
	// of an answer: a load balancer would stop using the node for all of them.
	Blocked []string `json:"blocked,omitempty"`
	// BlockedFamilies names those of which no traffic flows because of them. They are not healthy.
	BlockedFamilies  []string          `json:"blockedFamilies,omitempty"`
	publicConditions map[string]string // Conditions without names
}

// detailsHint is where names can be found.
const detailsHint = "kube-proxy status, /services of the metrics server and the log say which"

// redact removes what names Services. Every client that reaches the node can query the
// health server, such as load balancers and other tenants.
func (r *Report) redact() {
	r.Conditions = r.publicConditions
	if r.Standby != "" {
		r.Standby = "another service proxy of this node"
	}
	for name, s := range r.Status {
		if s.LastError != "" {
			s.LastError = "the latest round failed: " + detailsHint
		}
		if s.FailedPorts > 0 {
			s.LastError = fmt.Sprintf("%d Service ports could not be programmed: %s", s.FailedPorts, detailsHint)
		}
		r.Status[name] = s
	}
	for i := range r.Sources {
		if s := &r.Sources[i]; s.Error != "" {
			s.Error = "not everything could be read: " + detailsHint
		}
	}
}

// FamilyReport is the state of one family.
type FamilyReport struct {
	LastUpdated time.Time `json:"lastUpdated"` // end of the last successful round
	Healthy     bool      `json:"healthy"`
	Reason      string    `json:"reason,omitempty"` // why it is unhealthy
	// Failing means that the latest round failed, and not for single ports only. The
	// state that an earlier round programmed may or may not be in force. The family
	// becomes unhealthy only if this persists, because a new process might fail too.
	Failing bool `json:"failing,omitempty"`
	// Waiting means unhealthy because other components have not created something yet. A
	// new process would wait too. Rounds continue.
	Waiting bool `json:"waiting,omitempty"`
	// Busy means unhealthy, but in a round that progresses. A new process would have as much to do.
	Busy bool `json:"busy,omitempty"`
	// Blocked means unhealthy only for a reason outside of the process, though all is programmed.
	Blocked    bool   `json:"blocked,omitempty"`
	Generation uint64 `json:"generation"` // in force
	// OldestPending is the time of the oldest change that is not in force, or nil.
	OldestPending *time.Time `json:"oldestPending,omitempty"`
	Rounds        int        `json:"rounds"`
	// FailedPorts counts the Service ports that the latest round could not program. One bad Service
	// must not make every node unhealthy.
	FailedPorts   int    `json:"failedPorts"`
	DriftFound    int    `json:"driftFound"`
	DriftRepaired int    `json:"driftRepaired"`
	LastError     string `json:"lastError,omitempty"` // of the latest round
}

// SourceReport is the state of one source.
type SourceReport struct {
	Name        string     `json:"name"`
	Synced      bool       `json:"synced"`
	LastContact *time.Time `json:"lastContact,omitempty"`
	// StalenessSeconds is the time since LastContact.
	StalenessSeconds float64 `json:"stalenessSeconds,omitempty"`
	Stale            bool    `json:"stale"`
	// Error is the latest of its faults, Faults is their number.
	Error  string `json:"error,omitempty"`
	Faults int    `json:"faults,omitempty"`
}

// maxError bounds the reported part of an error, which may be about thousands of ports.
const maxError = 2000

// alive reports whether no family has a fault that a restart might fix.
func (r *Report) alive() bool {
	for _, s := range r.Status {
		if !s.alive() {
			return false
		}
	}
	return true
}

func (r *FamilyReport) alive() bool { return r.Healthy || r.Waiting || r.Busy || r.Blocked }

func (s *familyState) report(now time.Time, limit time.Duration) FamilyReport {
	reason := s.unhealthyReason(now, limit)
	r := FamilyReport{
		LastUpdated:   s.lastSuccess,
		Healthy:       reason == "",
		Reason:        reason,
		Generation:    s.generation,
		Rounds:        s.rounds,
		FailedPorts:   s.failed,
		DriftFound:    s.driftFound,
		DriftRepaired: s.driftRepaired,
		LastError:     s.err,
		Failing:       s.failing,
	}
	if reason != "" && s.waiting && now.Sub(s.lastEnd) <= limit {
		r.Waiting = true
	}
	// lastProgress before lastEnd belongs to a round that has failed.
	r.Busy = reason != "" && s.lastProgress.After(s.lastEnd) && now.Sub(s.lastProgress) <= limit
	r.LastError = shortened(s.err)
	if t := s.pending.oldest(); !t.IsZero() {
		r.OldestPending = &t
	}
	return r
}

// shortened truncates an error for a report.
func shortened(text string) string {
	if len(text) <= maxError {
		return text
	}
	return strings.ToValidUTF8(text[:maxError], "") + " ..."
}

// sourceFaults summarizes the faults of sources without naming objects: all can read conditions.
func sourceFaults(sources []SourceReport) string {
	type fault struct{ names, text string }
	var all []fault
	tail := "what was read before stays in force"
	for _, s := range sources {
		var what []string
		if s.Faults == 1 {
			what = append(what, "1 fault")
		} else if s.Faults > 1 {
			what = append(what, fmt.Sprintf("%d faults", s.Faults))
		}
		if s.Stale {
			what = append(what, "stale")
		}
		if !s.Synced && s.Faults > 0 {
			what, tail = append(what, "not yet read in full"), "what was never read is not served, or as an earlier process left it"
		}
		text := strings.Join(what, ", ")
		switch n := len(all); {
		case text == "":
		case n > 0 && all[n-1].text == text:
			all[n-1].names += ", " + s.Name
		default:
			all = append(all, fault{s.Name, text})
		}
	}
	if len(all) == 0 {
		return ""
	}
	text := ""
	for _, f := range all {
		text += f.names + ": " + f.text + "; "
	}
	return text + tail + ", and the log says more"
}

// unhealthyReason returns why s is unhealthy, or "".
func (s *familyState) unhealthyReason(now time.Time, limit time.Duration) string {
	oldest := s.pending.oldest()
	switch {
	case s.standby && !s.holderFailed.IsZero() && now.Sub(s.holderFailed) > limit:
		return fmt.Sprintf("the rules of the service proxy that programs this node are not in force for %s, more than %s",
			seconds(now.Sub(s.holderFailed)), limit)
	case s.standby:
		return ""
	case !s.synced:
		return "nothing was ever programmed" // by this process
	case !oldest.IsZero() && now.Sub(oldest) > limit:
		return fmt.Sprintf("a change waits to be programmed for %s, more than %s", seconds(now.Sub(oldest)), limit)
	case now.Sub(s.lastEnd) > limit:
		return fmt.Sprintf("the last round ended %s ago, more than %s", seconds(now.Sub(s.lastEnd)), limit)
	}
	return ""
}

func seconds(d time.Duration) time.Duration { return d.Round(time.Second) }

func reportSources(sources []Source, now time.Time) []SourceReport {
	var all []SourceReport
	for _, s := range sources {
		r := SourceReport{Name: s.Name, Synced: s.Synced, Stale: s.Stale, Error: shortened(s.Err), Faults: s.Faults}
		if t := s.LastContact; !t.IsZero() {
			r.LastContact, r.StalenessSeconds = &t, now.Sub(t).Seconds()
		}
		all = append(all, r)
	}
	return all
}
