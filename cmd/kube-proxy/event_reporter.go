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
	eventStarting   = events.Topic{Reason: "Starting", Informational: true}
	eventRules      = events.Topic{Reason: "RulesNotProgrammed", RecoveredReason: "RulesProgrammed"}
	eventPorts      = events.Topic{Reason: "ServiceNotProgrammed", RecoveredReason: "ServiceProgrammed"}
	eventSkipped    = events.Topic{Reason: "ServiceSkipped", Scope: events.Cluster}
	eventRefused    = events.Topic{Reason: "ServiceAddressRefused", RecoveredReason: "ServiceAddressServed"}
	eventOtherProxy = events.Topic{Reason: "OtherServiceProxy", RecoveredReason: "OtherServiceProxyGone"}
	eventDrift      = events.Topic{Reason: "RulesAlteredByOthers", RecoveredReason: "RulesNotAlteredAnyMore"}
	eventCheck      = events.Topic{Reason: "FailedToStartServiceHealthcheck", RecoveredReason: "StartedServiceHealthcheck"}
	serverEvents    = map[string]events.Topic{
		"health":  {Reason: "FailedToStartProxierHealthcheck", RecoveredReason: "StartedProxierHealthcheck"},
		"metrics": {Reason: "FailedToStartMetricServer", RecoveredReason: "StartedMetricServer"},
	}
)

// eventReporter turns what observers hear into Events. A nil one keeps silent, for
// want of an API server.
type eventReporter struct {
	*events.Recorder
	node     string
	problems func() []track.Problem

	mu          sync.Mutex
	uids        map[types.NamespacedName]types.UID
	failedPorts [2]map[types.NamespacedName][]string // what of a Service, by family
	ruleErrors  [2]string                            // what keeps a family from being programmed
	checkErrors map[types.NamespacedName]map[netip.AddrPort]string
	limits      map[types.NamespacedName]string // what the mode cannot do
	skipped     map[types.NamespacedName]bool   // that were told
	refused     map[types.NamespacedName]bool   // likewise, of what this node alone may see
	// deprecated are the Services with an Event about a deprecated field.
	deprecated         map[types.NamespacedName]bool
	reportedGeneration uint64 // generation that skipped is of

	// newProblems means that there is a problem that was not told. It needs no
	// lock, for problems come up under that of the tracker.
	newProblems atomic.Bool
}

// newEventReporter returns a herald if there is an API server to write to.
func newEventReporter(from source.Source, node string, m *metrics.Metrics, log klog.Logger) (*eventReporter, error) {
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
	h := &eventReporter{
		Recorder: recorder, node: node, uids: map[types.NamespacedName]types.UID{},
		checkErrors: map[types.NamespacedName]map[netip.AddrPort]string{}, skipped: map[types.NamespacedName]bool{}, refused: map[types.NamespacedName]bool{},
		limits: map[types.NamespacedName]string{}, deprecated: map[types.NamespacedName]bool{},
	}
	h.Failed(h.self(), eventStarting, "kube-proxy "+buildInfo().Version+" starts")
	return h, nil
}

// self is the own Node, with its name for a UID, as kubelets have it too.
func (h *eventReporter) self() events.Object {
	return events.Object{Kind: "Node", Name: h.node, UID: types.UID(h.node)}
}

// setService remembers a Service that Events may be about.
func (h *eventReporter) setService(s *corev1.Service) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	n := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
	if old, ok := h.uids[n]; ok && old != s.UID {
		h.Forget(serviceObject(n, old)) // another one of the same name
	}
	if s.Spec.HealthCheckNodePort == 0 && h.checkErrors[n] != nil { // which nobody says of it again
		delete(h.checkErrors, n)
		h.Forget(serviceObject(n, s.UID))
	}
	h.uids[n] = s.UID
	h.report(n, eventLimited, h.limits[n], "")
}

// removeService forgets a Service.
func (h *eventReporter) removeService(n types.NamespacedName) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Forget(serviceObject(n, h.uids[n]))
	delete(h.uids, n)
	delete(h.checkErrors, n)
	delete(h.skipped, n)
	delete(h.refused, n)
	delete(h.deprecated, n)
}

func serviceObject(n types.NamespacedName, uid types.UID) events.Object {
	return events.Object{Kind: "Service", Namespace: n.Namespace, Name: n.Name, UID: uid}
}

// report says what is wrong with a Service on a topic, nothing if all is right.
// A Service that has left is not spoken of.
func (h *eventReporter) report(n types.NamespacedName, t events.Topic, failure, success string) {
	uid, ok := h.uids[n]
	switch {
	case !ok:
	case failure != "":
		h.Failed(serviceObject(n, uid), t, failure)
	default:
		h.Recovered(serviceObject(n, uid), t, success)
	}
}

