// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"cmp"
	"context"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"kubeproxy/common/service"
)

// Check is the content of the answers for one Service.
type Check struct {
	Namespace, Name string
	// LocalEndpoints counts, by family, ready endpoints of this node that do not terminate.
	LocalEndpoints [2]int
	// Families are those of the Service, nil for all that are programmed. Those of the family of a
	// probe's connection count, so that one family's fault leaves the other alone, and no load
	// balancer sends IPv4 where only IPv6 has an endpoint.
	Families []service.Family
	// Unprogrammed means that this Service could not be programmed, whatever the proxy's health.
	Unprogrammed bool
}

// DesiredChecks is everything to be answered.
type DesiredChecks struct {
	// Addrs are the node's addresses to listen on, an unspecified one for all of its family.
	Addrs  []netip.Addr
	Checks map[uint16]Check // by healthCheckNodePort
	// Within restricts an unspecified address: connections elsewhere are reset.
	Within []netip.Prefix
}

// CheckProblem is an address of a check that cannot be bound, and is retried for ever.
type CheckProblem struct {
	Namespace, Name string
	Addr            netip.AddrPort
	Err             error
}

// CheckServers holds one listener per address and port. Set the exported fields before use.
// All methods may be called from any goroutine.
type CheckServers struct {
	// Serving reports whether one of the families is programmed, as Monitor.Serving. Nil is always.
	Serving func(families ...service.Family) bool
	// Report, if set, is called for each Problem when it appears. It is called again with
	// a nil Err when the Problem is over and the check still exists.
	Report func(CheckProblem)
	// Connections bounds those to all listeners together, nil at health.MaxConnections.
	Connections *Connections
	// Listen, if set, replaces the system's function.
	Listen func(ctx context.Context, network, addr string) (net.Listener, error)

	mu       sync.Mutex
	desired  DesiredChecks
	running  map[netip.AddrPort]*running
	problems map[netip.AddrPort]CheckProblem
	closed   bool
}

// running is an active listener.
type running struct {
	ended chan struct{}
	stop  func()
}

// retryInterval is the pause after a failed attempt to bind.
const retryInterval = 5 * time.Second

// Sync starts missing listeners and stops those that are not desired. Others keep their
// listener and use the new numbers at once. It returns the present problems, sorted.
func (s *CheckServers) Sync(want DesiredChecks) []CheckProblem {
	s.mu.Lock()
	want = DesiredChecks{slices.Clone(want.Addrs), maps.Clone(want.Checks), slices.Clone(want.Within)}
	s.desired = want
	s.stopUnwanted()
	fresh := s.startMissing()
	all := s.list()
	s.mu.Unlock()
	s.report(fresh)
	return all
}

// Problems returns the present problems, sorted.
func (s *CheckServers) Problems() []CheckProblem {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.list()
}

// Run retries failed listeners until ctx ends. Then it stops all servers permanently.
func (s *CheckServers) Run(ctx context.Context) {
	tick := time.NewTicker(retryInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			s.close()
			return
		case <-tick.C:
			s.retryMissing()
		}
	}
}

func (s *CheckServers) retryMissing() {
	s.mu.Lock()
	fresh := s.startMissing()
	s.mu.Unlock()
	s.report(fresh)
}

func (s *CheckServers) close() {
	s.mu.Lock()
	s.desired, s.closed = DesiredChecks{}, true
	s.stopUnwanted()
	s.mu.Unlock()
}

func (s *CheckServers) report(problems []CheckProblem) {
	if s.Report == nil {
		return
	}
	for _, p := range problems {
		s.Report(p)
	}
}

func (s *CheckServers) stopUnwanted() {
	for at, r := range s.running {
		if !s.isDesired(at) {
			r.stop()
			delete(s.running, at)
		}
	}
	maps.DeleteFunc(s.problems, func(at netip.AddrPort, _ CheckProblem) bool { return !s.isDesired(at) })
}

func (s *CheckServers) isDesired(at netip.AddrPort) bool {
	_, ok := s.desired.Checks[at.Port()]
	return ok && slices.Contains(s.desired.Addrs, at.Addr())
}

// startMissing returns the new problems, in order, and those that are over.
func (s *CheckServers) startMissing() []CheckProblem {
	if s.closed {
		return nil
	}
	if s.Connections == nil {
		s.Connections = NewConnections(MaxConnections)
	}
	if s.running == nil {
		s.running, s.problems = map[netip.AddrPort]*running{}, map[netip.AddrPort]CheckProblem{}
	}
	var fresh []CheckProblem
	for _, port := range slices.Sorted(maps.Keys(s.desired.Checks)) {
		for _, addr := range s.desired.Addrs {
			fresh = append(fresh, s.ensure(netip.AddrPortFrom(addr, port))...)
		}
	}
	return fresh
}

// ensure listens on at. It returns what to report.
func (s *CheckServers) ensure(at netip.AddrPort) []CheckProblem {
	if r := s.running[at]; r != nil && !r.stopped() {
		return nil
	}
	c := s.desired.Checks[at.Port()]
	p := CheckProblem{Namespace: c.Namespace, Name: c.Name, Addr: at}
	r, err := s.start(at)
	old, had := s.problems[at]
	if err == nil {
		s.running[at] = r
		delete(s.problems, at)
		if had {
			return []CheckProblem{p}
		}
		return nil
	}
	p.Err = err
	s.problems[at] = p
	if had && old.Err.Error() == err.Error() && old.Namespace == p.Namespace && old.Name == p.Name {
		return nil
	}
	return []CheckProblem{p}
}

