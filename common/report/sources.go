// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"kubeproxy/common/health"
	"kubeproxy/common/source"
)

// Sources records, for each source, the time of the last contact and the present
// faults. A source is a kind of object, or the manifests.
type Sources struct {
	api bool // the sources are kinds at an API server

	mu          sync.Mutex
	synced      bool // all sources have been read once
	never       int  // manifests that were never readable
	lastContact map[string]time.Time
	maxSilence  time.Duration // the longest time without contact
	faults      map[string]sourceFaults
	timeouts    map[string]int // watches that were given up, by kind
	restores    map[string]int // how often the resource version of a kind went backwards
}

// sourceFaults are the faults of one source, by object. An API server has one fault for
// each kind, under the empty object.
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

// staleAfter is the longest time without contact for a kind. A silent watch is given up
// earlier, and its successor counts as contact.
const staleAfter = 5 * time.Minute

// NewSources returns the Sources of a proxy that reads an API server.
func NewSources() *Sources {
	return &Sources{
		api: true, lastContact: map[string]time.Time{}, maxSilence: staleAfter, faults: map[string]sourceFaults{},
		timeouts: map[string]int{}, restores: map[string]int{},
	}
}

// NewManifestSources returns the Sources of a proxy that reads manifests.
func NewManifestSources() *Sources {
	s := NewSources()
	s.api = false
	return s
}

// ManifestSource is the name of the source that reads manifests.
const ManifestSource = "manifests"

// ManifestsRead records that all manifests were read. The next reading follows after
// every; manifests are stale after two such periods. They are not synced while some of
// them were never readable.
func (c *Sources) ManifestsRead(every time.Duration, never int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.maxSilence, c.never = 2*every, never
	c.lastContact[ManifestSource] = time.Now()
}

// RecordFault records the state of an object, "" for the whole source. It returns since
// when the object has a fault, zero if it has none and had none.
func (c *Sources) RecordFault(of string, f source.Fault) (since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.setFault(of, f)
}

func (c *Sources) setFault(of string, f source.Fault) (since time.Time) {
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

// RecordContact records that a kind was up to date just now, and clears its fault.
func (c *Sources) RecordContact(kind string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastContact[kind] = time.Now()
	c.setFault(kind, source.Fault{})
}

// RecordError records a fault of the kind in err, or of the whole API server.
func (c *Sources) RecordError(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kind := ""
	if e, ok := errors.AsType[*source.ReadError](err); ok {
		if kind = e.Kind; e.Optional && c.lastContact[kind].IsZero() {
			c.setFault(kind, source.Fault{}) // any earlier fault is over
			return
		}
	}
	c.setFault(kind, source.Fault{Err: err})
}

// nodesRead returns whether the API server has delivered the list of Nodes with the own
// name.
func (c *Sources) nodesRead() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.lastContact["nodes"].IsZero()
}

// WatchTimedOut counts a watch of a kind that was given up.
func (c *Sources) WatchTimedOut(kind string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timeouts[kind]++
}

// Restored counts that the resource version of a kind went backwards.
func (c *Sources) Restored(kind string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.restores[kind]++
}

func (c *Sources) setSynced() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.synced = true
}

// requiredKinds exist in every API server, optionalKinds may be missing.
var requiredKinds, optionalKinds = []string{"services", "endpointslices", "nodes"}, []string{"servicecidrs"}

func (c *Sources) report() []health.Source {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.api {
		s := c.reportOf(ManifestSource)
		s.Synced = c.synced && c.never == 0
		return []health.Source{s}
	}
	var all []health.Source
	for _, kind := range requiredKinds {
		all = append(all, c.reportOf(kind))
	}
	for _, kind := range optionalKinds {
		if s := c.reportOf(kind); s.Synced || s.Err != "" {
			all = append(all, s)
		}
	}
	return all
}

// Unsynced returns the sources that have not been read yet.
func (c *Sources) Unsynced() []string {
	var all []string
	for _, s := range c.report() {
		if !s.Synced {
			all = append(all, s.Name)
		}
	}
	return all
}

func (c *Sources) reportOf(kind string) health.Source {
	at, ok := c.lastContact[kind]
	return health.Source{
		Name: kind, Synced: ok, LastContact: at, Stale: ok && time.Since(at) > c.maxSilence,
		Err: c.faults[kind].latest(), Faults: len(c.faults[kind]),
	}
}

// counts returns how many watches of a kind were given up, and how often its resource
// version went backwards.
func (c *Sources) counts(kind string) (timeouts, restores int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.timeouts[kind], c.restores[kind]
}
