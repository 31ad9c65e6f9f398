// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"kubeproxy/common/health"
	"kubeproxy/common/source"
)

// contacts knows when each source, which is a kind of object or the manifests,
// was last heard of, and what of it cannot be read or used.
type contacts struct {
	api bool // the sources are kinds at an API server

	mu     sync.Mutex
	done   bool // synced
	last   map[string]time.Time
	limit  time.Duration // how long nothing may be heard of a source
	faults map[string]sourceFaults
	mute   map[string]int // watches that were given up, by kind
}

// sourceFaults are those of one source, by object. An API server has one for each
// kind, without an object.
type sourceFaults map[string]sourceFault

type sourceFault struct {
	text  string
	since time.Time
	last  time.Time // reported
}

// latest returns the fault that was reported last, "" without any.
func (all sourceFaults) latest() string {
	var found sourceFault
	for _, object := range slices.Sorted(maps.Keys(all)) {
		if f := all[object]; found.text == "" || f.last.After(found.last) {
			found = f
		}
	}
	return found.text
}

// staleAfter is how long nothing may be heard of a kind. A watch that is
// silent is given up before that, and the new one is a sign of life.
const staleAfter = 5 * time.Minute

func newContacts(api bool) *contacts {
	return &contacts{api: api, last: map[string]time.Time{}, limit: staleAfter, faults: map[string]sourceFaults{}, mute: map[string]int{}}
}

// manifestSource is the name of the source that reads manifests.
const manifestSource = "manifests"

// looked notes that all manifests were read, which happens again in that time.
// After two such periods of silence they are stale.
func (c *contacts) looked(every time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = 2 * every
	c.last[manifestSource] = time.Now()
}

// fault takes in what a source says of an object, "" for the whole source. It
// returns since when the object has a fault, zero if it has none and had none.
func (c *contacts) fault(of string, f source.Fault) (since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.note(of, f)
}

func (c *contacts) note(of string, f source.Fault) (since time.Time) {
	old := c.faults[of][f.Object]
	if f.Err == nil {
		delete(c.faults[of], f.Object)
		return old.since
	}
	if c.faults[of] == nil {
		c.faults[of] = sourceFaults{}
	}
	now := time.Now()
	if old.since.IsZero() {
		old.since = now
	}
	c.faults[of][f.Object] = sourceFault{text: f.Err.Error(), since: old.since, last: now}
	return old.since
}

func (c *contacts) alive(kind string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last[kind] = time.Now()
	c.note(kind, source.Fault{})
}

func (c *contacts) failed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kind := ""
	if e, ok := errors.AsType[*source.ReadError](err); ok {
		if kind = e.Kind; e.Optional && c.last[kind].IsZero() {
			c.note(kind, source.Fault{}) // whatever kept it from being read before
			return
		}
	}
	c.note(kind, source.Fault{Err: err})
}

// knowsNodes reports that the API server has said which Nodes of the own name
// there are.
func (c *contacts) knowsNodes() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.last["nodes"].IsZero()
}

func (c *contacts) silent(kind string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mute[kind]++
}

func (c *contacts) synced() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done = true
}

// required are the kinds that every API server has, others those it may lack.
var required, others = []string{"services", "endpointslices", "nodes"}, []string{"servicecidrs"}

func (c *contacts) sources() []health.Source {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.api {
		s := c.source(manifestSource)
		s.Synced = c.done
		return []health.Source{s}
	}
	var all []health.Source
	for _, kind := range required {
		all = append(all, c.source(kind))
	}
	for _, kind := range others {
		if s := c.source(kind); s.Synced || s.Err != "" {
			all = append(all, s)
		}
	}
	return all
}

// unread returns the sources of which nothing has been read yet.
func (c *contacts) unread() []string {
	var all []string
	for _, s := range c.sources() {
		if !s.Synced {
			all = append(all, s.Name)
		}
	}
	return all
}

func (c *contacts) source(kind string) health.Source {
	at, ok := c.last[kind]
	return health.Source{
		Name: kind, Synced: ok, LastContact: at, Stale: ok && time.Since(at) > c.limit,
		Err: c.faults[kind].latest(), Faults: len(c.faults[kind]),
	}
}

// given returns how many watches of a kind were given up.
func (c *contacts) given(kind string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mute[kind]
}
