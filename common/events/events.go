// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package events writes Kubernetes Events about failures on a node and their recovery.
// Callers decide what is an Event. The package keeps Events few, never delays its
// callers, and spreads the load of many nodes on the API server.
package events

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// Object is the object of an Event. Only the UID may be empty.
type Object struct {
	Kind, Namespace, Name string // no namespace for a Node
	UID                   types.UID
}

// Topic is a condition of an object that either holds or has failed. An Event is written
// when that changes, not when only the message does.
type Topic struct {
	Reason          string // reason of the Event, in CamelCase
	RecoveredReason string // reason after recovery; empty if recovery needs no Event
	// Scope determines whether nodes write separate Events or share one.
	Scope Scope
	// Informational means that Failed is no failure, and is reported at once.
	Informational bool
}

// Scope is how many nodes see the same condition.
type Scope uint8

const (
	// Node is for conditions of one node. Each node writes its own Event.
	Node Scope = iota
	// Cluster is for conditions that every node sees alike, such as a mistake in a
	// Service. All nodes write the same Event, under a name derived from its content and
	// the hour, and the API server accepts the first one.
	Cluster
)

// Options of a Recorder. The functions may be nil and must return at once.
type Options struct {
	Config *rest.Config // of the API server; its rate limits are not used
	Node   string       // the name of the own Node
	// Report is called for a failure that is the first of its kind, and again after a
	// success.
	Report func(error)
	// Written is called for each Event that the API server accepted. Dropped is called
	// for each one that it did not accept, with one of the reasons below.
	Written func()
	Dropped func(why string)
	// Spread bounds the random delay of an Event that all nodes may write. 0 means 30 s.
	Spread time.Duration
}

// Why an Event is dropped.
const (
	Full        = "full"        // too many conditions are tracked
	Forbidden   = "forbidden"   // the account may not write Events
	Refused     = "refused"     // the API server rejected it
	Unreachable = "unreachable" // the API server was unreachable for too long
)

// The limits. In the worst case a node writes overallBurst Events at once, and then one
// per overallEvery.
const (
	overallBurst   = 10
	overallEvery   = 10 * time.Second
	conditionBurst = 3 // of one topic about one object
	conditionEvery = 5 * time.Minute
	maxConditions  = 500
	// stableTime is how long a condition must last before it is reported. A failure that
	// the next round fixes is no Event.
	stableTime = 3 * time.Second
	// retention is how long a condition without a failure is remembered, so that
	// recurring Events are counted in one. By default API servers delete an Event after
	// an hour (kube-apiserver --event-ttl).
	retention = 50 * time.Minute
	// forbiddenPause is how long nothing is written after the API server forbade it.
	forbiddenPause = 30 * time.Minute
	// retryTimeout is how long an Event is retried.
	retryTimeout  = 15 * time.Minute
	defaultSpread = 30 * time.Second
)

// Recorder collects conditions and writes Events about them. A nil Recorder does nothing.
// All methods may be called from any goroutine, and only Run blocks.
type Recorder struct {
	options Options
	overall *rate.Limiter
	wake    chan struct{}

	mu               sync.Mutex
	writer           writer
	conditions       map[name][]*condition
	count            int                  // number of conditions
	pausedNamespaces map[string]time.Time // namespaces that accept no Events, until when
	pausedUntil      time.Time            // no attempts before
	failures         int                  // consecutive
	reported         map[string]bool      // failures that were reported
}

type name struct{ kind, namespace, name string }

// condition is a topic about an object.
type condition struct {
	object         Object
	topic          Topic
	failed         bool      // at present
	message        string    // present one
	reportedFailed bool      // value last reported
	due            time.Time // when to report, zero if there is nothing to report
	since          time.Time // when it was first due
	changed        time.Time
	limit          *rate.Limiter
	series         [2]series // Events of recovery and failure
}

// New returns a Recorder for an API server. It writes nothing before Run.
func New(o Options) (*Recorder, error) {
	w, err := newClient(o.Config)
	if err != nil {
		return nil, fmt.Errorf("set up the client for Events: %w", err)
	}
	return newRecorder(o, w), nil
}

