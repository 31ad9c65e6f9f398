// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"kubeproxy/common/events"
	"kubeproxy/common/health"
	"kubeproxy/common/metrics"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
)

// The topics of Events. A Service without endpoints, here or at all, is ordinary.
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

// Events writes Kubernetes Events about the node and Services, with an API server.
type Events struct {
	*events.Recorder
	node     string
	problems func() []track.Problem

	mu          sync.Mutex
	uids        map[types.NamespacedName]types.UID
	failedPorts [2]map[types.NamespacedName][]string // failed ports of Services, by family
	ruleErrors  [2]string                            // why a family is not programmed
	checkErrors map[types.NamespacedName]map[netip.AddrPort]string
	limits      map[types.NamespacedName]string // what the mode cannot do
	skipped     map[types.NamespacedName]bool   // Services with an Event
	refused     map[types.NamespacedName]bool   // the same for addresses that only this node refuses
	// deprecated are the Services with an Event about a deprecated field.
	deprecated         map[types.NamespacedName]bool
	reportedGeneration uint64 // the generation that skipped belongs to

	// newProblems is set when there is an unreported problem. It is atomic, as problems
	// are found under the lock of the tracker.
	newProblems atomic.Bool
}

// newEvents returns Events that write nothing if there is no API server to write to.
func newEvents(o Options, m *metrics.Metrics) *Events {
	ev := &Events{
		node: o.Node, problems: o.Tracker.Problems, uids: map[types.NamespacedName]types.UID{},
		checkErrors: map[types.NamespacedName]map[netip.AddrPort]string{}, skipped: map[types.NamespacedName]bool{}, refused: map[types.NamespacedName]bool{},
		limits: map[types.NamespacedName]string{}, deprecated: map[types.NamespacedName]bool{},
	}
	if o.API == nil {
		return ev
	}
	var err error
	ev.Recorder, err = events.New(events.Options{
		Config: o.API, Node: o.Node, Written: m.EventWritten, Dropped: m.EventDropped,
		Report: func(err error) {
			var args []any
			if apierrors.IsForbidden(err) {
				args = []any{"remedy", "bind the account to a ClusterRole that may create and patch events, such as system:node-proxier"}
			}
			o.Log.Error(err, "An Event could not be written; the dataplane does not depend on it", args...)
		},
	})
	if err != nil {
		o.Log.Error(err, "There will be no Events")
	}
	ev.Failed(ev.self(), eventStarting, "kube-proxy "+o.Build.GitVersion+" starts")
	return ev
}

// self returns the own Node as the object of Events, with its name as UID, as kubelets do.
func (ev *Events) self() events.Object {
	return events.Object{Kind: "Node", Name: ev.node, UID: types.UID(ev.node)}
}

// setService records a Service that Events may be about.
func (ev *Events) setService(s *corev1.Service) {
	ev.mu.Lock()
	defer ev.mu.Unlock()
	n := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
	if old, ok := ev.uids[n]; ok && old != s.UID {
		ev.Forget(serviceObject(n, old)) // another Service of the same name
	}
	if s.Spec.HealthCheckNodePort == 0 && ev.checkErrors[n] != nil { // no later report would clear it
		delete(ev.checkErrors, n)
		ev.Forget(serviceObject(n, s.UID))
	}
	ev.uids[n] = s.UID
	ev.report(n, eventLimited, ev.limits[n], "")
}

// removeService removes the record of a Service.
func (ev *Events) removeService(n types.NamespacedName) {
	ev.mu.Lock()
	defer ev.mu.Unlock()
	ev.Forget(serviceObject(n, ev.uids[n]))
	delete(ev.uids, n)
	delete(ev.checkErrors, n)
	delete(ev.skipped, n)
	delete(ev.refused, n)
	delete(ev.deprecated, n)
}

func serviceObject(n types.NamespacedName, uid types.UID) events.Object {
	return events.Object{Kind: "Service", Namespace: n.Namespace, Name: n.Name, UID: uid}
}

// report reports a Service's state on a topic, success if failure is empty, unless it was deleted.
func (ev *Events) report(n types.NamespacedName, t events.Topic, failure, success string) {
	uid, ok := ev.uids[n]
	switch {
	case !ok:
	case failure != "":
		ev.Failed(serviceObject(n, uid), t, failure)
	default:
		ev.Recovered(serviceObject(n, uid), t, success)
	}
}

