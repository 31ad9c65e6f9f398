// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package servicestate

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/common/track"
)

// Relayed records how connections fare that pass through the process. All methods may be
// called from any goroutine, also with a nil receiver.
type Relayed struct {
	// Condition shows which Services reach no endpoint, without their names and with them.
	Condition func(text, detail string)
	// Log says that a Service port reaches none from now on.
	Log func(f service.Family, name service.PortName, why string)

	mu    sync.Mutex
	ports [2]map[service.PortName]*misses
	total [2]uint64
}

// misses are the failures of a Service port since its last success.
type misses struct {
	Unreached
	endpoints map[netip.AddrPort]track.Failure
	logged    time.Time
}

// Unreached are clients of a port that reached no endpoint since the last one that did.
type Unreached struct {
	Clients int       `json:"clients"`
	Error   string    `json:"error"` // of the last one
	Last    time.Time `json:"last"`
}

// Text says so as a clause.
func (u *Unreached) Text() string {
	what := fmt.Sprintf("the last %d connections", u.Clients)
	if u.Clients == 1 {
		what = "the last connection"
	}
	return fmt.Sprintf("%s reached no endpoint: %s", what, u.Error)
}

// Late is a failure that an attempt had which began before the latest success did.
type Late interface {
	error
	Late()
}

// quiet is how long the same fault of a port is not logged again.
const quiet = 10 * time.Second

// Attempted records an attempt to reach an endpoint, err being nil for a success. Without
// an endpoint, a client could not be served. A failure that is Late is only counted.
func (r *Relayed) Attempted(f service.Family, name service.PortName, endpoint netip.AddrPort, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil && !endpoint.IsValid() {
		r.total[f]++
	}
	if late := Late(nil); errors.As(err, &late) {
		return
	}
	x, now := r.ports[f][name], time.Now()
	if x == nil && err == nil {
		return
	}
	if x == nil {
		x = &misses{endpoints: map[netip.AddrPort]track.Failure{}}
		if r.ports[f] == nil {
			r.ports[f] = map[service.PortName]*misses{}
		}
		r.ports[f][name] = x
	}
	switch {
	case err == nil:
		delete(x.endpoints, endpoint)
		x.Unreached = Unreached{}
	case endpoint.IsValid():
		x.endpoints[endpoint] = track.Failure{Error: textOf(err), At: now.UTC()}
		return
	default:
		first := x.Clients == 0 && now.Sub(x.logged) > quiet
		if x.Unreached = (Unreached{x.Clients + 1, textOf(err), now.UTC()}); first {
			x.logged = now
			r.Log(f, name, x.Error)
		}
		if x.Clients > 1 {
			return
		}
	}
	r.show()
}

// textOf returns what err says beside the addresses.
func textOf(err error) string {
	var timeout net.Error
	var errno syscall.Errno
	switch {
	case errors.As(err, &timeout) && timeout.Timeout():
		return "timed out"
	case errors.As(err, &errno):
		return errno.Error()
	}
	return err.Error()
}

// show updates the condition.
func (r *Relayed) show() {
	var names []string
	for f, all := range r.ports {
		for name, x := range all {
			if x.Clients > 0 {
				names = append(names, fmt.Sprintf("%s (%s, %s): %s", name, name.Protocol, service.Family(f), x.Error))
			}
		}
	}
	if len(names) == 0 {
		r.Condition("", "")
		return
	}
	slices.Sort(names)
	const most = 3
	more := ""
	if n := len(names) - most; n > 0 {
		names, more = names[:most], fmt.Sprintf("; and %d more", n)
	}
	const text = "connections to Services reach no endpoint"
	r.Condition(text, text+": "+strings.Join(names, "; ")+more)
}

// keep forgets what concerns no endpoint that s sends connections to.
func (r *Relayed) keep(f service.Family, s *service.Snapshot) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.ports[f]) == 0 {
		return
	}
	for name, x := range r.ports[f] {
		p := s.Port(f, name)
		maps.DeleteFunc(x.endpoints, func(at netip.AddrPort, _ track.Failure) bool { return p == nil || !has(p, at) })
		if len(x.endpoints) == 0 {
			delete(r.ports[f], name)
		}
	}
	r.show()
}

func has(p *service.Port, at netip.AddrPort) bool {
	is := func(e service.Endpoint) bool { return e.Addr == at }
	return slices.ContainsFunc(p.Cluster, is) || slices.ContainsFunc(p.Local, is)
}

// Of returns what connections of a port reached no endpoint, nil if the last one did, and
// the endpoints to which the latest attempt failed.
func (r *Relayed) Of(f service.Family, name service.PortName) (*Unreached, map[netip.AddrPort]track.Failure) {
	if r == nil {
		return nil, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	x := r.ports[f][name]
	if x == nil {
		return nil, nil
	}
	failed := maps.Clone(x.endpoints)
	if x.Clients == 0 {
		return nil, failed
	}
	u := x.Unreached
	return &u, failed
}

// mark sets in all the failures of the latest attempts.
func (r *Relayed) mark(f service.Family, name service.PortName, all []track.Candidate) {
	_, failed := r.Of(f, name)
	for at, failure := range failed {
		if i := slices.IndexFunc(all, func(e track.Candidate) bool { return e.Address == at.String() }); i >= 0 {
			all[i].Failed = &failure
		}
	}
}

// Faults lists in words what Of returns.
func (r *Relayed) Faults(f service.Family, name service.PortName) []string {
	u, failed := r.Of(f, name)
	var all []string
	if u != nil {
		all = append(all, u.Text())
	}
	for _, at := range slices.SortedFunc(maps.Keys(failed), netip.AddrPort.Compare) {
		all = append(all, fmt.Sprintf("the latest connection to %s failed %s ago: %s", at, cmp.Or(time.Since(failed[at].At).Round(time.Second), time.Second), failed[at].Error))
	}
	return all
}

// Totals counts, by family, the clients that reached no endpoint.
func (r *Relayed) Totals() map[service.Family]uint64 {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return map[service.Family]uint64{service.IPv4: r.total[service.IPv4], service.IPv6: r.total[service.IPv6]}
}
