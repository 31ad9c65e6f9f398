// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"fmt"
	"net/netip"
	"strings"

	"kubeproxy/common/reconcile"
)

// HNS may give an object back in another form than it was asked for: with a flag left out, say, or another source VIP. Such
// an object is not made again at every resync, which would cut its connections each time.

// maxRepairs is how often an object is made again for the same difference.
const maxRepairs = 2

// maxForms bounds what is remembered of objects, most of which are gone.
const maxForms = 1 << 16

// form is the properties of a load balancer that HNS could give back in another form.
type form struct {
	targetPort   uint16
	sourceVIP    netip.Addr
	dsr          bool
	flags        PortFlags
	distribution Distribution
	unsupported  bool
}

func (lb *LoadBalancer) form() form {
	return form{lb.TargetPort, lb.SourceVIP, lb.DSR, lb.Flags, lb.Distribution, lb.Unsupported}
}

func (lb *LoadBalancer) setForm(f form) {
	lb.TargetPort, lb.SourceVIP, lb.DSR, lb.Flags, lb.Distribution, lb.Unsupported = f.targetPort, f.sourceVIP, f.dsr, f.flags, f.distribution, f.unsupported
}

// differences names the fields of HNS in which g differs from f, each with both values.
func (f form) differences(g form) string {
	var all []string
	add := func(field string, asked, got any) {
		if asked != got {
			all = append(all, fmt.Sprintf("%s %v, not %v", field, got, asked))
		}
	}
	add("InternalPort", f.targetPort, g.targetPort)
	add("SourceVIP", addrText(f.sourceVIP), addrText(g.sourceVIP))
	add("direct server return", f.dsr, g.dsr)
	add("Flags of its port", f.flags, g.flags)
	add("DistributionType", f.distribution, g.distribution)
	add("other properties", f.unsupported, g.unsupported)
	return strings.Join(all, ", ")
}

// answer is what HNS gives back for a form that it was asked for.
type answer struct {
	asked, got form
	repairs    int // that led to the same
	settled    bool
}

// noteMade notes how HNS gave back a load balancer that it has just made.
func (h *Host) noteMade(asked, made *LoadBalancer) {
	a := answer{asked: asked.form(), got: made.form(), settled: true}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.answers) >= maxForms {
		clear(h.answers)
	}
	if h.answers[asked.Key].asked != a.asked {
		delete(h.answers, asked.Key)
	}
	if made.Key != asked.Key || a.asked == a.got {
		return
	}
	h.answers[asked.Key] = a
	h.reportLocked("HNS gives load balancers back in another form than it was asked for, and they count as right: " + a.asked.differences(a.got))
}

// noteRepair notes that have is replaced by want.
func (h *Host) noteRepair(have, want *LoadBalancer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	a := h.answers[want.Key]
	if a.asked != want.form() || a.got != have.form() {
		a = answer{asked: want.form(), got: have.form()}
	}
	if a.asked == a.got {
		return // other endpoints
	}
	a.repairs++
	a.settled = a.repairs >= maxRepairs
	h.answers[want.Key] = a
}

// endpointRoute is where a remote endpoint leads.
type endpointRoute struct {
	mac      string
	provider netip.Addr
}

func routeOf(e *Endpoint) endpointRoute { return endpointRoute{e.MAC, e.Provider} }

// routeAnswer is what HNS gives back for the route of a remote endpoint of ours.
type routeAnswer struct {
	asked, got endpointRoute
	repairs    int
	settled    bool
}

func (r *routeAnswer) differs(e *Endpoint) bool {
	return misrouted(e, Target{MAC: r.asked.mac, Provider: r.asked.provider})
}

// noteEndpoint notes how HNS gave back a remote endpoint that it has just made, and returns it as it was asked for.
func (h *Host) noteEndpoint(asked, made Endpoint) Endpoint {
	if !asked.Remote || len(asked.Addrs) == 0 {
		return made
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	a := asked.Addrs[0]
	r := h.routes[a]
	if len(h.routes) >= maxForms { // mostly of deleted pods
		clear(h.routes)
	}
	if r == nil || r.differs(&asked) {
		r = &routeAnswer{asked: routeOf(&asked)}
		h.routes[a] = r
	}
	if r.got.mac != "" { // a listing had it in this form
		r.repairs++
		r.settled = r.settled || r.repairs >= maxRepairs
	}
	if r.differs(&made) {
		r.got, r.settled = routeOf(&made), true
		made.MAC, made.Provider = asked.MAC, asked.Provider
	}
	return made
}

// endpointsAsAsked is asAsked for remote endpoints of ours.
func (h *Host) endpointsAsAsked(listed []Endpoint) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range listed {
		e := &listed[i]
		if !e.Remote || len(e.Addrs) == 0 || e.Name != remoteName(e.Addrs[0]) {
			continue
		}
		r := h.routes[e.Addrs[0]]
		switch {
		case r == nil:
		case !r.differs(e):
			r.got, r.repairs, r.settled = endpointRoute{}, 0, false
		case r.settled && routeOf(e) == r.got:
			h.reportLocked("HNS has remote endpoints with another MAC or provider address than it was asked for: they are left so")
			e.MAC, e.Provider = r.asked.mac, r.asked.provider
		default:
			r.got = routeOf(e)
		}
	}
}

// asAsked gives listed load balancers the form that they were asked for, where HNS gives that form back as another one.
func (h *Host) asAsked(listed []LoadBalancer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range listed {
		lb := &listed[i]
		a, known := h.answers[lb.Key]
		switch {
		case !known || len(lb.ExtraKeys) > 0:
		case a.settled && lb.form() == a.got:
			lb.setForm(a.asked)
		case lb.form() == a.asked: // the repair was of use
			delete(h.answers, lb.Key)
		}
	}
}

// limitForms adds what was repaired in vain to the limits of w.
func (h *Host) limitForms(w DesiredState) DesiredState {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, lb := range w.LoadBalancers {
		if a := h.answers[lb.Key]; a.settled && a.repairs > 0 && a.asked == lb.form() {
			w.Limits = append(w.Limits, &reconcile.UnsupportedError{Text: fmt.Sprintf(
				"HNS has load balancer %s with %s, also after it was made again %d times: it is left so", lb.Key, a.asked.differences(a.got), a.repairs)})
		}
	}
	return w
}
