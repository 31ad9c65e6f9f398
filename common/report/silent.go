// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"kubeproxy/common/events"
	"kubeproxy/common/health/servicestate"
	"kubeproxy/common/metrics"
	"kubeproxy/common/service"
	"kubeproxy/common/silence"
	"kubeproxy/common/track"
)

// eventSilent is about endpoints of a Service. Most nodes see the same.
var eventSilent = events.Topic{Reason: "EndpointsSilent", RecoveredReason: "EndpointsAnswer", Scope: events.Cluster}

// Silent shows the endpoints that do not answer, in status, metrics, Events and the log.
type Silent struct {
	uses   func() []track.SilentUse
	events *Events
	log    klog.Logger

	mu       sync.Mutex
	records  map[service.Address]silence.Record
	counts   metrics.Silent                // only of changes
	reported map[types.NamespacedName]bool // Services with an Event
}

// Changed takes all endpoints that do not answer, after the Tracker has.
func (s *Silent) Changed(now map[service.Address]silence.Record) {
	s.mu.Lock()
	var silent, answer []string
	for a := range now {
		if _, was := s.records[a]; !was {
			silent = append(silent, a.String())
		}
	}
	for a := range s.records {
		if _, is := now[a]; !is {
			answer = append(answer, a.String())
		}
	}
	s.records = now
	s.counts.Fell += uint64(len(silent))
	s.counts.Over += uint64(len(answer))
	s.mu.Unlock()
	s.logChange("Endpoints do not answer", silent)
	s.logChange("Endpoints answer again, or are gone", answer)
	s.events.reportSilent(s)
}

func (s *Silent) logChange(message string, all []string) {
	if slices.Sort(all); len(all) > 0 {
		s.log.Info(message, "endpoints", joinFirst(all))
	}
}

// List returns the endpoints that do not answer, of each Service port that has them.
func (s *Silent) List() []servicestate.SilentEndpoint {
	s.mu.Lock()
	records := s.records
	s.mu.Unlock()
	if len(records) == 0 {
		return nil
	}
	var all []servicestate.SilentEndpoint
	for _, x := range s.uses() {
		r, silent := records[x.Endpoint]
		if !silent { // since a moment ago
			continue
		}
		e := servicestate.SilentEndpoint{PortEndpoint: portEndpoint(x.Port, x.Endpoint), LeftOut: x.LeftOut, Since: r.Since.UTC(), Why: r.Why}
		e.Protocol = x.Port.Protocol.String()
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b servicestate.SilentEndpoint) int { return a.Compare(b.PortEndpoint) })
	return all
}

// count counts endpoints, each once. One is left out if one Service leaves it out.
func (s *Silent) count() metrics.Silent {
	out := map[string]bool{}
	for _, x := range s.List() {
		a := x.Protocol + " " + x.Address
		out[a] = out[a] || x.LeftOut
	}
	s.mu.Lock()
	n := s.counts
	s.mu.Unlock()
	for _, is := range out {
		if is {
			n.LeftOut++
		} else {
			n.Kept++
		}
	}
	return n
}

// reportSilent reports the Services whose endpoints do not answer.
func (ev *Events) reportSilent(s *Silent) {
	now := map[types.NamespacedName][]string{}
	for _, x := range s.List() {
		n := types.NamespacedName{Namespace: x.Namespace, Name: x.Name}
		if !slices.Contains(now[n], x.Address) {
			now[n] = append(now[n], x.Address)
		}
	}
	texts := map[types.NamespacedName][]string{}
	for n, all := range now {
		texts[n] = []string{"Endpoints do not answer while others do: " + strings.ReplaceAll(joinFirst(all), "; ", ", ")}
	}
	ev.mu.Lock()
	defer ev.mu.Unlock()
	ev.reportEach(eventSilent, s.reported, texts, "All endpoints answer, or those that did not are gone")
}
