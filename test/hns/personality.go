// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Personality is how HNS might behave where no public source says how it does. In the zero
// Personality, every answer is as the object was asked for, and every call works at once. A
// program must work with all of them; README.md lists what they assume.
type Personality struct {
	Name    string
	Version Version
	Case    Case

	// The form in which objects are given back that the program under test made. Later is
	// whether it shows in listings alone, and not in the answer to the call that makes the object.
	Later     bool
	PortFlags int      // of load balancers that HNS knows, the others are dropped; 0 for all
	LeftOut   []string // fields
	SourceVIP string   // of all load balancers
	OwnMACs   bool     // of remote endpoints
	FilledIn  bool     // fields have their defaults, and there are more of them
	Respelt   bool     // another order, and other notations of addresses

	// Endpoints.
	LastAddress    bool // HNS chooses the last one that is free, not the first
	OneAddress     bool // for a local or a remote endpoint, not for both
	StrictPolicies bool // no provider address outside of overlays
	PlainNames     bool // names have no colons
	PlugsAfter     int  // calls after which a new local endpoint is on the switch

	// Load balancers.
	Cascade   Cascade
	RenewsIDs bool // when HNS starts again

	// Calls.
	FailEvery, FailInRow int           // of so many calls that write so many fail, one after the other
	GoesAfter            int           // calls during which a deleted load balancer is there still
	SlowDeletes          time.Duration // takes each
	MeddlesEvery         int           // so many calls, another program changes endpoints
}

// Cascade is what becomes of load balancers whose endpoint is deleted, alone or with its network.
type Cascade string

// What becomes of them.
const (
	Dangle Cascade = ""     // they keep the reference
	Lose   Cascade = "lose" // they lose it, and go without one
	Go     Cascade = "go"   // they are deleted
)

// Personalities returns all personalities. Versions are those of Windows Server, and the ones
// that hcsshim names for others: https://github.com/microsoft/hcsshim/blob/main/hcn/hcnglobals.go
func Personalities() []Personality {
	const before2022 = 1 | 2 | 4 | 8 // without VipExternalIP
	return []Personality{
		{Name: "as asked for"},
		{Name: "9.5", Version: Version{9, 5}},
		{Name: "10.5", Version: Version{10, 5}},
		{Name: "11.11", Version: Version{11, 11}},
		{Name: "14.0", Version: Version{14, 0}},
		{Name: "15.4", Version: Version{15, 4}},
		{Name: "15.5", Version: Version{15, 5}},
		{Name: "16.0", Version: Version{16, 0}},
		{Name: "drops flags", Version: Version{9, 5}, PortFlags: before2022},
		{Name: "drops flags later", Version: Version{15, 5}, PortFlags: before2022, Later: true},
		{Name: "leaves out source VIPs", LeftOut: []string{"SourceVIP"}},
		{Name: "leaves out source VIPs later", Version: Version{16, 0}, LeftOut: []string{"SourceVIP"}, Later: true},
		{Name: "leaves out names and policies", LeftOut: []string{"Name", "Policies"}},
		{Name: "fills in source VIPs", Version: Version{15, 5}, SourceVIP: "10.244.1.77"},
		{Name: "fills in source VIPs later", SourceVIP: "10.244.1.77", Later: true},
		{Name: "fills in defaults", FilledIn: true},
		{Name: "other order and notation", Version: Version{14, 0}, Case: UpperCase, Respelt: true},
		{Name: "MACs of its own", OwnMACs: true},
		{Name: "MACs of its own later", Version: Version{15, 5}, OwnMACs: true, Later: true},
		{Name: "plain names", PlainNames: true},
		{Name: "strict", Case: LowerCase, StrictPolicies: true, OneAddress: true, LastAddress: true},
		{Name: "starts pods slowly", PlugsAfter: 40},
		{Name: "load balancers lose endpoints", Version: Version{15, 5}, Cascade: Lose},
		{Name: "load balancers go with endpoints", Cascade: Go},
		{Name: "new identities", RenewsIDs: true},
		{Name: "fails twice in a row", Version: Version{9, 5}, FailEvery: 7, FailInRow: 2},
		{Name: "fails twice in a row, 15.5", Version: Version{15, 5}, FailEvery: 5, FailInRow: 2},
		{Name: "deletes late", GoesAfter: 6},
		{Name: "deletes slowly", Version: Version{10, 5}, SlowDeletes: 12 * time.Second},
		{Name: "concurrent changes", MeddlesEvery: 50, LastAddress: true},
	}
}

// FindPersonality returns the personality of a name.
func FindPersonality(name string) (Personality, error) {
	var names []string
	for _, p := range Personalities() {
		if p.Name == name {
			return p, nil
		}
		names = append(names, p.Name)
	}
	return Personality{}, fmt.Errorf("%q: want one of %q", name, names)
}

