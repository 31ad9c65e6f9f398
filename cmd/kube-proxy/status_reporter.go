// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"kubeproxy/common/health"
	"kubeproxy/common/health/servicecheck"
	"kubeproxy/common/health/servicestate"
	"kubeproxy/common/kubeclient"
	"kubeproxy/common/lease"
	"kubeproxy/common/metrics"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/config"
)

// statusReporter receives desired states and results of rounds, and passes them to
// health, metrics, Events and status. It derives everything that it reports from results.
type statusReporter struct {
	mode         string
	node         string
	health       *health.Monitor
	metrics      *metrics.Metrics
	services     *servicestate.Store
	checks       *checks
	sources      *sourceStatus
	latency      *latency
	nodeLog      *nodeLog
	tracker      *track.Tracker
	events       *eventReporter
	packets      func() *metrics.Packets
	relayMetrics func() *metrics.Relay
	// localhost is what localhostMetrics returns.
	localhost func() map[service.Family]metrics.Localhost
	limits    limits
	refusals  refusals
	// deprecations warns of features that Kubernetes is going to remove.
	deprecations *deprecations
	unavailable  [2]string // why a family is missing; each loop writes its own element
	log          klog.Logger
	lease        *lease.Lease
	others       otherProxyState
	// podsFromNode is whether pods are identified by the Node's podCIDRs.
	podsFromNode atomic.Bool
}

// newStatusReporter returns the statusReporter of backends. sources holds the times of
// contact with the sources.
func newStatusReporter(c *config.Config, backends []*backend, node string, sources *sourceStatus, log klog.Logger) *statusReporter {
	o := &statusReporter{mode: backends[0].mode, limits: limits{mode: backends[0].mode}, node: node, sources: sources, latency: newLatency(time.Now()), nodeLog: &nodeLog{log: log, name: node, podCIDRs: c.DetectLocalMode == config.NodeCIDR}, log: log}
	o.packets = func() *metrics.Packets { return packetMetrics(backends) }
	o.relayMetrics = func() *metrics.Relay { return relayMetrics(backends) }
	o.localhost = func() map[service.Family]metrics.Localhost { return localhostMetrics(backends) }
	o.deprecations = newDeprecations(c, log)
	o.podsFromNode.Store(c.DetectLocalMode == config.NodeCIDR)
	var families []service.Family
	var named []metrics.Backend
	for _, b := range backends {
		families = append(families, b.family)
		named = append(named, metrics.Backend{Mode: b.mode, Family: b.family})
	}
	_, resync := syncPeriods(c)
	o.health = health.New(health.Options{
		Families: families, SyncPeriod: resync, NodeRequired: sources.api, Sources: sources.report,
	})
	o.metrics = metrics.New(metrics.Options{Backends: named, Build: buildMetric(), Features: featureMetrics(c), Observe: o.observation})
	kubeclient.CountRequests(o.metrics)
	o.observeConditions(backends)
	for _, b := range backends {
		if b.registerMetrics != nil {
			b.registerMetrics(o.metrics)
		}
	}
	o.newLease(c.ProxyName)
	o.services = &servicestate.Store{
		Latest:     func() *service.Snapshot { return o.tracker.Latest() },
		Problems:   o.serviceProblems,
		Unanswered: func() []servicestate.Problem { return o.checks.unanswered() },
	}
	o.checks = newChecks(&servicecheck.Servers{
		Serving:     o.health.Serving,
		Listen:      listenOn,
		Connections: health.NewConnections(maxConnections()),
		Report: func(p servicecheck.Problem) {
			o.checks.onProblems(o.checks.servers.Problems())
			o.events.reportHealthCheck(p)
			if p.Err != nil {
				log.Error(p.Err, "A health check of a Service is not served", "service", p.Namespace+"/"+p.Name, "address", p.Addr.String())
			}
		},
	}, o.services.Failing)
	o.checks.onProblems = func(all []servicecheck.Problem) {
		o.health.SetBlockingCondition("health-checks", checkProblemsSummary(all), checkProblemsDetail(all))
	}
	return o
}

func featureMetrics(c *config.Config) []metrics.Feature {
	var all []metrics.Feature
	for _, f := range c.Features() {
		all = append(all, metrics.Feature(f))
	}
	return all
}

