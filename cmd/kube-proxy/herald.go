// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"kubeproxy/common/events"
	"kubeproxy/common/health"
	"kubeproxy/common/health/servicecheck"
	"kubeproxy/common/metrics"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/source"
	"kubeproxy/common/track"
)

// What Events are about. That a Service has no endpoints, or none on this
// node, is ordinary and no Event.
var (
	eventStarting   = events.Topic{Bad: "Starting", Calm: true}
	eventRules      = events.Topic{Bad: "RulesNotProgrammed", Good: "RulesProgrammed"}
	eventPorts      = events.Topic{Bad: "ServiceNotProgrammed", Good: "ServiceProgrammed"}
	eventSkipped    = events.Topic{Bad: "ServiceSkipped", Reach: events.Cluster}
	eventRefused    = events.Topic{Bad: "ServiceAddressRefused", Good: "ServiceAddressServed"}
	eventOther      = events.Topic{Bad: "OtherServiceProxy", Good: "OtherServiceProxyGone"}
	eventDisputed   = events.Topic{Bad: "RulesAlteredByOthers", Good: "RulesNotAlteredAnyMore"}
	eventCheck      = events.Topic{Bad: "FailedToStartServiceHealthcheck", Good: "StartedServiceHealthcheck"}
	eventsOfServers = map[string]events.Topic{
		"health":  {Bad: "FailedToStartProxierHealthcheck", Good: "StartedProxierHealthcheck"},
		"metrics": {Bad: "FailedToStartMetricServer", Good: "StartedMetricServer"},
	}
)

// herald turns what observers hear into Events. A nil one keeps silent, for
// want of an API server.
type herald struct {
	*events.Recorder
	node     string
	problems func() []track.Problem

	mu      sync.Mutex
	uids    map[types.NamespacedName]types.UID
	failed  [2]map[types.NamespacedName][]string // what of a Service, by family
	rules   [2]string                            // what keeps a family from being programmed
	checks  map[types.NamespacedName]map[netip.AddrPort]string
	limits  map[types.NamespacedName]string // what the mode cannot do
	skipped map[types.NamespacedName]bool   // that were told
	refused map[types.NamespacedName]bool   // likewise, of what this node alone may see
	// outdated are the Services with an Event about a deprecated field.
	outdated map[types.NamespacedName]bool
	seen     uint64 // generation that skipped is of

	// fresh means that there is a problem that was not told. It needs no
	// lock, for problems come up under that of the tracker.
	fresh atomic.Bool
}

// newHerald returns a herald if there is an API server to write to.
func newHerald(from source.Source, node string, m *metrics.Metrics, log klog.Logger) (*herald, error) {
	api, ok := from.(*source.APIServer)
	if !ok {
		return nil, nil
	}
	recorder, err := events.New(events.Options{
		Config: api.Config, Node: node, Written: m.EventWritten, Dropped: m.EventDropped,
		Report: func(err error) {
			var args []any
			if apierrors.IsForbidden(err) {
				args = []any{"remedy", "bind the account to a ClusterRole that may create and patch events, such as system:node-proxier"}
			}
			log.Error(err, "An Event could not be written; the dataplane does not depend on it", args...)
		},
	})
	if err != nil {
		return nil, err
	}
	h := &herald{
		Recorder: recorder, node: node, uids: map[types.NamespacedName]types.UID{},
		checks: map[types.NamespacedName]map[netip.AddrPort]string{}, skipped: map[types.NamespacedName]bool{}, refused: map[types.NamespacedName]bool{},
		limits: map[types.NamespacedName]string{}, outdated: map[types.NamespacedName]bool{},
	}
	h.Bad(h.self(), eventStarting, "kube-proxy "+builtFrom().Version+" starts")
	return h, nil
}

// self is the own Node, with its name for a UID, as kubelets have it too.
func (h *herald) self() events.Object {
	return events.Object{Kind: "Node", Name: h.node, UID: types.UID(h.node)}
}

// set remembers a Service that Events may be about.
func (h *herald) set(s *corev1.Service) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	n := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
	if old, ok := h.uids[n]; ok && old != s.UID {
		h.Gone(object(n, old)) // another one of the same name
	}
	if s.Spec.HealthCheckNodePort == 0 && h.checks[n] != nil { // which nobody says of it again
		delete(h.checks, n)
		h.Gone(object(n, s.UID))
	}
	h.uids[n] = s.UID
	h.tell(n, eventLimited, h.limits[n], "")
}

// gone forgets a Service.
func (h *herald) gone(n types.NamespacedName) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Gone(object(n, h.uids[n]))
	delete(h.uids, n)
	delete(h.checks, n)
	delete(h.skipped, n)
	delete(h.refused, n)
	delete(h.outdated, n)
}

func object(n types.NamespacedName, uid types.UID) events.Object {
	return events.Object{Kind: "Service", Namespace: n.Namespace, Name: n.Name, UID: uid}
}

// tell says what is wrong with a Service on a topic, nothing if all is right.
// A Service that has left is not spoken of.
func (h *herald) tell(n types.NamespacedName, t events.Topic, wrong, right string) {
	uid, ok := h.uids[n]
	switch {
	case !ok:
	case wrong != "":
		h.Bad(object(n, uid), t, wrong)
	default:
		h.Good(object(n, uid), t, right)
	}
}