// reform gives the document of an answer the form of p.
func (p Personality) reform(kind Kind, d Document) {
	ports, _ := d["PortMappings"].([]any)
	for _, field := range p.LeftOut {
		if _, has := d[field]; has && kind != Network {
			delete(d, field)
		}
	}
	if kind == LoadBalancer {
		for _, x := range ports {
			if port, ok := x.(map[string]any); ok && p.PortFlags != 0 {
				port["Flags"] = float64(Document(port).number("Flags") & p.PortFlags)
			}
		}
		if p.SourceVIP != "" && !d.v6() {
			d["SourceVIP"] = p.SourceVIP
		}
	}
	if p.OwnMACs && kind == Endpoint && d.Remote() {
		d["MacAddress"] = "00-15-5D-99-00-01"
	}
	if p.FilledIn {
		fillIn(kind, d, ports)
	}
	if p.Respelt {
		respell(d)
	}
}

// fillIn adds fields with their defaults, and one of the future.
func fillIn(kind Kind, d Document, ports []any) {
	defaults := map[Kind]Document{
		Endpoint: {"Policies": []any{}, "Flags": 0, "Dns": map[string]any{}, "Routes": []any{}, "HostComputeNamespace": "00000000-0000-0000-0000-000000000000"},
		LoadBalancer: {
			"FrontendVIPs": []any{}, "SourceVIP": "", "Flags": 0, "Policies": nil, "HostComputeNetwork": "00000000-0000-0000-0000-000000000000",
		},
	}[kind]
	full := maps.Clone(defaults)
	maps.Copy(full, d)
	maps.Copy(d, full)
	d["Later"] = map[string]any{"State": 1}
	for _, x := range ports {
		port, _ := x.(map[string]any)
		full := map[string]any{"DistributionType": 0, "Flags": 0, "Local": false}
		maps.Copy(full, port)
		maps.Copy(port, full)
	}
}

// respell reverses lists, and writes addresses in other notations.
func respell(d Document) {
	if ids, ok := d["HostComputeEndpoints"].([]any); ok {
		slices.Reverse(ids)
	}
	if mac, ok := d["MacAddress"].(string); ok {
		d["MacAddress"] = strings.ToUpper(strings.ReplaceAll(mac, "-", ":"))
	}
	if vip, ok := d["SourceVIP"].(string); ok {
		d["SourceVIP"] = strings.ToUpper(vip)
	}
	if vips, ok := d["FrontendVIPs"].([]any); ok {
		for i, vip := range vips {
			vips[i] = strings.ToUpper(vip.(string))
		}
	}
}

// pass does what happens beside a call of the program under test. The Simulator is locked.
func (s *Simulator) pass() {
	s.total++
	for _, o := range s.store[LoadBalancer].all() {
		if o.gone > 0 && o.gone <= s.total {
			s.drop(LoadBalancer, o)
		}
	}
	if every := s.options.Personality.MeddlesEvery; every > 0 && s.total%every == 0 {
		s.meddle()
	}
}

// meddlerID is the endpoint that another program makes and deletes.
const meddlerID = "0dd00000-0000-4000-8000-000000000001"

func (s *Simulator) meddle() {
	if o := s.store[Endpoint].objects[meddlerID]; o != nil {
		s.drop(Endpoint, o)
		return
	}
	networks, c, doc := s.store[Network].all(), &call{Simulator: s}, Document{"ID": meddlerID, "Name": "meddler"}
	if len(networks) > 0 && c.checkEndpoint(networks[0].doc, doc) == OK {
		s.put(Endpoint, &object{doc: doc, by: External})
	}
}

// failsInRow returns whether the call is one of those that fail.
func (c *call) failsInRow() bool {
	p := c.options.Personality
	if p.FailEvery == 0 || c.by != Caller || !slices.Contains([]string{"Create", "Modify", "Delete"}, c.verb) {
		return false
	}
	c.writes++
	return c.writes%p.FailEvery < p.FailInRow && c.writes >= p.FailEvery
}

// cascade changes the load balancers of an endpoint that is gone.
func (s *Simulator) cascade(endpoint string) {
	how := s.options.Personality.Cascade
	if how == Dangle {
		return
	}
	for id := range maps.Clone(s.index.users[endpoint]) {
		o := s.store[LoadBalancer].objects[id]
		left := slices.DeleteFunc(o.doc.Endpoints(), func(e string) bool { return e == endpoint })
		s.drop(LoadBalancer, o)
		if how == Lose && len(left) > 0 {
			o.doc["HostComputeEndpoints"] = anyOf(left)
			s.put(LoadBalancer, o)
		}
	}
}

func anyOf(texts []string) []any {
	var all []any
	for _, t := range texts {
		all = append(all, t)
	}
	return all
}
