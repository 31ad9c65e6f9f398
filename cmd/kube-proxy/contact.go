// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"sync"
	"time"

	"kubeproxy/common/health"
	"kubeproxy/common/source"
)

// contacts knows when each kind of object was last heard of. Manifests are
// heard of by looking, so nothing is said of them but that they were read.
type contacts struct {
	api bool // the source is an API server

	mu   sync.Mutex
	done bool // synced
	last map[string]time.Time
	errs map[string]string // by kind; manifests have none
	mute map[string]int    // watches that were given up, by kind
}

// staleAfter is how long nothing may be heard of a kind. A watch that is
// silent is given up before that, and the new one is a sign of life.
const staleAfter = 5 * time.Minute

func newContacts(api bool) *contacts {
	return &contacts{api: api, last: map[string]time.Time{}, errs: map[string]string{}, mute: map[string]int{}}
}

func (c *contacts) alive(kind string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last[kind] = time.Now()
	delete(c.errs, kind)
}

func (c *contacts) failed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kind := ""
	if e, ok := errors.AsType[*source.ReadError](err); ok {
		if kind = e.Kind; e.Optional && c.last[kind].IsZero() {
			delete(c.errs, kind) // whatever kept it from being read before
			return
		}
	}
	c.errs[kind] = err.Error()
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
		return []health.Source{{Name: "manifests", Synced: c.done, Err: c.errs[""]}}
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
		Name: kind, Synced: ok, LastContact: at, Stale: ok && time.Since(at) > staleAfter, Err: c.errs[kind],
	}
}

// given returns how many watches of a kind were given up.
func (c *contacts) given(kind string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mute[kind]
}
