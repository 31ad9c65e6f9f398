// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package servicestate describes for each Service which part of it is programmed, since
// when, and why not. Snapshots and the results of their rounds go in, the states of
// Services come out. It does not program anything. Whether the proxy is healthy is left
// to package health.
package servicestate

import (
	"cmp"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"kubeproxy/common/health"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
)

// Service is the state of one Service.
type Service struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// State is the worst of its ports, or "skipped" if nothing of it can be programmed.
	State    State        `json:"state"`
	Ports    []Port       `json:"ports"`
	Problems []FieldError `json:"problems,omitempty"`
	// Labels are those of the object.
	Labels map[string]string `json:"labels,omitempty"`
	// HealthCheck is nil for a Service without healthCheckNodePort.
	HealthCheck *HealthCheck `json:"healthCheck,omitempty"`
}

// HealthCheck is what load balancers can query about a Service on this node.
type HealthCheck struct {
	Port           uint16 `json:"port"`           // the healthCheckNodePort
	LocalEndpoints int    `json:"localEndpoints"` // those that are ready
	// Error is why it is not answered on every address. Traffic that arrives is forwarded anyway.
	Error string `json:"error,omitempty"`
}

// FieldError is a part of the Service that had to be left out or interpreted.
type FieldError struct {
	Field   string    `json:"field"`
	Message string    `json:"message"`
	Since   time.Time `json:"since"` // see Store.ProblemFound
	// Code names a common mistake; docs/troubleshooting.md lists the codes.
	Code track.Code `json:"code,omitempty"`
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
	// Generation and Since are when the present state came into force, if anything is.
	Generation uint64     `json:"generation,omitempty"`
	Since      *time.Time `json:"since,omitempty"`
	Frontends  []Frontend `json:"frontends"`
	// Unreached is set while connections through the process reach no endpoint.
	Unreached      *Unreached `json:"unreached,omitempty"`
	Endpoints      int        `json:"endpoints"` // of policy Cluster
	LocalEndpoints int        `json:"localEndpoints"`
	// Error is why the port is not, or not completely, programmed. FailingSince is when that began.
	Error        string     `json:"error,omitempty"`
	FailingSince *time.Time `json:"failingSince,omitempty"`
	// Notes are differences from what the Service specifies.
	Notes []string `json:"notes,omitempty"`
	// EndpointList has each listed endpoint and how it is used, in answers about one Service alone.
	EndpointList []track.Candidate `json:"endpointList,omitempty"`
	// Missed says, if the list is empty, which ready endpoints are for something else.
	Missed string `json:"missed,omitempty"`

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
	// Why is a clause for people, for reasons that need one.
	Why string `json:"why,omitempty"`
}

// Reason is why a frontend serves no client, or not all.
type Reason string

