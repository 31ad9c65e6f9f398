// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hns simulates the Host Networking Service of Windows for tests: the objects,
// the versions, the error codes and the known quirks. A program that calls the real
// service's DLLs connects to a Simulator over loopback, through the DLLs that package
// wine installs in their place. A test simulates CNI, foreign programs, crashes and
// restarts with the Simulator's methods or over HTTP. It forwards no packets. README.md
// lists each behaviour, its source and how certain it is. The real interface is described
// at https://learn.microsoft.com/windows-server/networking/technologies/hcn/hcn-top
package hns

import (
	"cmp"
	crypto "crypto/rand"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
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

// Server is a Simulator that programs can call.
type Server struct {
	*Simulator
	Addr string // host and port, for the variable HNS_SIM_ADDR of the program

	listener net.Listener
	ended    chan error
}

// NewServer serves a Simulator at a listener, which it takes over.
func NewServer(s *Simulator, l net.Listener) *Server {
	server := &Server{Simulator: s, Addr: l.Addr().String(), listener: l, ended: make(chan error, 1)}
	go func() { server.ended <- s.Serve(l) }()
	return server
}

// Close ends all connections.
func (s *Server) Close() error {
	_ = s.listener.Close() // its only error is that it is closed
	return <-s.ended
}

// TB is the part of testing.TB that Start needs.
type TB interface {
	Helper()
	Cleanup(func())
	Errorf(format string, args ...any)
	Failed() bool
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
}

// Start serves a Simulator on a free port of the loopback address for one test. A warning
// fails the test, and a failed test logs its journal.
func Start(t TB, o Options) *Server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen for the simulated HNS: %v", err)
	}
	return StartAt(t, l, o)
}

// StartAt is Start at a listener of the caller, in a network namespace for instance.
func StartAt(t TB, l net.Listener, o Options) *Server {
	t.Helper()
	server := NewServer(New(o), l)
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Errorf("close the simulated HNS: %v", err)
		}
		server.report(t)
	})
	return server
}

// lastCalls is how much of the journal a failed test shows.
const lastCalls = 60

func (s *Server) report(t TB) {
	t.Helper()
	for _, w := range s.Warnings() {
		t.Errorf("simulated HNS: %s", w)
	}
	if !t.Failed() {
		return
	}
	var lines []string
	for _, e := range s.Journal() {
		lines = append(lines, e.String())
	}
	t.Logf("calls to the simulated HNS: %s\nthe last ones that change something:\n%s", s.Calls(), strings.Join(lines[max(0, len(lines)-lastCalls):], "\n"))
}

// call is one call in progress; the Simulator is locked.
type call struct {
	*Simulator
	request Request
	by      Actor
	verb    string
	kind    Kind
	subject string // the identity of the object concerned
}

func newCall(s *Simulator, r Request, by Actor) *call {
	c := &call{Simulator: s, request: r, by: by, subject: r.ID}
	c.verb, c.kind = split(r.Function)
	if h, ok := s.handles[r.Handle]; ok && h.kind == c.kind {
		c.subject = h.id
	}
	return c
}

// verbs begin the names of functions, after "Hcn".
var verbs = []string{"Enumerate", "Create", "Open", "Modify", "Query", "Delete", "Close"}

// split splits a function's name: "HcnQueryNetworkProperties" is Query of a Network.
func split(function string) (verb string, kind Kind) {
	for _, v := range verbs {
		if rest, ok := strings.CutPrefix(function, "Hcn"+v); ok {
			return v, Kind(strings.TrimSuffix(strings.TrimSuffix(rest, "Properties"), "s"))
		}
	}
	return "", ""
}

