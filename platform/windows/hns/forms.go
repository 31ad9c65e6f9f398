// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"fmt"
	"net/netip"
	"strings"
)

// HNS may give an object back in another form than it was asked for: with a flag left out, say, or another source VIP. Such
// an object is not made again at every resync, which would cut its connections each time.

// maxRepairs is how often an object is made again for the same difference.
const maxRepairs = 2

// maxForms bounds what is remembered of objects, most of which are gone.
const maxForms = 1 << 16

// form is the properties of a load balancer that HNS could give back in another form.
type form struct {
	TargetPort   uint16
	SourceVIP    netip.Addr
	DSR          bool
	Flags        PortFlags
	Distribution Distribution
	Unsupported  bool
}

func (lb *LoadBalancer) form() form {
	return form{lb.TargetPort, lb.SourceVIP, lb.DSR, lb.Flags, lb.Distribution, lb.Unsupported}
}

func (lb *LoadBalancer) setForm(f form) {
	lb.TargetPort, lb.SourceVIP, lb.DSR, lb.Flags, lb.Distribution, lb.Unsupported = f.TargetPort, f.SourceVIP, f.DSR, f.Flags, f.Distribution, f.Unsupported
}

// differences names the fields of HNS in which g differs from f, each with both values.
func (f form) differences(g form) string {
	var d fieldDifferences
	d.add("InternalPort", f.TargetPort, g.TargetPort)
	d.add("SourceVIP", addrText(f.SourceVIP), addrText(g.SourceVIP))
	d.add("direct server return", f.DSR, g.DSR)
	d.add("Flags of its port", f.Flags, g.Flags)
	d.add("DistributionType", f.Distribution, g.Distribution)
	d.add("other properties", f.Unsupported, g.Unsupported)
	return strings.Join(d, ", ")
}

type fieldDifferences []string

func (d *fieldDifferences) add(field string, asked, got any) {
	if asked != got {
		*d = append(*d, fmt.Sprintf("%s %v, not %v", field, got, asked))
	}
}

// answer is what HNS gives back for a form that it was asked for. The record keeps it: a new process would make the
// object again otherwise.
type answer struct {
	Asked, Got form
	Repairs    int // that led to the same
	Settled    bool
}

// noteMade notes how HNS gave back a load balancer that it has just made.
func (h *Host) noteMade(asked, made *LoadBalancer) {
	a := answer{Asked: asked.form(), Got: made.form(), Settled: true}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.load()
	if len(h.record.Forms) >= maxForms {
		clear(h.record.Forms)
	}
	k := asked.Key.String()
	if h.record.Forms[k].Asked != a.Asked {
		delete(h.record.Forms, k)
	}
	if made.Key != asked.Key || a.Asked == a.Got {
		return
	}
	h.record.Forms[k], h.dirty = a, true
	h.reportLocked("HNS gives load balancers back in another form than it was asked for, and they count as right: " + a.Asked.differences(a.Got))
}

// noteRepair notes that have is replaced by want.
func (h *Host) noteRepair(have, want *LoadBalancer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.load()
	k := want.Key.String()
	a := h.record.Forms[k]
	if a.Asked != want.form() || a.Got != have.form() {
		a = answer{Asked: want.form(), Got: have.form()}
	}
	if a.Asked == a.Got {
		return // other endpoints
	}
	a.Repairs++
	a.Settled = a.Repairs >= maxRepairs
	h.record.Forms[k], h.dirty = a, true
}

// forgetForm forgets how HNS gives back a load balancer that nobody wants any more.
func (h *Host) forgetForm(k Key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.load()
	delete(h.record.Forms, k.String())
}

// endpointRoute is where a remote endpoint leads.
type endpointRoute struct {
	MAC      string
	Provider netip.Addr
}

func routeOf(e *Endpoint) endpointRoute { return endpointRoute{e.MAC, e.Provider} }

// routeAnswer is what HNS gives back for the route of a remote endpoint of ours.
type routeAnswer struct {
	Asked, Got endpointRoute
	Repairs    int
	Settled    bool
}

func (r *routeAnswer) differs(e *Endpoint) bool {
	return misrouted(e, Target{MAC: r.Asked.MAC, Provider: r.Asked.Provider})
}

// differences names the fields of HNS in which the answer differs, each with both values.
func (r *routeAnswer) differences() string {
	var d fieldDifferences
	d.add("MacAddress", r.Asked.MAC, r.Got.MAC)
	d.add("ProviderAddress", addrText(r.Asked.Provider), addrText(r.Got.Provider))
	return strings.Join(d, ", ")
}

