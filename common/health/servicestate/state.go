// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package servicestate

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
)

// Service is the state of one Service.
type Service struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// State is the worst state of its ports, or "skipped" if nothing of the Service can
	// be programmed.
	State    State        `json:"state"`
	Ports    []Port       `json:"ports"`
	Problems []FieldError `json:"problems,omitempty"`
	// HealthCheck is nil for a Service without healthCheckNodePort.
	HealthCheck *HealthCheck `json:"healthCheck,omitempty"`
}

// HealthCheck is what load balancers can query about a Service on this node.
type HealthCheck struct {
	Port           uint16 `json:"port"`           // the healthCheckNodePort
	LocalEndpoints int    `json:"localEndpoints"` // those that are ready
	// Error is why it is not answered on every address, or empty. Traffic that arrives is
	// forwarded anyway.
	Error string `json:"error,omitempty"`
}

// FieldError is a part of the Service that had to be left out or interpreted.
type FieldError struct {
	Field   string    `json:"field"`
	Message string    `json:"message"`
	Since   time.Time `json:"since"` // see Store.ProblemFound
}

// State is the progress of a Service or of one of its ports.
type State string

// The states, best first.
const (
	Programmed State = "programmed"
	Removing   State = "removing" // in force, but not desired any more
	Limited    State = "limited"  // in force, except for what the mode cannot do or waits for
	Pending    State = "pending"  // newer than the state in force
	Failed     State = "failed"   // the latest round could not program it
	Skipped    State = "skipped"
)

// states lists them in order.
var states = []State{Programmed, Removing, Limited, Pending, Failed, Skipped}

// Port is the state of one port in one family.
type Port struct {
	Port     string `json:"port,omitempty"` // the port's name
	Protocol string `json:"protocol"`
	Family   string `json:"family"`
	State    State  `json:"state"`
	// Generation and Since are when the present state came into force. Both are absent if
	// nothing is in force.
	Generation     uint64     `json:"generation,omitempty"`
	Since          *time.Time `json:"since,omitempty"`
	Frontends      []Frontend `json:"frontends"`
	Endpoints      int        `json:"endpoints"` // of policy Cluster
	LocalEndpoints int        `json:"localEndpoints"`
	// Error is why the port is not programmed, or not completely if it is limited.
	// FailingSince is when that began.
	Error        string     `json:"error,omitempty"`
	FailingSince *time.Time `json:"failingSince,omitempty"`
	// Notes are differences from what the Service specifies.
	Notes []string `json:"notes,omitempty"`
	// EndpointList has each endpoint that EndpointSlices list, and how it is used. It is
	// only in answers about one Service.
	EndpointList []track.Candidate `json:"endpointList,omitempty"`

	family   service.Family
	protocol service.Protocol
}

// Frontend is an address that clients connect to, and what it serves.
type Frontend struct {
	Kind    string `json:"kind"`
	Address string `json:"address,omitempty"` // absent for a NodePort
	Port    uint16 `json:"port"`
	// Endpoints counts those that the traffic policy permits.
	Endpoints int    `json:"endpoints"`
	Policy    string `json:"policy"`
	// Reason is why clients cannot connect, if so.
	Reason Reason `json:"reason,omitempty"`
}

// Reason is why a frontend serves no client, or not all.
type Reason string

// The reasons.
const (
	NoEndpoints       Reason = "noEndpoints" // connections are refused
	PolicyLeftNone    Reason = "policyLeftNone"
	NoSources         Reason = "noSourceAllowed" // source ranges are set, but none of this family is usable
	UnsupportedByMode Reason = "unsupported"     // the mode cannot do it; see the port's error
)

// All returns the state of every known Service, by name.
func (st *Store) All() []Service { return st.find(func(string, string) bool { return true }) }

