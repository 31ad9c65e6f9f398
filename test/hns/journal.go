// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Actor is the origin of a call.
type Actor string

// The origins of calls: the program under test, or any other program on the host.
const (
	Caller   Actor = "caller"
	External Actor = "external"
)

// Entry is a call that changes something, or tried to.
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
		line += " by another program"
	}
	if e.Code != OK {
		line += ": " + e.Code.Error()
	}
	return line
}

// Calls counts calls of the program under test by function, failed ones too.
type Calls map[string]int

// Writes returns how many calls of one kind changed something; "" stands for all kinds.
func (c Calls) Writes(kind Kind) int { return c.count(kind, "Create", "Modify", "Delete") }

// Lists returns how many times a kind was listed; "" stands for all kinds.
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

// String is one line, in alphabetical order.
func (c Calls) String() string {
	var words []string
	for _, function := range slices.Sorted(maps.Keys(c)) {
		words = append(words, fmt.Sprintf("%s %d", strings.TrimPrefix(function, "Hcn"), c[function]))
	}
	return strings.Join(words, ", ")
}

// record adds a call that changes something to the journal.
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

// Calls returns the calls of the program under test, counted by function.
func (s *Simulator) Calls() Calls {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.calls)
}

// Warnings are actions of the program under test that HNS accepts although they break
// something. A test with a warning fails.
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

// DanglingReferences lists references of load balancers to endpoints that are gone. No
// program under test may leave them behind.
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

// Unused lists remote endpoints of the program under test that no load balancer uses:
// leaks, unless it keeps them for another reason.
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