// The reasons.
const (
	NoAddress         Reason = "noAddress"   // no address of the node answers the NodePort; see Why
	NoEndpoints       Reason = "noEndpoints" // connections are refused
	PolicyLeftNone    Reason = "policyLeftNone"
	NoSources         Reason = "noSourceAllowed" // source ranges are set, but none of this family is usable
	NotReached        Reason = "unreached"       // connections through the process reach no endpoint; see Why
	LeftAlone         Reason = "leftAlone"       // the load balancer handles its address itself; in answers about one Service
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
	unanswered, local := st.unanswered(), st.addresses()
	st.mu.Lock()
	defer st.mu.Unlock()
	st.pruneProblems(problems)
	st.closeNodePorts(want, local)
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
			s.Problems = append(s.Problems, FieldError{p.Field, p.Message, st.problemsSince[p], p.Code})
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

// addresses returns the addresses of the node's interfaces, none if they are unknown.
func (st *Store) addresses() []netip.Addr {
	if st.Addresses == nil {
		return nil
	}
	return st.Addresses()
}

// closeNodePorts notes why no address answers the NodePorts of want, if so.
func (st *Store) closeNodePorts(want *service.Snapshot, local []netip.Addr) {
	for _, f := range service.Families {
		if want != nil {
			st.families[f].relayed, st.families[f].closed = st.Relayed, want.Node.WhyNodePortsClosed(f, local)
		}
	}
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

// setHealthCheck sets the health check, which all ports of a Service share, from one.
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

// worst returns the worst state of ports whose family is programmed, or if none is, of all.
func (s *Service) worst() State {
	var n serviceCounts
	n.addState(Skipped)
	for _, p := range s.Ports {
		n.addState(p.State)
	}
	return states[n.worst]
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
		Unreached:      fs.unreached(port),
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

// countLocal counts the endpoints on this node, of which Cluster may lack some.
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
	switch s.Reason = fs.reason(port, f); s.Reason {
	case NoAddress:
		s.Why = fs.closed
	case NotReached:
		if u := fs.unreached(port); u != nil { // else one has just been reached
			s.Why = u.Text()
		}
	}
	return s
}

func (fs *familyState) unreached(p *service.Port) *Unreached {
	u, _ := fs.relayed.Of(p.Family, p.Name)
	return u
}

// reason returns why clients of a frontend cannot connect, if so.
func (fs *familyState) reason(port *service.Port, f service.Frontend) Reason {
	switch {
	case reconcile.Affects(fs.failed[port.Name].cause, f):
		return UnsupportedByMode
	case f.Kind == service.NodePort && fs.closed != "":
		return NoAddress
	case !port.HasEndpoints():
		return NoEndpoints
	case len(port.Endpoints(f.Kind)) == 0:
		return PolicyLeftNone
	case f.Sources != nil && len(f.Sources) == 0:
		return NoSources
	}
	if fs.unreached(port) != nil {
		return NotReached
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
var reasons = []Reason{NoAddress, NoEndpoints, PolicyLeftNone, NoSources, NotReached, UnsupportedByMode}

// serviceCounts is what a Summary needs of one Service.
type serviceCounts struct {
	worst    int  // in states
	found    bool // there is a port that is not skipped
	problem  bool
	unserved [6]bool // by reasons
}

// Summary counts Services without describing them, so that frequent calls are cheap.
func (st *Store) Summary() Summary {
	want, problems := st.wanted(), []track.Problem(nil)
	if st.Problems != nil {
		problems = st.Problems()
	}
	found, local := map[key]serviceCounts{}, st.addresses()
	st.mu.Lock()
	st.closeNodePorts(want, local)
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

// addState adds the state of a port. Skipped is the worst state only if all are.
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

// Store holds the state. All methods may be called from any goroutine.
type Store struct {
	// Latest, if set, returns the desired snapshot or nil, to show changes before their round.
	Latest func() *service.Snapshot
	// Problems, if set, returns what could not be used of the Services.
	Problems func() []track.Problem
	// Unanswered, if set, returns health checks without answer. Each message names an address.
	Unanswered func() []track.Problem
	// Endpoints, if set, returns how a port's endpoints are used, for requests about one Service.
	Endpoints func(service.Family, service.PortName) track.Choice
	// Labels, if set, returns those of a Service, for requests.
	Labels func(types.NamespacedName) map[string]string
	// Unavailable is why a family is not programmed at all.
	Unavailable map[service.Family]string
	// Relayed, if set, knows how connections through the process fare.
	Relayed *Relayed
	// Addresses, if set, returns the addresses of the node's interfaces, none if they are unknown.
	Addresses func() []netip.Addr

	mu            sync.Mutex
	families      [2]familyState // by family
	problemsSince map[track.Problem]time.Time
}

// familyState is the state of one family.
type familyState struct {
	programmed *service.Snapshot // in force, except for failed
	// firstActivation is when the first snapshot came into force. activations are for
	// ports that came into force later, so that a quiet proxy stores almost none.
	firstActivation activation
	activations     map[*service.Port]activation
	failed          map[service.PortName]failure
	notes           reconcile.Notes
	// unavailable is why nothing of the family is programmed, or empty.
	unavailable string
	relayed     *Relayed
	closed      string  // why no address answers NodePorts, or empty
	err         failure // a round that failed as a whole, until a later one succeeds
}

// activation is when something came into force.
type activation struct {
	generation uint64
	at         int64 // Unix nanoseconds
}

type failure struct {
	message string
	since   time.Time
	cause   error
}

// inForce reports whether all of the port is in force that can be, for now or ever.
func (f failure) inForce() bool { return reconcile.InForce(f.cause) }

// ProblemFound records that a problem appeared at now. Others count from the first query.
func (st *Store) ProblemFound(p track.Problem, now time.Time) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.problemsSince == nil {
		st.problemsSince = map[track.Problem]time.Time{}
	}
	st.problemsSince[p] = now
}

// pruneProblems removes the times of problems that are over.
func (st *Store) pruneProblems(problems []track.Problem) {
	old := st.problemsSince
	st.problemsSince = make(map[track.Problem]time.Time, len(problems))
	for _, p := range problems {
		at, ok := old[p]
		if !ok {
			at = time.Now()
		}
		st.problemsSince[p] = at.UTC()
	}
}

// Result records a round of f.
func (st *Store) Result(f service.Family, r reconcile.Result) {
	st.mu.Lock()
	defer st.mu.Unlock()
	p := &st.families[f]
	if !reconcile.OnlyPortErrors(r.Err) {
		p.err = p.err.update(r.Err, r.Start)
		return
	}
	p.err = failure{}
	failed := map[service.PortName]failure{}
	for _, e := range reconcile.PortErrors(r.Err) {
		failed[e.Name] = p.failed[e.Name].update(e.Err, r.Start)
	}
	p.notes, p.unavailable = r.Notes, r.Unavailable
	st.Relayed.keep(f, r.Snapshot)
	p.setProgrammed(f, r.Snapshot, failed, activation{r.Snapshot.Generation, r.Start.Add(r.Took).UnixNano()})
}

// update returns f with the new error. It keeps the start of an earlier failure.
func (f failure) update(err error, at time.Time) failure {
	if f.since.IsZero() {
		f.since = at
	}
	f.message, f.cause = err.Error(), err
	return f
}

// setProgrammed records that s is in force, except for failed.
func (fs *familyState) setProgrammed(f service.Family, s *service.Snapshot, failed map[service.PortName]failure, m activation) {
	if fs.programmed == nil {
		fs.firstActivation, fs.activations = m, map[*service.Port]activation{}
	} else {
		for c := range service.Diff(fs.programmed, s, f) {
			delete(fs.activations, c.Old)
			if c.New != nil {
				fs.activations[c.New] = m
			}
		}
	}
	for name, was := range fs.failed {
		if port := s.Port(f, name); port != nil && !was.inForce() {
			fs.activations[port] = m // came into force now, or is not in force yet
		}
	}
	fs.programmed, fs.failed = s, failed
}

// since returns when a port of fs.programmed came into force.
func (fs *familyState) since(port *service.Port) activation {
	if m, ok := fs.activations[port]; ok {
		return m
	}
	return fs.firstActivation
}

// wanted returns the snapshot to describe.
func (st *Store) wanted() *service.Snapshot {
	if st.Latest != nil {
		if s := st.Latest(); s != nil {
			return s
		}
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	var newest *service.Snapshot
	for _, p := range st.families {
		if p.programmed != nil && (newest == nil || p.programmed.Generation > newest.Generation) {
			newest = p.programmed
		}
	}
	return newest
}

// Failing reports whether a port of the Service, or an address of its load balancer,
// could not be programmed in the latest round that did not fail as a whole.
func (st *Store) Failing(namespace, name string) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	for f, p := range st.families {
		for n, wrong := range p.failed {
			if n.Namespace == namespace && n.Name == name && (!wrong.inForce() || p.loadBalancerClosed(p.programmed.Port(service.Family(f), n), wrong)) {
				return true
			}
		}
	}
	return false
}

// loadBalancerClosed reports whether port does not serve a load balancer's address.
func (fs *familyState) loadBalancerClosed(port *service.Port, wrong failure) bool {
	return port != nil && slices.ContainsFunc(port.Frontends, func(f service.Frontend) bool {
		return f.Kind == service.LoadBalancerIP && reconcile.Affects(wrong.cause, f)
	})
}

// ProxyInfo is the part of an answer about the proxy itself.
type ProxyInfo struct {
	Mode    string    `json:"mode"`
	Node    string    `json:"node"`
	Version string    `json:"version"`
	Started time.Time `json:"started"` // of the process
	// Generation is that of the desired snapshot. Health has the one in force, by family.
	Generation uint64        `json:"generation"`
	Health     health.Report `json:"health"`
	// Endpoints is how many ready ones EndpointSlices list. All nodes that have read the same list the same.
	Endpoints int `json:"endpoints"`
	// Layers are what works beside the rules of the mode, such as "acceleration".
	Layers []string `json:"layers,omitempty"`
	// Accelerated is how many connections sockets made without translation, by family, if they do.
	Accelerated map[string]uint64 `json:"accelerated,omitempty"`
	// Silent are endpoints that do not answer while others do.
	Silent []SilentEndpoint `json:"silentEndpoints,omitempty"`
	// Ended are connections that the proxy ended within the last ten minutes, or is ending.
	Ended []EndedConnections `json:"endedConnections,omitempty"`
}

// PortEndpoint names an endpoint of a Service port.
type PortEndpoint struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Port      string `json:"port,omitempty"`
	Protocol  string `json:"protocol,omitempty"`
	Address   string `json:"address"` // with its port
}

// Compare orders by Service, port and address.
func (e PortEndpoint) Compare(o PortEndpoint) int {
	return cmp.Or(cmp.Compare(e.Namespace, o.Namespace), cmp.Compare(e.Name, o.Name), cmp.Compare(e.Port, o.Port), cmp.Compare(e.Address, o.Address))
}

// EndedConnections are connections to an endpoint, over TCP.
type EndedConnections struct {
	PortEndpoint
	// Connections are as many as there were. Since is when the first of them had to end, and
	// Last the last one. Why is about the endpoint.
	Connections int       `json:"connections"`
	Since       time.Time `json:"since"`
	Last        time.Time `json:"last"`
	Why         string    `json:"why"`
}

// SilentEndpoint is an endpoint that does not answer.
type SilentEndpoint struct {
	PortEndpoint
	// LeftOut means that it gets no new connections of this Service port. Since is when it was
	// first seen not to answer, and Why says what was seen.
	LeftOut bool      `json:"leftOut"`
	Since   time.Time `json:"since"`
	Why     string    `json:"why"`
}

// Response is the body of /services and the paths below it.
type Response struct {
	ProxyInfo
	Services []Service `json:"services"`
}

type problem struct {
	Error string `json:"error"`
}

// Handler serves /services, /services/NAMESPACE and /services/NAMESPACE/NAME. An unknown Service is
// answered with 404 and the likely reason. about returns all but the generation.
func (st *Store) Handler(about func() ProxyInfo) http.Handler {
	mux := http.NewServeMux()
	serve := func(w http.ResponseWriter, q *http.Request) {
		namespace, name := q.PathValue("namespace"), q.PathValue("name")
		found := st.find(func(ns, n string) bool {
			return (namespace == "" || ns == namespace) && (name == "" || n == name)
		})
		if name != "" && len(found) == 0 {
			text := unknownText(namespace, name)
			if st.wanted() == nil {
				text = "no Service is known yet: the existing objects have not all been read"
			}
			health.ReplyJSON(w, http.StatusNotFound, problem{text})
			return
		}
		if name != "" && st.Endpoints != nil {
			st.addEndpoints(found)
		}
		for i := range found {
			if st.Labels != nil {
				found[i].Labels = st.Labels(types.NamespacedName{Namespace: found[i].Namespace, Name: found[i].Name})
			}
		}
		health.ReplyJSON(w, http.StatusOK, st.response(about(), found))
	}
	mux.HandleFunc("GET /services", serve)
	mux.HandleFunc("GET /services/{$}", serve)
	mux.HandleFunc("GET /services/{namespace}", serve)
	mux.HandleFunc("GET /services/{namespace}/{name}", serve)
	return mux
}

// Response returns the state of all Services. about has all but the generation.
func (st *Store) Response(about ProxyInfo) *Response { return st.response(about, st.All()) }

func (st *Store) response(about ProxyInfo, found []Service) *Response {
	if s := st.wanted(); s != nil {
		about.Generation = s.Generation
	}
	return &Response{about, found}
}

// addEndpoints fills the lists of endpoints.
func (st *Store) addEndpoints(all []Service) {
	for i := range all {
		for j := range all[i].Ports {
			p := &all[i].Ports[j]
			name := service.PortName{Namespace: all[i].Namespace, Name: all[i].Name, Port: p.Port, Protocol: p.protocol}
			choice := st.Endpoints(p.family, name)
			p.EndpointList, p.Missed = choice.Candidates, choice.Missed
			for _, a := range choice.Left {
				p.Frontends = append(p.Frontends, Frontend{Kind: service.LoadBalancerIP.String(), Address: a.Addr().String(), Port: a.Port(), Reason: LeftAlone})
			}
			st.Relayed.mark(p.family, name, p.EndpointList)
		}
	}
}

func unknownText(namespace, name string) string {
	return fmt.Sprintf("service %s/%s is not known here: there is none, or it is headless, of type ExternalName, "+
		"without ports, or another proxy's by the label service.kubernetes.io/service-proxy-name", namespace, name)
}
