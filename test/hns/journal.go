// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Actor is who makes a call.
type Actor string

// Who makes calls: the program under test, or anyone else on the host.
const (
	Caller   Actor = "caller"
	External Actor = "stranger"
)

// Entry is a call that changes something, or would have.
type Entry struct {
	By       Actor
	Function string
	Kind     Kind
	ID       string // of the object
	Code     Code
	// Document is the request, nil if there was none.
	Document Document `json:",omitempty"`
}

// String is one line, without the document.
func (e Entry) String() string {
	line := fmt.Sprintf("%s %s", e.Function, e.ID)
	if e.By == External {
		line += " by a stranger"
	}
	if e.Code != OK {
		line += ": " + e.Code.Error()
	}
	return line
}

// Calls counts calls of the program under test by function, failed ones too.
type Calls map[string]int

// Writes returns how many calls there were that change something, of one kind
// or, for "", of all.
func (c Calls) Writes(kind Kind) int { return c.count(kind, "Create", "Modify", "Delete") }

// Lists returns how many times a kind was listed, or any for "".
func (c Calls) Lists(kind Kind) int { return c.count(kind, "Enumerate") }

// Reads returns how many single objects were read.
func (c Calls) Reads(kind Kind) int { return c.count(kind, "Query") }

func (c Calls) count(kind Kind, verbs ...string) int {
	n := 0
	for function, times := range c {
		verb, of := split(function)
		if slices.Contains(verbs, verb) && (kind == "" || kind == of) {
			n += times
		}
	}
	return n
}

// Sub returns how many calls there were since an earlier count.
func (c Calls) Sub(earlier Calls) Calls {
	diff := Calls{}
	for function, times := range c {
		if n := times - earlier[function]; n != 0 {
			diff[function] = n
		}
	}
	return diff
}

// String is one line, in the order of the alphabet.
func (c Calls) String() string {
	var words []string
	for _, function := range slices.Sorted(maps.Keys(c)) {
		words = append(words, fmt.Sprintf("%s %d", strings.TrimPrefix(function, "Hcn"), c[function]))
	}
	return strings.Join(words, ", ")
}

// record writes a call that changes something into the journal.
func (c *call) record(code Code) {
	if !slices.Contains([]string{"Create", "Modify", "Delete"}, c.verb) {
		return
	}
	e := Entry{By: c.by, Function: c.request.Function, Kind: c.kind, ID: c.subject, Code: code}
	if c.verb != "Delete" {
		e.Document, _ = parse(c.request.Args[0])
	}
	c.journal = append(c.journal, e)
}

// Journal returns the calls that change something, oldest first.
func (s *Simulator) Journal() []Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.journal)
}

// Calls returns how often the program under test called what.
func (s *Simulator) Calls() Calls {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.calls)
}

// Warnings are what the program under test did that HNS lets pass and that
// breaks something all the same. A test that finds one fails.
func (s *Simulator) Warnings() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.warnings)
}

func (c *call) warn(format string, args ...any) {
	c.warnings = append(c.warnings, fmt.Sprintf(format, args...))
}

// Handles returns how many handles are open.
func (s *Simulator) Handles() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.handles)
}

// DanglingReferences lists what refers to objects that are gone, which no program under
// test may leave behind: endpoints in load balancers.
func (s *Simulator) DanglingReferences() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var loose []string
	for _, lb := range s.store[LoadBalancer].all() {
		for _, id := range lb.doc.Endpoints() {
			if s.store[Endpoint].objects[id] == nil {
				loose = append(loose, fmt.Sprintf("load balancer %s leads to endpoint %s, which is gone", lb.doc.ID(), id))
			}
		}
	}
	return loose
}

// Unused lists remote endpoints of the program under test that no load
// balancer leads to: leaks, unless it keeps them for another reason.
func (s *Simulator) Unused() []Document {
	s.mu.Lock()
	defer s.mu.Unlock()
	var unused []Document
	for _, e := range s.store[Endpoint].all() {
		if e.by == Caller && e.doc.Remote() && len(s.index.users[e.doc.ID()]) == 0 {
			unused = append(unused, e.doc.clone())
		}
	}
	return unused
}