// Use writes to another API server from now on.
func (r *Recorder) Use(to *rest.Config) error {
	w, err := newClient(to)
	if err != nil {
		return fmt.Errorf("set up the client for Events: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writer, r.pausedUntil = w, time.Time{}
	clear(r.pausedNamespaces)
	return nil
}

// inUse returns the present writer.
func (r *Recorder) inUse() writer {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.writer
}

func newRecorder(o Options, w writer) *Recorder {
	if o.Spread == 0 {
		o.Spread = defaultSpread
	}
	return &Recorder{
		options: o, writer: w,
		overall:    rate.NewLimiter(rate.Every(overallEvery), overallBurst),
		wake:       make(chan struct{}, 1),
		conditions: map[name][]*condition{}, pausedNamespaces: map[string]time.Time{}, reported: map[string]bool{},
	}
}

// Failed records that t has failed for o, and why.
func (r *Recorder) Failed(o Object, t Topic, message string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.find(o, t)
	if m == nil {
		m = r.add(o, t)
	}
	if m != nil {
		m.object = o
		r.set(m, true, message)
	}
}

// Recovered records that t holds for o. It is reported only if the failure was.
func (r *Recorder) Recovered(o Object, t Topic, message string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.find(o, t); m != nil {
		r.set(m, false, message)
	}
}

// Forget removes the conditions of an object.
func (r *Recorder) Forget(o Object) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	n := name{o.Kind, o.Namespace, o.Name}
	r.count -= len(r.conditions[n])
	delete(r.conditions, n)
}

func (r *Recorder) find(o Object, t Topic) *condition {
	for _, m := range r.conditions[name{o.Kind, o.Namespace, o.Name}] {
		if m.topic.Reason == t.Reason {
			return m
		}
	}
	return nil
}

// add returns a new condition, or nil if there is no room.
func (r *Recorder) add(o Object, t Topic) *condition {
	if r.count >= maxConditions {
		r.evict(time.Now())
	}
	if r.count >= maxConditions {
		r.countDropped(Full)
		return nil
	}
	m := &condition{object: o, topic: t, limit: rate.NewLimiter(rate.Every(conditionEvery), conditionBurst)}
	n := name{o.Kind, o.Namespace, o.Name}
	r.conditions[n] = append(r.conditions[n], m)
	r.count++
	return m
}

// evict removes the conditions that have held for long or, if there is none, the one that
// has held for longest.
func (r *Recorder) evict(now time.Time) {
	var oldest *condition
	for n, list := range r.conditions {
		kept := list[:0]
		for _, m := range list {
			quiet := !m.failed && m.due.IsZero()
			if quiet && now.Sub(m.changed) > retention {
				r.count--
				continue
			}
			if quiet && (oldest == nil || m.changed.Before(oldest.changed)) {
				oldest = m
			}
			kept = append(kept, m)
		}
		r.setConditions(n, kept)
	}
	if r.count < maxConditions || oldest == nil {
		return
	}
	n := name{oldest.object.Kind, oldest.object.Namespace, oldest.object.Name}
	var kept []*condition
	for _, m := range r.conditions[n] {
		if m != oldest {
			kept = append(kept, m)
		}
	}
	r.count--
	r.setConditions(n, kept)
}

func (r *Recorder) setConditions(n name, list []*condition) {
	if len(list) == 0 {
		delete(r.conditions, n)
		return
	}
	r.conditions[n] = list
}

// set records the present state of a condition. A return to the state last reported needs
// no Event.
func (r *Recorder) set(m *condition, failed bool, message string) {
	m.message = message
	if m.failed == failed {
		return
	}
	now := time.Now()
	m.failed, m.changed, m.due = failed, now, time.Time{}
	if failed != m.reportedFailed {
		r.schedule(m, now)
	}
}

func (r *Recorder) schedule(m *condition, now time.Time) {
	wait := stableTime
	switch {
	case m.topic.Informational:
		wait = 0
	case m.topic.Scope == Cluster:
		wait += rand.N(r.options.Spread)
	}
	m.due, m.since = now.Add(wait), now
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *Recorder) countDropped(why string) {
	if r.options.Dropped != nil {
		r.options.Dropped(why)
	}
}

// report reports the first failure of each kind since the last success.
func (r *Recorder) report(kind string, err error) {
	if r.reported[kind] || r.options.Report == nil {
		return
	}
	r.reported[kind] = true
	r.options.Report(err)
}
