// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"kubeproxy/common/events"
	"kubeproxy/common/health/servicestate"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
)

// eventEnded is about connections of a Service. Other nodes have some to the same endpoints.
var eventEnded = events.Topic{Reason: "ConnectionsEnded", Informational: true, Scope: events.Cluster}

// What Ended shows: how much, for how long, and how many lines of one call in the log.
const (
	mostEnded  = 1000
	endedFor   = 10 * time.Minute
	endedLines = 20
)

// Ended shows connections that the proxy ends, and for a while that it did, in status, Events
// and the log.
type Ended struct {
	events *Events
	log    klog.Logger

	mu       sync.Mutex
	all      map[track.Ending]*ending      // the key is without a count
	reported map[types.NamespacedName]bool // Services with an Event
}

type ending struct {
	count       int
	since, last time.Time
}

// Begun takes connections that are to end.
func (e *Ended) Begun(all []track.Ending) {
	if len(all) == 0 {
		return
	}
	now := time.Now()
	e.mu.Lock()
	e.forget(now)
	for i, x := range all {
		n := x.Count
		x.Count = 0
		r, known := e.all[x]
		if !known && len(e.all) < mostEnded {
			r = &ending{since: now}
			e.all[x] = r
		}
		if r != nil {
			r.count, r.last = r.count+n, now
		}
		if !known && i < endedLines {
			e.log.Info("Ending connections to an endpoint", "family", x.Endpoint.Family.String(), "endpoint", portEndpoint(x.Port, x.Endpoint).Address, "port", x.Port.String(), "connections", n, "why", x.Why)
		}
	}
	e.mu.Unlock()
	if n := len(all) - endedLines; n > 0 {
		e.log.Info("Ending connections to more endpoints", "more", n)
	}
	e.events.reportEnded(e)
}

func portEndpoint(p service.PortName, e service.Address) servicestate.PortEndpoint {
	return servicestate.PortEndpoint{Namespace: p.Namespace, Name: p.Name, Port: p.Port, Address: netip.AddrPortFrom(e.Addr, e.Port).String()}
}

// forget removes what is too old to be shown.
func (e *Ended) forget(now time.Time) {
	maps.DeleteFunc(e.all, func(_ track.Ending, r *ending) bool { return now.Sub(r.last) > endedFor })
}

// List returns what ended lately.
func (e *Ended) List() []servicestate.EndedConnections {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.forget(time.Now())
	var all []servicestate.EndedConnections
	for x, r := range e.all {
		all = append(all, servicestate.EndedConnections{
			PortEndpoint: portEndpoint(x.Port, x.Endpoint), Connections: r.count, Since: r.since.UTC(), Last: r.last.UTC(), Why: x.Why,
		})
	}
	slices.SortFunc(all, func(a, b servicestate.EndedConnections) int {
		return cmp.Or(a.Compare(b.PortEndpoint), cmp.Compare(a.Why, b.Why))
	})
	return all
}

// Notes tells what ended lately of the Service NAMESPACE/NAME.
func (e *Ended) Notes(service string) (notes []string) {
	for _, x := range e.List() {
		if x.Namespace+"/"+x.Name == service {
			notes = append(notes, fmt.Sprintf("since %s the proxy ended connections to %s, %d up to %s: %s",
				x.Since.Format(time.RFC3339), x.Address, x.Connections, x.Last.Format(time.TimeOnly), x.Why))
		}
	}
	return notes
}

// reportEnded reports the Services with connections that ended.
func (ev *Events) reportEnded(e *Ended) {
	now := map[types.NamespacedName][]string{}
	for _, x := range e.List() {
		n := types.NamespacedName{Namespace: x.Namespace, Name: x.Name}
		now[n] = append(now[n], x.Address+": "+x.Why)
	}
	texts := map[types.NamespacedName][]string{}
	for n, all := range now {
		texts[n] = []string{"Connections to endpoints end. " + strings.ReplaceAll(joinFirst(all), "; ", ", ")}
	}
	ev.mu.Lock()
	defer ev.mu.Unlock()
	ev.reportEach(eventEnded, e.reported, texts, "")
}