// result takes in a round of f for a generation.
func (h *herald) result(f service.Family, generation uint64, r reconcile.Result) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	defer h.tellSkipped(generation)
	h.rules[f] = ""
	if r.Err != nil && !health.Partial(r.Err) {
		h.rules[f] = f.String() + ": " + r.Err.Error()
		h.tellRules()
		return
	}
	h.tellRules()
	now := map[types.NamespacedName][]string{}
	for _, e := range reconcile.Failed(r.Err) {
		if reconcile.Unsupported(e.Err) { // see limits
			continue
		}
		n := types.NamespacedName{Namespace: e.Name.Namespace, Name: e.Name.Name}
		now[n] = append(now[n], fmt.Sprintf("port %s/%s, %s: %v", e.Name.Port, e.Name.Protocol, f, e.Err))
	}
	before := h.failed[f]
	h.failed[f] = now
	for n := range before {
		h.tellPorts(n)
	}
	for n := range now {
		h.tellPorts(n)
	}
}

func (h *herald) tellRules() {
	if h.rules == [2]string{} {
		h.Good(h.self(), eventRules, "All rules are in force again")
		return
	}
	list := slices.DeleteFunc(slices.Clone(h.rules[:]), func(s string) bool { return s == "" })
	h.Bad(h.self(), eventRules, strings.Join(list, "; "))
}

// mostPorts is how many failed ports an Event names.
const mostPorts = 3

func (h *herald) tellPorts(n types.NamespacedName) {
	var all []string
	for _, f := range service.Families {
		all = append(all, h.failed[f][n]...)
	}
	if len(all) > mostPorts {
		all = append(all[:mostPorts:mostPorts], fmt.Sprintf("and %d more", len(all)-mostPorts))
	}
	wrong := ""
	if len(all) > 0 {
		wrong = "Node " + h.node + " could not program " + strings.Join(all, "; ")
	}
	h.tell(n, eventPorts, wrong, "Node "+h.node+" has programmed the Service")
}

// problem notes that there is something new to skip. It is told after the next
// round, together with what else is wrong with the Service.
func (h *herald) problem() {
	if h != nil {
		h.fresh.Store(true)
	}
}

// tellSkipped tells what is left out of Services. What it says must be the
// same on every node, but for addresses that this node refuses.
func (h *herald) tellSkipped(generation uint64) {
	if !h.fresh.Swap(false) && (len(h.skipped)+len(h.refused) == 0 || h.seen == generation) {
		return
	}
	h.seen = generation
	now, here := map[types.NamespacedName][]string{}, map[types.NamespacedName][]string{}
	for _, p := range h.problems() {
		switch text := p.Field + ": " + p.Message; {
		case p.Service.Name == "":
		case p.ThisNode:
			here[p.Service] = append(here[p.Service], text)
		default:
			now[p.Service] = append(now[p.Service], text)
		}
	}
	h.tellEach(eventSkipped, h.skipped, now, "")
	h.tellEach(eventRefused, h.refused, here, "Node "+h.node+" serves all addresses of the Service")
}

// tellEach tells what is wrong with Services on a topic, and of those told that
// all is right now.
func (h *herald) tellEach(t events.Topic, told map[types.NamespacedName]bool, now map[types.NamespacedName][]string, right string) {
	for n := range told {
		if now[n] == nil {
			delete(told, n)
			h.tell(n, t, "", right)
		}
	}
	for n, list := range now {
		told[n] = true
		h.tell(n, t, strings.Join(list, "; "), "")
	}
}

// check takes in what became of listening for a Service's health check.
func (h *herald) check(p servicecheck.Problem) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	n := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
	if h.checks[n] == nil {
		h.checks[n] = map[netip.AddrPort]string{}
	}
	maps.DeleteFunc(h.checks[n], func(at netip.AddrPort, _ string) bool { return at == p.Addr || at.Port() != p.Addr.Port() })
	if p.Err != nil {
		h.checks[n][p.Addr] = p.Err.Error()
	}
	wrong := ""
	for _, text := range h.checks[n] {
		wrong = max(wrong, text)
	}
	if wrong == "" {
		delete(h.checks, n)
	} else {
		wrong = "Node " + h.node + " cannot answer health checks: " + wrong
	}
	h.tell(n, eventCheck, wrong, "Node "+h.node+" answers health checks")
}

// server takes in what became of listening for a server of the proxy.
func (h *herald) server(name string, err error) {
	t, ok := eventsOfServers[name]
	switch {
	case h == nil || !ok:
	case err != nil:
		h.Bad(h.self(), t, err.Error())
	default:
		h.Good(h.self(), t, "The "+name+" server answers now")
	}
}

// announce lets o write Events, if from has an API server to write them to.
func (o *observers) announce(from source.Source, log klog.Logger) {
	h, err := newHerald(from, o.node, o.metrics, log)
	if err != nil {
		log.Error(err, "There will be no Events")
	}
	if h != nil {
		h.problems = func() []track.Problem { return o.tracker.Problems() }
	}
	o.herald = h
	o.deprecatedMode()
}

// start writes Events in group until ctx ends.
func (h *herald) start(ctx context.Context, group *errgroup.Group) {
	if h == nil {
		return
	}
	group.Go(func() error {
		h.Run(ctx)
		return nil
	})
}