func buildMetric() metrics.Build {
	b := buildInfo()
	return metrics.Build{
		GitVersion: b.Version, GitCommit: b.Revision, GitTreeState: b.treeState(), BuildDate: b.Time,
		GoVersion: b.Go, Compiler: b.Compiler, Platform: b.Platform,
	}
}

// changeQueued records that b has a pending change from now on.
func (o *statusReporter) changeQueued(b *backend) {
	o.health.Queued(b.family)
	o.metrics.Queued(metrics.Backend{Mode: b.mode, Family: b.family}, time.Now())
}

// recordRound records the result of a round of b for a snapshot.
func (o *statusReporter) recordRound(b *backend, s *service.Snapshot, r reconcile.Result) {
	extent := metrics.Partial
	if r.FullSync {
		extent = metrics.Full
	}
	o.health.Result(b.family, r)
	o.metrics.Result(metrics.Backend{Mode: b.mode, Family: b.family}, metrics.Round{Result: r, Snapshot: s, Extent: extent, Restored: b.restoreMetrics()})
	o.services.Result(b.family, s, r)
	o.events.reportRound(b.family, r.Generation, r)
	o.reportDrift(b.family, r)
	if r.Err != nil && !health.OnlyPortErrors(r.Err) {
		return
	}
	o.reportLimits(b.family, r)
	o.reportDegraded(b)
	o.reportUnavailable(b.family, s, r.Unavailable)
	o.metrics.ChangesSynced()
	for _, after := range o.latency.takeProgrammed(b.family, r.Start, r.Start.Add(r.Took)) {
		o.metrics.InForce(b.family, after)
	}
	o.checks.update(b.family, s)
	o.reportUnknownPods(b.family, s)
	o.reportNodePorts(b.family, s)
	o.reportRefusedAddresses()
}

func (o *statusReporter) serviceProblems() []servicestate.Problem {
	var all []servicestate.Problem
	for _, p := range o.tracker.Problems() {
		all = append(all, problemOf(p))
	}
	return all
}

func problemOf(p track.Problem) servicestate.Problem {
	return servicestate.Problem{
		Namespace: p.Service.Namespace, Name: p.Service.Name, Field: p.Field, Message: p.Message,
	}
}

// problemFound records a new problem.
func (o *statusReporter) problemFound(p track.Problem) {
	o.services.ProblemFound(problemOf(p), time.Now())
	if p.Refused {
		o.refusals.pending.Store(true)
	}
	o.events.problemFound()
}

// observation returns the present values of metrics.
func (o *statusReporter) observation() metrics.Observation {
	r := o.health.Report()
	seen := metrics.Observation{
		OldestPending: map[service.Family]time.Duration{},
		Services:      map[string]int{}, Unserved: map[string]int{}, Skipped: map[string]int{},
	}
	for _, f := range service.Families {
		status, programmed := r.Status[f.String()]
		if !programmed {
			continue
		}
		seen.OldestPending[f] = 0
		if at := status.OldestPending; at != nil {
			seen.OldestPending[f] = r.CurrentTime.Sub(*at)
		}
	}
	for _, s := range o.sources.report() {
		x := metrics.Source{Name: s.Name, Synced: s.Synced, Silent: o.sources.timeoutCount(s.Name), Faults: s.Faults}
		switch {
		case !s.LastContact.IsZero():
			x.Staleness = r.CurrentTime.Sub(s.LastContact)
		case !s.Synced:
			// A source that was never read counts as read at the start.
			x.Staleness = r.CurrentTime.Sub(o.latency.start)
		}
		seen.Sources = append(seen.Sources, x)
	}
	known := o.services.Summary()
	for state, n := range known.States {
		seen.Services[string(state)] = n
	}
	for reason, n := range known.Unserved {
		seen.Unserved[string(reason)] = n
	}
	for _, p := range o.tracker.Problems() {
		seen.Skipped[fieldOf(p.Field)]++
	}
	seen.Tracked = trackedConnections()
	seen.Packets, seen.Relay = o.packets(), o.relayMetrics()
	seen.Localhost = o.localhost()
	seen.Standby = r.Standby != ""
	for name := range r.Conditions {
		seen.Conditions = append(seen.Conditions, name)
	}
	return seen
}
