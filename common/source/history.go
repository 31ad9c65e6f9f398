// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"sync"

	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// history remembers the newest resource version of each kind, to notice that the API
// server went back in time: etcd was restored from a backup. What happened since the
// backup is void then, for all kinds, and a watch from a version that is not reached again
// yet is granted and says nothing: kubernetes/kubernetes#107457. So all kinds are listed
// again. Versions of different kinds are not compared, because each kind may have an etcd
// of its own.
type history struct {
	restored func(kind, before, now string) // may be nil

	mu     sync.Mutex
	newest map[string]string // by kind
	turns  map[string]turn   // the present ones, by kind
}

// turn is one turn of a watcher. A kind is listed without a version at the start of each.
type turn struct {
	ctx context.Context
	end context.CancelCauseFunc
}

// These end turns: the API server went back in time, or there is another one.
var (
	errRestored = errors.New("the resource version went backwards")
	errReplaced = errors.New("another connection is in use")
)

func newHistory(restored func(kind, before, now string)) *history {
	return &history{restored: restored, newest: map[string]string{}, turns: map[string]turn{}}
}

// begin returns a new turn of a kind.
func (h *history) begin(ctx context.Context, kind string) turn {
	ctx, end := context.WithCancelCause(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.turns[kind] = turn{ctx, end}
	return h.turns[kind]
}

// forget ends the turns of all kinds: versions of another connection have no order with these.
func (h *history) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.newest)
	for _, t := range h.turns {
		t.end(errReplaced)
	}
}

// sight is where a version was seen.
type sight uint8

const (
	inOrder sight = iota // an event, a bookmark, or an answer that may be no older than the version before
	anew                 // an answer to a list without a version
	probed               // an answer of which nothing is delivered
)

// see compares a version with the newest one. If it is older, see ends the turns of all
// kinds, except for one that was listed anew: that one is up to date.
func (h *history) see(kind, version string, how sight) {
	if before, is := h.backwards(kind, version, how); is && h.restored != nil {
		h.restored(kind, before, version)
	}
}

func (h *history) backwards(kind, version string, how sight) (before string, is bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.turns[kind].ctx.Err() != nil { // the rest of a turn that is over
		return "", false
	}
	before = h.newest[kind]
	order, err := resourceversion.CompareResourceVersion(version, before)
	if before != "" && err != nil { // they have no order
		return "", false
	}
	if is = before != "" && order < 0; is {
		clear(h.newest)
		for k, t := range h.turns {
			if k != kind || how != anew {
				t.end(errRestored)
			}
		}
	}
	if how == anew || how == inOrder && !is {
		h.newest[kind] = version
	}
	return before, is
}