func (c *call) run() Reply {
	if c.request.Function == "HNSCall" {
		return c.version1()
	}
	if !slices.Contains(Kinds(), c.kind) {
		return Reply{Code: NotImplemented}
	}
	if c.failsInRow() {
		return Reply{Code: GeneralFailure}
	}
	switch c.verb {
	case "Enumerate":
		return c.enumerate()
	case "Create":
		return c.create()
	case "Open":
		return c.open()
	case "Delete":
		return Reply{Code: c.remove(c.kind, c.request.ID)}
	}
	h, ok := c.handles[c.request.Handle]
	if !ok || h.kind != c.kind {
		if c.verb == "Close" && (c.request.Handle > c.lastStaleHandle || c.request.Handle == 0) {
			c.warn("%s of a handle that is not open", c.request.Function)
		}
		return Reply{Code: InvalidHandle}
	}
	switch c.verb {
	case "Close":
		delete(c.handles, c.request.Handle)
		return Reply{}
	case "Modify":
		return Reply{Code: c.modify(h.id)}
	}
	return c.query(h)
}

// enumerate lists identities. A filter, if there is one, is JSON in the JSON of the
// query, and all its conditions must hold. See
// https://learn.microsoft.com/virtualization/api/hcn/Reference/HcnEnumerateNetworks
func (c *call) enumerate() Reply {
	filter := map[string]string{}
	if text := c.request.Args[0]; text != "" {
		query, ok := parse(text)
		if !ok {
			return Reply{Code: InvalidJSON}
		}
		if f := query.text("Filter"); f != "" && json.Unmarshal([]byte(f), &filter) != nil {
			return Reply{Code: InvalidJSON}
		}
	}
	ids := []string{}
	for _, o := range c.store[c.kind].all() {
		if matches(o.doc, filter) {
			ids = append(ids, strings.ToUpper(o.doc.ID()))
		}
	}
	if c.options.Personality.Respelt {
		slices.Reverse(ids)
	}
	return Reply{Output: text(ids)}
}

// matches applies a filter. Its keys are those of schema 1.
func matches(d Document, filter map[string]string) bool {
	for key, want := range filter {
		if key == "VirtualNetwork" {
			key = "HostComputeNetwork"
		}
		have := d.text(key)
		if key == "Name" && have != want || !strings.EqualFold(have, want) {
			return false
		}
	}
	return true
}

func (c *call) open() Reply {
	if c.store[c.kind].objects[c.request.ID] == nil {
		return Reply{Code: missing(c.kind)}
	}
	return Reply{Handle: c.handle(c.request.ID, false)}
}

func (c *call) handle(id string, made bool) uint64 {
	c.opened++
	c.handles[c.opened] = handle{c.kind, id, made}
	return c.opened
}

func (c *call) query(h handle) Reply {
	o := c.store[c.kind].objects[h.id]
	if o == nil {
		return Reply{Code: missing(c.kind)}
	}
	d := c.withCase(o.doc)
	if p := c.options.Personality; o.by == Caller && !(h.made && p.Later) {
		p.reform(c.kind, d)
	}
	return Reply{Output: text(d)}
}

// withCase returns d with the identities spelt as the options select.
func (c *call) withCase(d Document) Document {
	object, reference := strings.ToLower, strings.ToUpper
	switch c.options.Case {
	case LowerCase:
		reference = strings.ToLower
	case UpperCase:
		object = strings.ToUpper
	}
	d = d.clone()
	d["ID"] = object(d.ID())
	if network := d.NetworkID(); network != "" {
		d["HostComputeNetwork"] = reference(network)
	}
	if ids, ok := d["HostComputeEndpoints"].([]any); ok {
		for i, id := range d.Endpoints() {
			ids[i] = reference(id)
		}
	}
	return d
}

func (c *call) create() Reply {
	doc, ok := parse(c.request.Args[0])
	if !ok {
		return Reply{Code: InvalidJSON}
	}
	id := doc.ID()
	if id == "" && strings.Trim(c.request.ID, "0-") != "" {
		id = c.request.ID
	}
	if id == "" {
		id = guid()
	}
	doc["ID"] = id
	if c.store[c.kind].objects[id] != nil {
		return Reply{Code: AlreadyExists}
	}
	if code := c.check(doc); code != OK {
		return Reply{Code: code}
	}
	doc["Health"] = map[string]any{"Extra": map[string]any{}}
	o := &object{doc: doc, by: c.by}
	if c.kind == Endpoint && !doc.Remote() {
		o.plugged = c.total + c.options.Personality.PlugsAfter
	}
	c.put(c.kind, o)
	c.subject = id
	return Reply{Handle: c.handle(id, true)}
}