// stopped reports whether the listener failed.
func (r *running) stopped() bool {
	select {
	case <-r.ended:
		return true
	default:
		return false
	}
}

func (s *CheckServers) start(at netip.AddrPort) (*running, error) {
	listen := s.Listen
	if listen == nil {
		var lc net.ListenConfig
		listen = lc.Listen
	}
	network := "tcp6" // for [::] too, because 0.0.0.0 is a separate address
	if at.Addr().Is4() {
		network = "tcp4"
	}
	ctx, stop := context.WithCancel(context.Background())
	l, err := listen(ctx, network, at.String())
	if err != nil {
		stop()
		return nil, err
	}
	l = &onceListener{Listener: l, admits: s.admits}
	r := &running{make(chan struct{}), func() {
		// The address is free at once, even with requests in progress.
		l.Close()
		stop()
	}}
	go func() {
		defer stop()
		Serve(ctx, "health check", l, s.handler(at.Port()), s.Connections) // a failed one is restarted
		close(r.ended)
	}()
	return r, nil
}

// admits reports whether health checks are answered on the local address.
func (s *CheckServers) admits(local net.Addr) bool {
	at, err := netip.ParseAddrPort(local.String())
	if err != nil {
		return false
	}
	addr := at.Addr().Unmap().WithZone("")
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.desired.Within, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// onceListener allows a second Close, and resets connections to addresses that it does
// not admit. It implements net.Listener.
type onceListener struct {
	net.Listener
	admits func(net.Addr) bool
	once   sync.Once
	err    error
}

func (l *onceListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil || l.admits(c.LocalAddr()) {
			return c, err
		}
		if t, ok := c.(*net.TCPConn); ok {
			_ = t.SetLinger(0) // so that Close sends a reset
		}
		_ = c.Close()
	}
}

func (l *onceListener) Close() error {
	l.once.Do(func() { l.err = l.Listener.Close() })
	return l.err
}

func (s *CheckServers) list() []CheckProblem {
	return slices.SortedFunc(maps.Values(s.problems), func(a, b CheckProblem) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), a.Addr.Compare(b.Addr))
	})
}

// Error makes a Problem usable as an error.
func (p CheckProblem) Error() string {
	if p.Err == nil {
		return p.subject() + ": served"
	}
	return p.subject() + ": " + p.Err.Error()
}

// Unwrap returns the cause.
func (p CheckProblem) Unwrap() error { return p.Err }

func (p CheckProblem) subject() string {
	return "health check of service " + p.Namespace + "/" + p.Name + " on " + p.Addr.String()
}

// weightHeader carries the number of local endpoints, as a weight for load balancers.
const weightHeader = "X-Load-Balancing-Endpoint-Weight"

// answer is the body of a response.
type answer struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints      int  `json:"localEndpoints"`
	ServiceProxyHealthy bool `json:"serviceProxyHealthy"`
}

// handler answers every path and method, as load balancers may use any: 200 if this node has ready
// endpoints and the proxy is healthy, else 503.
func (s *CheckServers) handler(port uint16) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		s.mu.Lock()
		c, ok := s.desired.Checks[port]
		s.mu.Unlock()
		if !ok { // the check was just removed
			http.NotFound(w, q)
			return
		}
		a := answer{LocalEndpoints: c.localEndpoints(q), ServiceProxyHealthy: s.healthy(c, q)}
		a.Service.Namespace, a.Service.Name = c.Namespace, c.Name
		status := http.StatusServiceUnavailable
		if a.LocalEndpoints > 0 && a.ServiceProxyHealthy {
			status = http.StatusOK
		}
		w.Header().Set(weightHeader, strconv.Itoa(a.LocalEndpoints))
		ReplyJSON(w, status, a)
	})
}

func (s *CheckServers) healthy(c Check, q *http.Request) bool {
	return !c.Unprogrammed && (s.Serving == nil || s.Serving(c.families(q)...))
}

// localEndpoints returns the largest count of the families that matter for q.
func (c Check) localEndpoints(q *http.Request) int {
	families := c.families(q)
	if len(families) == 0 {
		families = service.Families[:]
	}
	n := 0
	for _, f := range families {
		n = max(n, c.LocalEndpoints[f])
	}
	return n
}

// families returns that of q's connection if the Service has it, otherwise all of the Service.
func (c Check) families(q *http.Request) []service.Family {
	family, ok := arrival(q)
	if ok && slices.Contains(c.Families, family) {
		return []service.Family{family}
	}
	return c.Families
}

// arrival returns the family of the connection.
func arrival(q *http.Request) (service.Family, bool) {
	to, ok := q.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return 0, false
	}
	at, err := netip.ParseAddrPort(to.String())
	if err != nil {
		return 0, false
	}
	return service.FamilyOf(at.Addr().Unmap()), true
}
