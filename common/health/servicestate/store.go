// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package servicestate describes for each Service which part of it is programmed, since
// when, and why not. Snapshots and the results of their rounds go in, the states of
// Services come out. It does not program anything. Whether the proxy is healthy is left
// to package health.
package servicestate

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"kubeproxy/common/health"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
)

// Store holds the state. All methods may be called from any goroutine.
type Store struct {
	// Latest, if set, returns the desired snapshot, so that changes without a round yet
	// are visible. It may return nil.
	Latest func() *service.Snapshot
	// Problems, if set, returns what could not be used of the Services.
	Problems func() []track.Problem
	// Unanswered, if set, returns health checks that load balancers get no answer to.
	// Each message names an address.
	Unanswered func() []track.Problem
	// Endpoints, if set, returns how each endpoint of a port is used. It is called for
	// requests about one Service only.
	Endpoints func(service.Family, service.PortName) track.Choice
	// Unavailable is why a family is not programmed at all.
	Unavailable map[service.Family]string

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

// inForce reports whether the dataplane has programmed everything of the port that it
// can, for now or permanently.
func (f failure) inForce() bool { return reconcile.InForce(f.cause) }

// ProblemFound records that a problem appeared at now. A problem without such a record
// counts from the first query.
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
	// Accelerated is how many connections sockets made without translation, by family. It
	// is empty without socket acceleration.
	Accelerated map[string]uint64 `json:"accelerated,omitempty"`
}

// Response is the body of /services and the paths below it.
type Response struct {
	ProxyInfo
	Services []Service `json:"services"`
}

type problem struct {
	Error string `json:"error"`
}

// Handler serves /services, /services/NAMESPACE and /services/NAMESPACE/NAME. An unknown
// Service is answered with 404 and the likely reason. about returns everything except the
// generation.
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
		a := Response{about(), found}
		if s := st.wanted(); s != nil {
			a.Generation = s.Generation
		}
		health.ReplyJSON(w, http.StatusOK, a)
	}
	mux.HandleFunc("GET /services", serve)
	mux.HandleFunc("GET /services/{$}", serve)
	mux.HandleFunc("GET /services/{namespace}", serve)
	mux.HandleFunc("GET /services/{namespace}/{name}", serve)
	return mux
}

// addEndpoints fills the lists of endpoints.
func (st *Store) addEndpoints(all []Service) {
	for i := range all {
		for j := range all[i].Ports {
			p := &all[i].Ports[j]
			p.EndpointList = st.Endpoints(p.family, service.PortName{Namespace: all[i].Namespace, Name: all[i].Name, Port: p.Port, Protocol: p.protocol}).Candidates
		}
	}
}

func unknownText(namespace, name string) string {
	return fmt.Sprintf("service %s/%s is not known here: there is none, or it is headless, of type ExternalName, "+
		"without ports, or another proxy's by the label service.kubernetes.io/service-proxy-name", namespace, name)
}