// find returns the Services for which fits returns true, in order.
func (st *Store) find(fits func(namespace, name string) bool) []Service {
	want, problems := st.wanted(), []track.Problem(nil)
	if st.Problems != nil {
		problems = st.Problems()
	}
	found := map[key]*Service{}
	get := func(namespace, name string) *Service {
		k := key{namespace, name}
		if found[k] == nil {
			found[k] = &Service{Namespace: namespace, Name: name, Ports: []Port{}}
		}
		return found[k]
	}
	unanswered := st.unanswered()
	st.mu.Lock()
	defer st.mu.Unlock()
	st.pruneProblems(problems)
	for _, f := range service.Families {
		for _, port := range st.families[f].ports(want, f) {
			if n := port.Name; fits(n.Namespace, n.Name) {
				s := get(n.Namespace, n.Name)
				s.Ports = append(s.Ports, st.state(port, want))
				s.setHealthCheck(port, unanswered[key{n.Namespace, n.Name}])
			}
		}
	}
	for _, p := range problems {
		if n := p.Service; n.Name != "" && fits(n.Namespace, n.Name) {
			s := get(n.Namespace, n.Name)
			s.Problems = append(s.Problems, FieldError{p.Field, p.Message, st.problemsSince[p]})
		}
	}
	all := make([]Service, 0, len(found))
	for _, s := range found {
		s.State = s.worst()
		all = append(all, *s)
	}
	slices.SortFunc(all, func(a, b Service) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// key is the name of a Service.
type key struct{ namespace, name string }

// unanswered returns why health checks are not answered, by Service.
func (st *Store) unanswered() map[key]string {
	all := map[key]string{}
	if st.Unanswered == nil {
		return all
	}
	for _, p := range st.Unanswered() {
		k := key{p.Service.Namespace, p.Service.Name}
		all[k] = strings.TrimPrefix(all[k]+"; "+p.Message, "; ")
	}
	return all
}

// setHealthCheck sets the health check from a port. All ports of a Service have the same
// one.
func (s *Service) setHealthCheck(port *service.Port, err string) {
	if port.HealthCheck == 0 {
		return
	}
	if s.HealthCheck == nil {
		s.HealthCheck = &HealthCheck{Port: port.HealthCheck, Error: err}
	}
	s.HealthCheck.LocalEndpoints = max(s.HealthCheck.LocalEndpoints, port.LocalReady)
}

// state describes a port that is desired or in force.
func (st *Store) state(port *service.Port, want *service.Snapshot) Port {
	s := st.families[port.Family].state(port, want)
	if why := st.unavailable(port.Family); why != "" {
		s.State, s.Error, s.FailingSince = Skipped, why, nil
		s.Generation, s.Since = 0, nil
	}
	return s
}

// unavailable returns why no port of f is programmed, or "".
func (st *Store) unavailable(f service.Family) string {
	return cmp.Or(st.Unavailable[f], st.families[f].unavailable)
}

// ports returns the ports that are desired or in force.
func (fs *familyState) ports(want *service.Snapshot, f service.Family) []*service.Port {
	if want == nil {
		return nil
	}
	all := slices.Collect(want.Ports(f))
	if fs.programmed == nil {
		return all
	}
	for c := range service.Diff(fs.programmed, want, f) {
		if c.New == nil {
			all = append(all, c.Old)
		}
	}
	return all
}

// worst returns the worst state. It ignores ports of families that are not programmed,
// unless there are no others.
func (s *Service) worst() State {
	state, found := Skipped, false
	for _, p := range s.Ports {
		if p.State == Skipped {
			continue
		}
		if !found || slices.Index(states, p.State) > slices.Index(states, state) {
			state, found = p.State, true
		}
	}
	return state
}

func (fs *familyState) state(port *service.Port, want *service.Snapshot) Port {
	s := Port{
		Port:           port.Name.Port,
		Protocol:       port.Name.Protocol.String(),
		Family:         port.Family.String(),
		State:          Programmed,
		Frontends:      make([]Frontend, 0, len(port.Frontends)),
		Endpoints:      len(port.Cluster),
		LocalEndpoints: countLocal(port),
		family:         port.Family,
		protocol:       port.Name.Protocol,
	}
	for _, f := range port.Frontends {
		s.Frontends = append(s.Frontends, fs.frontend(port, f))
	}
	state, have, wrong := fs.evaluate(port, want)
	s.State = state
	for _, n := range fs.notes[port.Name] {
		s.Notes = append(s.Notes, n.Text)
	}
	if have != nil {
		s.inForce(fs.since(have))
	}
	if state == Failed || state == Limited {
		s.Error, s.FailingSince = wrong.message, &wrong.since
	}
	return s
}

// evaluate returns the state of a port that is desired or in force, the part of it that
// is in force and, for Failed, the failure.
func (fs *familyState) evaluate(port *service.Port, want *service.Snapshot) (s State, have *service.Port, wrong failure) {
	wrong, failing := fs.failed[port.Name]
	if failing && !wrong.inForce() {
		return Failed, nil, wrong
	}
	if fs.programmed != nil {
		have = fs.programmed.Port(port.Family, port.Name)
	}
	switch {
	case failing && have == port && want.Port(port.Family, port.Name) != nil:
		return Limited, have, wrong
	case have == port && want.Port(port.Family, port.Name) == nil:
		return Removing, have, wrong
	case have == port:
		return Programmed, have, wrong
	case fs.err.message != "":
		return Failed, have, fs.err
	}
	return Pending, have, wrong
}

func (p *Port) inForce(m activation) {
	at := time.Unix(0, m.at).UTC()
	p.Generation, p.Since = m.generation, &at
}

// countLocal counts the endpoints on this node. Local may contain some that Cluster
// lacks.
func countLocal(p *service.Port) int {
	n := 0
	for _, e := range p.Cluster {
		if e.Local {
			n++
		}
	}
	return max(n, len(p.Local))
}

func (fs *familyState) frontend(port *service.Port, f service.Frontend) Frontend {
	s := Frontend{Kind: f.Kind.String(), Port: f.Port, Endpoints: len(port.Endpoints(f.Kind)), Policy: port.Policy(f.Kind).String()}
	if f.Addr.IsValid() {
		s.Address = f.Addr.String()
	}
	s.Reason = fs.reason(port, f)
	return s
}

// reason returns why clients of a frontend cannot connect, if so.
func (fs *familyState) reason(port *service.Port, f service.Frontend) Reason {
	switch {
	case reconcile.Affects(fs.failed[port.Name].cause, f):
		return UnsupportedByMode
	case !port.HasEndpoints():
		return NoEndpoints
	case len(port.Endpoints(f.Kind)) == 0:
		return PolicyLeftNone
	case f.Sources != nil && len(f.Sources) == 0:
		return NoSources
	}
	return ""
}

// Summary counts Services.
type Summary struct {
	States map[State]int `json:"states"` // contains every state
	// Unserved counts the Services with at least one frontend that has the reason,
	// whatever their state. It contains every reason.
	Unserved map[Reason]int `json:"unserved"`
	Problems int            `json:"problems"` // number of Services with problems
}

// reasons lists all reasons.
var reasons = []Reason{NoEndpoints, PolicyLeftNone, NoSources, UnsupportedByMode}

// serviceCounts is what a Summary needs of one Service.
type serviceCounts struct {
	worst    int  // in states
	found    bool // there is a port that is not skipped
	problem  bool
	unserved [4]bool // by reasons
}

// Summary counts Services without describing them, so that frequent calls are cheap.
func (st *Store) Summary() Summary {
	want, problems := st.wanted(), []track.Problem(nil)
	if st.Problems != nil {
		problems = st.Problems()
	}
	found := map[key]serviceCounts{}
	st.mu.Lock()
	for _, f := range service.Families {
		for _, port := range st.families[f].ports(want, f) {
			k := key{port.Name.Namespace, port.Name.Name}
			t := found[k]
			t.add(st, port, want)
			found[k] = t
		}
	}
	st.mu.Unlock()
	for _, p := range problems {
		k := key{p.Service.Namespace, p.Service.Name}
		t, ok := found[k]
		if !ok {
			t.addState(Skipped)
		}
		t.problem = true
		if k.name != "" {
			found[k] = t
		}
	}
	s := Summary{States: map[State]int{}, Unserved: map[Reason]int{}}
	for _, state := range states {
		s.States[state] = 0
	}
	for _, r := range reasons {
		s.Unserved[r] = 0
	}
	for _, t := range found {
		s.add(t)
	}
	return s
}

func (s *serviceCounts) add(b *Store, port *service.Port, want *service.Snapshot) {
	p := &b.families[port.Family]
	if state, _, _ := p.evaluate(port, want); b.unavailable(port.Family) == "" {
		s.addState(state)
	} else {
		s.addState(Skipped)
	}
	for _, f := range port.Frontends {
		if i := slices.Index(reasons, p.reason(port, f)); i >= 0 {
			s.unserved[i] = true
		}
	}
}

// addState adds the state of a port, with the same rule as Service.worst.
func (s *serviceCounts) addState(state State) {
	i := slices.Index(states, state)
	if state == Skipped && s.found || state != Skipped && s.found && i < s.worst {
		return
	}
	s.worst, s.found = i, s.found || state != Skipped
}

func (s *Summary) add(t serviceCounts) {
	s.States[states[t.worst]]++
	if t.problem {
		s.Problems++
	}
	for i, r := range reasons {
		if t.unserved[i] {
			s.Unserved[r]++
		}
	}
}