// Report implements Reporter.
func (ev *Events) Report(x Round) {
	ev.mu.Lock()
	defer ev.mu.Unlock()
	f, r := x.Family, x.Result
	defer ev.reportSkipped(r.Generation)
	ev.ruleErrors[f] = ""
	if !x.InForce() {
		ev.ruleErrors[f] = f.String() + ": " + r.Err.Error()
		ev.reportRules()
		return
	}
	ev.reportRules()
	now := map[types.NamespacedName][]string{}
	for _, e := range reconcile.PortErrors(r.Err) {
		if reconcile.Unsupported(e.Err) { // reportLimits covers it
			continue
		}
		n := types.NamespacedName{Namespace: e.Name.Namespace, Name: e.Name.Name}
		now[n] = append(now[n], fmt.Sprintf("port %s/%s, %s: %v", e.Name.Port, e.Name.Protocol, f, e.Err))
	}
	before := ev.failedPorts[f]
	ev.failedPorts[f] = now
	for n := range before {
		ev.reportPorts(n)
	}
	for n := range now {
		ev.reportPorts(n)
	}
}

func (ev *Events) reportRules() {
	if ev.ruleErrors == [2]string{} {
		ev.Recovered(ev.self(), eventRules, "All rules are in force again")
		return
	}
	list := slices.DeleteFunc(slices.Clone(ev.ruleErrors[:]), func(s string) bool { return s == "" })
	ev.Failed(ev.self(), eventRules, strings.Join(list, "; "))
}

// maxNamed is how many failed ports an Event names.
const maxNamed = 3

// joinFirst joins the first texts, and counts the rest.
func joinFirst(all []string) string {
	if len(all) > maxNamed {
		all = append(all[:maxNamed:maxNamed], fmt.Sprintf("and %d more", len(all)-maxNamed))
	}
	return strings.Join(all, "; ")
}

func (ev *Events) reportPorts(n types.NamespacedName) {
	var all []string
	for _, f := range service.Families {
		all = append(all, ev.failedPorts[f][n]...)
	}
	failure := ""
	if len(all) > 0 {
		failure = "Node " + ev.node + " could not program " + joinFirst(all)
	}
	ev.report(n, eventPorts, failure, "Node "+ev.node+" has programmed the Service")
}

// problemFound records that there is a new problem. The Event follows after the next
// round, together with the other problems of the Service.
func (ev *Events) problemFound() { ev.newProblems.Store(true) }

// reportSkipped reports which parts of Services are left out. The text must be the same
// on every node, except for addresses that only this node refuses.
func (ev *Events) reportSkipped(generation uint64) {
	if !ev.newProblems.Swap(false) && (len(ev.skipped)+len(ev.refused) == 0 || ev.reportedGeneration == generation) {
		return
	}
	ev.reportedGeneration = generation
	now, nodeOnly := map[types.NamespacedName][]string{}, map[types.NamespacedName][]string{}
	for _, p := range ev.problems() {
		switch text := p.Field + ": " + p.Message; {
		case p.Kind != track.OfService:
		case p.ThisNode:
			nodeOnly[p.Service] = append(nodeOnly[p.Service], text)
		default:
			now[p.Service] = append(now[p.Service], text)
		}
	}
	ev.reportEach(eventSkipped, ev.skipped, now, "")
	ev.reportEach(eventRefused, ev.refused, nodeOnly, "Node "+ev.node+" serves all addresses of the Service")
}

// reportEach reports the Services in now on a topic, and success for others in reported.
func (ev *Events) reportEach(t events.Topic, reported map[types.NamespacedName]bool, now map[types.NamespacedName][]string, success string) {
	for n := range reported {
		if now[n] == nil {
			delete(reported, n)
			ev.report(n, t, "", success)
		}
	}
	for n, list := range now {
		reported[n] = true
		ev.report(n, t, strings.Join(list, "; "), "")
	}
}

// reportHealthCheck reports whether the listener of a Service's health check works.
func (ev *Events) reportHealthCheck(p health.CheckProblem) {
	ev.mu.Lock()
	defer ev.mu.Unlock()
	n := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
	if ev.checkErrors[n] == nil {
		ev.checkErrors[n] = map[netip.AddrPort]string{}
	}
	maps.DeleteFunc(ev.checkErrors[n], func(at netip.AddrPort, _ string) bool { return at == p.Addr || at.Port() != p.Addr.Port() })
	if p.Err != nil {
		ev.checkErrors[n][p.Addr] = p.Err.Error()
	}
	failure := ""
	for _, text := range ev.checkErrors[n] {
		failure = max(failure, text)
	}
	if failure == "" {
		delete(ev.checkErrors, n)
	} else {
		failure = "Node " + ev.node + " cannot answer health checks: " + failure
	}
	ev.report(n, eventCheck, failure, "Node "+ev.node+" answers health checks")
}

// ReportServer reports whether the listener of a server of the proxy works.
func (ev *Events) ReportServer(name string, err error) {
	t, ok := serverEvents[name]
	switch {
	case !ok:
	case err != nil:
		ev.Failed(ev.self(), t, err.Error())
	default:
		ev.Recovered(ev.self(), t, "The "+name+" server answers now")
	}
}