// reportRound takes in a round of f for a generation.
func (h *eventReporter) reportRound(f service.Family, generation uint64, r reconcile.Result) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	defer h.reportSkipped(generation)
	h.ruleErrors[f] = ""
	if r.Err != nil && !health.OnlyPortErrors(r.Err) {
		h.ruleErrors[f] = f.String() + ": " + r.Err.Error()
		h.reportRules()
		return
	}
	h.reportRules()
	now := map[types.NamespacedName][]string{}
	for _, e := range reconcile.PortErrors(r.Err) {
		if reconcile.Unsupported(e.Err) { // see limits
			continue
		}
		n := types.NamespacedName{Namespace: e.Name.Namespace, Name: e.Name.Name}
		now[n] = append(now[n], fmt.Sprintf("port %s/%s, %s: %v", e.Name.Port, e.Name.Protocol, f, e.Err))
	}
	before := h.failedPorts[f]
	h.failedPorts[f] = now
	for n := range before {
		h.reportPorts(n)
	}
	for n := range now {
		h.reportPorts(n)
	}
}

func (h *eventReporter) reportRules() {
	if h.ruleErrors == [2]string{} {
		h.Recovered(h.self(), eventRules, "All rules are in force again")
		return
	}
	list := slices.DeleteFunc(slices.Clone(h.ruleErrors[:]), func(s string) bool { return s == "" })
	h.Failed(h.self(), eventRules, strings.Join(list, "; "))
}

// maxNamed is how many failed ports an Event names.
const maxNamed = 3

func (h *eventReporter) reportPorts(n types.NamespacedName) {
	var all []string
	for _, f := range service.Families {
		all = append(all, h.failedPorts[f][n]...)
	}
	if len(all) > maxNamed {
		all = append(all[:maxNamed:maxNamed], fmt.Sprintf("and %d more", len(all)-maxNamed))
	}
	failure := ""
	if len(all) > 0 {
		failure = "Node " + h.node + " could not program " + strings.Join(all, "; ")
	}
	h.report(n, eventPorts, failure, "Node "+h.node+" has programmed the Service")
}

// problemFound notes that there is something new to skip. It is told after the next
// round, together with what else is wrong with the Service.
func (h *eventReporter) problemFound() {
	if h != nil {
		h.newProblems.Store(true)
	}
}

// reportSkipped tells what is left out of Services. What it says must be the
// same on every node, but for addresses that this node refuses.
func (h *eventReporter) reportSkipped(generation uint64) {
	if !h.newProblems.Swap(false) && (len(h.skipped)+len(h.refused) == 0 || h.reportedGeneration == generation) {
		return
	}
	h.reportedGeneration = generation
	now, nodeOnly := map[types.NamespacedName][]string{}, map[types.NamespacedName][]string{}
	for _, p := range h.problems() {
		switch text := p.Field + ": " + p.Message; {
		case p.Service.Name == "":
		case p.ThisNode:
			nodeOnly[p.Service] = append(nodeOnly[p.Service], text)
		default:
			now[p.Service] = append(now[p.Service], text)
		}
	}
	h.reportEach(eventSkipped, h.skipped, now, "")
	h.reportEach(eventRefused, h.refused, nodeOnly, "Node "+h.node+" serves all addresses of the Service")
}

// reportEach tells what is wrong with Services on a topic, and of those told that
// all is right now.
func (h *eventReporter) reportEach(t events.Topic, reported map[types.NamespacedName]bool, now map[types.NamespacedName][]string, success string) {
	for n := range reported {
		if now[n] == nil {
			delete(reported, n)
			h.report(n, t, "", success)
		}
	}
	for n, list := range now {
		reported[n] = true
		h.report(n, t, strings.Join(list, "; "), "")
	}
}

// reportHealthCheck takes in what became of listening for a Service's health check.
func (h *eventReporter) reportHealthCheck(p servicecheck.Problem) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	n := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
	if h.checkErrors[n] == nil {
		h.checkErrors[n] = map[netip.AddrPort]string{}
	}
	maps.DeleteFunc(h.checkErrors[n], func(at netip.AddrPort, _ string) bool { return at == p.Addr || at.Port() != p.Addr.Port() })
	if p.Err != nil {
		h.checkErrors[n][p.Addr] = p.Err.Error()
	}
	failure := ""
	for _, text := range h.checkErrors[n] {
		failure = max(failure, text)
	}
	if failure == "" {
		delete(h.checkErrors, n)
	} else {
		failure = "Node " + h.node + " cannot answer health checks: " + failure
	}
	h.report(n, eventCheck, failure, "Node "+h.node+" answers health checks")
}

// reportServer takes in what became of listening for a server of the proxy.
func (h *eventReporter) reportServer(name string, err error) {
	t, ok := serverEvents[name]
	switch {
	case h == nil || !ok:
	case err != nil:
		h.Failed(h.self(), t, err.Error())
	default:
		h.Recovered(h.self(), t, "The "+name+" server answers now")
	}
}

// enableEvents lets o write Events, if from has an API server to write them to.
func (o *statusReporter) enableEvents(from source.Source, log klog.Logger) {
	h, err := newEventReporter(from, o.node, o.metrics, log)
	if err != nil {
		log.Error(err, "There will be no Events")
	}
	if h != nil {
		h.problems = func() []track.Problem { return o.tracker.Problems() }
	}
	o.events = h
	o.warnDeprecatedMode()
}

// start writes Events in group until ctx ends.
func (h *eventReporter) start(ctx context.Context, group *errgroup.Group) {
	if h == nil {
		return
	}
	group.Go(func() error {
		h.Run(ctx)
		return nil
	})
}
