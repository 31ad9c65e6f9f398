// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"
)

// Options configure a Simulator.
type Options struct {
	Version Version // the zero Version means 13.3
	Case    Case
	Seed    uint64 // of random decisions
	// Steady disables the failing deletions of Windows Server 2019, for programs that do
	// not retry.
	Steady bool
	// Personality is what no public source tells. Its version and case apply if there is no other.
	Personality Personality
}

// Case is how HNS spells identities in its documents. Both cases have been observed, so
// programs must not depend on either.
type Case string

// The spellings.
const (
	MixedCase Case = "" // objects in lower, references in upper case
	LowerCase Case = "lower"
	UpperCase Case = "upper"
)

// Simulator is one host's HNS. Its methods may be called from several goroutines.
type Simulator struct {
	options Options

	mu              sync.Mutex
	store           map[Kind]*objectStore
	index           index
	handles         map[uint64]handle
	opened          uint64
	lastStaleHandle uint64 // handles up to this one ended with a restart
	macs            int
	deletes         int              // of load balancers, see deleteFails
	total, writes   int              // calls of the program under test, see Personality
	stopped         Code             // what all calls return; OK while HNS runs
	heldPorts       map[hostPort]int // ports of the host with a listener
	ports           int              // dynamic ports of the host for each protocol, 0 for no limit
	faults          []*Fault
	delays          []delay
	random          *rand.Rand
	calls           Calls
	journal         []Entry
	warnings        []string
	peers           peers
}

// handle is an open object. It stays when the object is deleted.
type handle struct {
	kind Kind
	id   string
	made bool // by the call that made the object
}

// New returns a Simulator without objects.
func New(o Options) *Simulator {
	o.Version, o.Case = cmp.Or(o.Version, o.Personality.Version, Version{13, 3}), cmp.Or(o.Case, o.Personality.Case)
	s := &Simulator{options: o, random: rand.New(rand.NewPCG(o.Seed, o.Seed))}
	s.peers.open = map[closer]bool{}
	s.Reset()
	return s
}

// Reset removes everything but the options and the connections.
func (s *Simulator) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store = map[Kind]*objectStore{}
	for _, k := range Kinds() {
		s.store[k] = &objectStore{objects: map[string]*object{}}
	}
	s.index = newIndex()
	s.handles = map[uint64]handle{}
	s.heldPorts = map[hostPort]int{}
	s.stopped, s.deletes, s.ports, s.total, s.writes = OK, 0, 0, 0, 0
	s.faults, s.delays = nil, nil
	s.calls, s.journal, s.warnings = Calls{}, nil, nil
}

// Version returns the version that HNS reports.
func (s *Simulator) Version() Version { return s.options.Version }

// Request is one call of a DLL's function.
type Request struct {
	Function string
	ID       string // a GUID, empty if the function has none
	Handle   uint64
	Args     [3]string
}

// Reply is what a call returns.
type Reply struct {
	Code   Code
	Handle uint64 // of what was created or opened
	Output string
	Error  string // a document with the same meaning as Code
}

// Call makes a call for a program on the host that is not under test: what it creates is
// foreign.
func (s *Simulator) Call(r Request) Reply { return s.CallAs(External, r) }

// CallAs makes a call for any program. Its delay comes before everything else, and other
// calls run meanwhile.
func (s *Simulator) CallAs(by Actor, r Request) Reply {
	r.ID = strings.ToLower(r.ID)
	if by == Caller {
		time.Sleep(s.delay(r.Function))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := newCall(s, r, by)
	before, after := OK, OK
	if by == Caller {
		s.calls[r.Function]++
		s.pass()
		before, after = s.fault(r.Function)
		before = cmp.Or(s.stopped, before)
	}
	reply := Reply{Code: before}
	if before == OK {
		reply = c.run()
	}
	if reply.Code == OK && after != OK {
		reply = Reply{Code: after}
	}
	reply.Error = errorDocument(r.Function, reply.Code)
	c.record(reply.Code)
	return reply
}

// objectStore holds the objects of one kind.
type objectStore struct {
	objects map[string]*object
	order   []string // identities, oldest first
}

// object is a document with the state that the document does not contain.
type object struct {
	doc      Document
	by       Actor
	restored bool // by a restart of HNS
	portless bool // an endpoint that is not on the switch yet
	// plugged is the number of the call from which on the endpoint is on the switch, gone that at which the deleted object
	// disappears, see Personality.
	plugged, gone int
}

func (s *objectStore) add(o *object) {
	s.objects[o.doc.ID()] = o
	s.order = append(s.order, o.doc.ID())
}

func (s *objectStore) remove(id string) {
	delete(s.objects, id)
	s.order = slices.DeleteFunc(s.order, func(x string) bool { return x == id })
}

// all returns the objects, oldest first.
func (s *objectStore) all() []*object {
	list := make([]*object, 0, len(s.order))
	for _, id := range s.order {
		list = append(list, s.objects[id])
	}
	return list
}

// Objects returns copies of all objects of a kind, oldest first.
func (s *Simulator) Objects(kind Kind) []Document {
	s.mu.Lock()
	defer s.mu.Unlock()
	var docs []Document
	for _, o := range s.store[kind].all() {
		docs = append(docs, o.doc.clone())
	}
	return docs
}

// Object returns a copy of one object.
func (s *Simulator) Object(kind Kind, id string) (Document, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.store[kind].objects[strings.ToLower(id)]
	if !ok {
		return nil, false
	}
	return o.doc.clone(), true
}

// CreatedCount returns how many objects of a kind the program under test has created.
func (s *Simulator) CreatedCount(kind Kind) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, o := range s.store[kind].objects {
		if o.by == Caller {
			n++
		}
	}
	return n
}