// check returns what is wrong with a new object, and completes it.
func (c *call) check(doc Document) Code {
	switch c.kind {
	case Network:
		return c.checkNetwork(doc)
	case Endpoint:
		h, ok := c.handles[c.request.Handle]
		if !ok || h.kind != Network {
			return InvalidHandle
		}
		network := c.store[Network].objects[h.id]
		if network == nil {
			return NetworkNotFound
		}
		return c.checkEndpoint(network.doc, doc)
	case LoadBalancer:
		return c.checkLoadBalancer(doc, nil)
	}
	return OK
}

func (s *Simulator) put(kind Kind, o *object) {
	s.store[kind].add(o)
	s.index.add(kind, o.doc)
}

// remove deletes an object even if others refer to it, as HNS does. A warning records
// what that breaks.
func (c *call) remove(kind Kind, id string) Code {
	o := c.store[kind].objects[id]
	if o == nil {
		return missing(kind)
	}
	if code := c.deleteFails(kind); code != OK {
		return code
	}
	if c.by == Caller && o.by == External {
		c.warn("%s %s deleted, which is foreign", kind, id)
	}
	if users := c.usersOf(id); c.by == Caller && kind == Endpoint && users != "" {
		c.warn("endpoint %s deleted while load balancer %s leads to it", id, users)
	}
	if p := c.options.Personality; p.GoesAfter > 0 && kind == LoadBalancer && c.by == Caller {
		o.gone = max(o.gone, c.total+p.GoesAfter)
		return OK
	}
	c.drop(kind, o)
	return OK
}

// drop removes an object; a network also removes its endpoints.
func (s *Simulator) drop(kind Kind, o *object) {
	s.store[kind].remove(o.doc.ID())
	s.index.remove(kind, o.doc)
	if kind == Endpoint {
		s.cascade(o.doc.ID())
	}
	if kind != Network {
		return
	}
	for _, e := range s.store[Endpoint].all() {
		if e.doc.NetworkID() == o.doc.ID() {
			s.drop(Endpoint, e)
		}
	}
}

// deleteFails simulates Windows Server 2019, where the deletion of a load balancer
// sometimes fails: here every eighth time, and never twice in a row.
func (c *call) deleteFails(kind Kind) Code {
	if kind != LoadBalancer || c.by != Caller || c.options.Steady || !c.options.Version.server2019() {
		return OK
	}
	c.deletes++
	if c.deletes%8 == 0 {
		return GeneralFailure
	}
	return OK
}

// version1 answers the older interface, from which hcsshim still reads the version.
func (c *call) version1() Reply {
	v := c.options.Version
	if c.request.Args[0] == "GET" && c.request.Args[1] == "/globals/version" {
		return Reply{Output: fmt.Sprintf(`{"Success":true,"Output":{"Major":%d,"Minor":%d}}`, v.Major, v.Minor)}
	}
	if c.request.Args[0] == "GET" && strings.HasPrefix(c.request.Args[1], "/policylists") {
		// kube-proxy lists load balancers over the older interface to find out whether
		// Windows is recent enough.
		return Reply{Output: `{"Success":true,"Output":[]}`}
	}
	return Reply{Output: `{"Success":false,"Error":"not simulated"}`}
}

func guid() string {
	var b [16]byte
	_, _ = crypto.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// text returns the JSON of values that always have a JSON form.
func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// errorDocument is the error text beside a code, for functions that return one.
func errorDocument(function string, c Code) string {
	if c == OK || function == "HNSCall" || strings.HasPrefix(function, "HcnClose") {
		return ""
	}
	return text(map[string]any{"Success": false, "Error": texts[c], "ErrorCode": uint32(c)})
}
