// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package events writes Kubernetes Events about what goes wrong on a node and
// right again. What is worth an Event, it is told; it sees to it that there
// are few of them, that writing them delays nobody, and that a cluster of
// many nodes does not drown its API server in them.
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

// Object is what an Event is about. Only the UID may be empty.
type Object struct {
	Kind, Namespace, Name string // no namespace for a Node
	UID                   types.UID
}

// Topic is something about an object that is either all right or not. It is
// told when it changes, once, and not when only its message does.
type Topic struct {
	Reason          string // reason of the Event, in CamelCase
	RecoveredReason string // the same when it is right again; empty if nobody need know
	// Scope tells the Events of nodes apart, or has them share one.
	Scope Scope
	// Informational means that Bad is nothing bad and is told at once.
	Informational bool
}

// Scope says on how many nodes the same is the case.
type Scope uint8

const (
	// Node is for what may be so on one node alone. Each node writes an Event
	// of its own.
	Node Scope = iota
	// Cluster is for what every node sees alike, such as a mistake in a
	// Service. All nodes write the same Event, under a name made of what it
	// says and of the hour, and the API server takes the first.
	Cluster
)

// Options of a Recorder. The functions may be nil and must return at once.
type Options struct {
	Config *rest.Config // of the API server; its rate limits are not used
	Node   string       // the name of the own Node
	// Report is told of a failure when it is the first of its kind, and again
	// after a success.
	Report func(error)
	// Written is told of each Event that the API server took, Dropped of each
	// that it did not take, with one of the reasons below.
	Written func()
	Dropped func(why string)
	// Spread is how long nodes wait at random before they write an Event that
	// all of them may write, 0 for the usual half a minute.
	Spread time.Duration
}

// Why an Event is dropped.
const (
	Full        = "full"        // too many matters are open
	Forbidden   = "forbidden"   // the account may not write Events
	Refused     = "refused"     // the API server does not want it
	Unreachable = "unreachable" // the API server could not be reached for long
)

// The limits. In the worst case a node writes overallBurst Events at once and
// then one every overallEvery.
const (
	overallBurst   = 10
	overallEvery   = 10 * time.Second
	conditionBurst = 3 // of one topic about one object
	conditionEvery = 5 * time.Minute
	maxConditions  = 500
	// stableTime is how long something must be so before it is told: a failure that
	// the next round puts right is not worth an Event.
	stableTime = 3 * time.Second
	// retention is how long a matter is remembered that is all right, so that
	// Events about the same add up to one. The API server keeps them for an
	// hour.
	retention = 50 * time.Minute
	// forbiddenPause is how long nothing is written after the API server said that
	// it is not allowed.
	forbiddenPause = 30 * time.Minute
	// retryTimeout is how long an Event is tried to be written.
	retryTimeout  = 15 * time.Minute
	defaultSpread = 30 * time.Second
)

// Recorder collects what is to be told and writes it. A nil one does nothing.
// All methods may be called from any goroutine, and only Run takes time.
type Recorder struct {
	options Options
	writer  writer
	overall *rate.Limiter
	wake    chan struct{}

	mu               sync.Mutex
	conditions       map[name][]*condition
	count            int                  // matters there are
	pausedNamespaces map[string]time.Time // namespaces where nothing may be written, until when
	pausedUntil      time.Time            // nothing is tried before
	failures         int                  // in a row
	reported         map[string]bool      // failures that were reported
}

type name struct{ kind, namespace, name string }

// condition is a topic about an object.
type condition struct {
	object         Object
	topic          Topic
	failed         bool      // now
	message        string    // of now
	reportedFailed bool      // what was last told: bad or not
	due            time.Time // when to tell, zero if there is nothing to tell
	since          time.Time // when it was first due
	changed        time.Time
	limit          *rate.Limiter
	series         [2]series // of good and bad Events
}

// New returns a Recorder for an API server. Nothing is written before Run.
func New(o Options) (*Recorder, error) {
	w, err := newClient(o.Config)
	if err != nil {
		return nil, fmt.Errorf("set up the client for Events: %w", err)
	}
	return newRecorder(o, w), nil
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

// Failed says that t is so of o, and why.
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

// Recovered says that t is all right with o. It is told only if the opposite was.
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

// Forget forgets an object.
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

// add makes room for a matter, nil if there is none.
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

// evict drops what has been all right for long or, if there is none, the
// matter that has been all right for longest.
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

// set notes how a matter is now. What went back to how it was told last
// needs no telling.
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

// report tells of a failure, by its kind, until something succeeds.
func (r *Recorder) report(kind string, err error) {
	if r.reported[kind] || r.options.Report == nil {
		return
	}
	r.reported[kind] = true
	r.options.Report(err)
}