// noteEndpoint notes how HNS gave back a remote endpoint that it has just made, and returns it as it was asked for.
func (h *Host) noteEndpoint(asked, made Endpoint) Endpoint {
	if !asked.Remote || len(asked.Addrs) == 0 {
		return made
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.load()
	a := asked.Addrs[0]
	r := h.routes[a]
	if len(h.routes) >= maxForms { // mostly of deleted pods
		clear(h.routes)
	}
	if r == nil || r.differs(&asked) {
		r = &routeAnswer{Asked: routeOf(&asked)}
		h.routes[a] = r
	}
	if r.Got.MAC != "" { // a listing had it in this form
		r.Repairs++
		r.Settled = r.Settled || r.Repairs >= maxRepairs
	}
	h.oddRoutes = h.oddRoutes || r.Settled || r.differs(&made)
	if r.differs(&made) {
		r.Got, r.Settled = routeOf(&made), true
		made.MAC, made.Provider = asked.MAC, asked.Provider
	}
	return made
}

// endpointsAsAsked is asAsked for endpoints of ours.
func (h *Host) endpointsAsAsked(listed []Endpoint) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.load()
	for i := range listed {
		e := &listed[i]
		if _, ours := h.record.Endpoints[e.ID]; ours && e.Name == "" && len(e.Addrs) > 0 {
			if e.Name = sourceVIPName; e.Remote {
				e.Name = remoteName(e.Addrs[0])
			}
		}
		if !e.Remote || len(e.Addrs) == 0 || e.Name != remoteName(e.Addrs[0]) {
			continue
		}
		r := h.routes[e.Addrs[0]]
		switch {
		case r == nil:
		case !r.differs(e):
			r.Got, r.Repairs, r.Settled = endpointRoute{}, 0, false
		case r.Settled && routeOf(e) == r.Got:
			if !h.routesTold {
				h.routesTold = true
				h.reportLocked(fmt.Sprintf("HNS has remote endpoints in another form than it was asked for, and they are left so: the one of %s with %s", e.Addrs[0], r.differences()))
			}
			e.MAC, e.Provider = r.Asked.MAC, r.Asked.Provider
		default:
			r.Got = routeOf(e)
		}
	}
}

// asAsked gives listed load balancers the form that they were asked for, where HNS gives that form back as another one.
func (h *Host) asAsked(listed []LoadBalancer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.load(); len(h.record.Forms) == 0 {
		return
	}
	for i := range listed {
		lb := &listed[i]
		k := lb.Key.String()
		a, known := h.record.Forms[k]
		switch {
		case !known || len(lb.ExtraKeys) > 0:
		case a.Settled && lb.form() == a.Got:
			lb.setForm(a.Asked)
		case lb.form() == a.Asked: // the repair was of use
			delete(h.record.Forms, k)
			h.dirty = true
		}
	}
}

// limitForms adds what was repaired in vain to the limits of w.
func (h *Host) limitForms(w DesiredState) DesiredState {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.load(); len(h.record.Forms) == 0 && !h.oddRoutes {
		return w
	}
	told := map[netip.Addr]bool{}
	for _, lb := range w.LoadBalancers {
		if a := h.record.Forms[lb.Key.String()]; a.Settled && a.Repairs > 0 && a.Asked == lb.form() {
			w.limitForm("load balancer "+lb.Key.String(), a.Asked.differences(a.Got), a.Repairs)
		}
		for _, t := range lb.Targets {
			if r := h.routes[t.Addr]; r != nil && r.Settled && r.Repairs > 0 && !told[t.Addr] {
				told[t.Addr] = true
				w.limitForm("the remote endpoint of "+t.Addr.String(), r.differences(), r.Repairs)
			}
		}
	}
	return w
}

func (w *DesiredState) limitForm(object, differences string, repairs int) {
	w.addLimit(nil, "HNS has %s with %s, also after it was made again %d times: it is left so", object, differences, repairs)
}

// saveRoutes puts the routes into the record that HNS gives back in another form.
func (h *Host) saveRoutes() {
	h.record.Routes = map[netip.Addr]routeAnswer{}
	if !h.oddRoutes {
		return
	}
	for _, at := range h.record.Endpoints {
		a, _ := netip.ParseAddr(at)
		if r := h.routes[a]; r != nil && r.Settled {
			h.record.Routes[a] = *r
		}
	}
}
