// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

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
	_, _ = rand.Read(b[:]) // never fails
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
