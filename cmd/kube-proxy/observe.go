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
	"kubeproxy/common/lease"
	"kubeproxy/common/metrics"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/config"
)

// observers are told what is to be done and how it went. They make nothing
// up: what they say comes from results alone.
type observers struct {
	mode    string
	node    string
	health  *health.Monitor
	metrics *metrics.Metrics
	book    *servicestate.Book
	checks  *checks
	contact *contacts
	latency *latency
	nodeLog *nodeLog
	tracker *track.Tracker
	herald  *herald
	packets func() *metrics.Packets
	relayed func() *metrics.Relay
	// localhost is what localhostMetrics returns.
	localhost func() map[service.Family]metrics.Localhost
	wish      *wishFollower
	limits    limits
	refusals  refusals
	// deprecations warns of what Kubernetes is going to remove.
	deprecations *deprecations
	gone         [2]string // why a family cannot be had, each for its own loop
	log          klog.Logger
	lease        *lease.Lease
	rivals       rivals
	// podsFromNode says that pods are to be told by the Node's podCIDRs.
	podsFromNode atomic.Bool
}

// newObservers returns the observers of backends. Sources say of themselves
// in contact when they last heard of something.
func newObservers(c *config.Config, backends []*backend, node string, contact *contacts, log klog.Logger) *observers {
	o := &observers{mode: backends[0].mode, limits: limits{mode: backends[0].mode}, node: node, contact: contact, latency: newLatency(time.Now()), nodeLog: &nodeLog{log: log, name: node, podCIDRs: c.DetectLocalMode == config.NodeCIDR}, log: log}
	o.packets = func() *metrics.Packets { return packets(backends) }
	o.relayed = func() *metrics.Relay { return relayUse(backends) }
	o.localhost = func() map[service.Family]metrics.Localhost { return localhostMetrics(backends) }
	o.deprecations = newDeprecations(c, log)
	o.podsFromNode.Store(c.DetectLocalMode == config.NodeCIDR)
	var families []service.Family
	var named []metrics.Backend
	for _, b := range backends {
		families = append(families, b.family)
		named = append(named, metrics.Backend{Mode: b.mode, Family: b.family})
	}
	_, most := syncPeriods(c)
	o.health = health.New(health.Options{
		Families: families, SyncPeriod: most, NodeRequired: contact.api, Sources: contact.sources,
	})
	o.metrics = metrics.New(metrics.Options{Backends: named, Build: buildMetric(), Features: featureMetrics(c), Observe: o.observe})
	countRequests(o.metrics)
	o.observeRemarks(backends)
	for _, b := range backends {
		if b.count != nil {
			b.count(o.metrics)
		}
	}
	o.newLease(c.ProxyName)
	o.book = &servicestate.Book{
		Latest:     func() *service.Snapshot { return o.tracker.Latest() },
		Problems:   o.problems,
		Unanswered: func() []servicestate.Problem { return o.checks.unanswered() },
	}
	o.checks = newChecks(&servicecheck.Servers{
		Serving:     o.health.Serving,
		Listen:      listenOn,
		Connections: health.NewConnections(mostConnections()),
		Report: func(p servicecheck.Problem) {
			o.checks.after(o.checks.servers.Problems())
			o.herald.check(p)
			if p.Err != nil {
				log.Error(p.Err, "A health check of a Service is not served", "service", p.Namespace+"/"+p.Name, "address", p.Addr.String())
			}
		},
	}, o.book.Failing)
	o.checks.after = func(all []servicecheck.Problem) {
		o.health.SetBlockingCondition("health-checks", unheardCount(all), unheard(all))
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
	b := builtFrom()
	return metrics.Build{
		GitVersion: b.Version, GitCommit: b.Revision, GitTreeState: b.treeState(), BuildDate: b.Time,
		GoVersion: b.Go, Compiler: b.Compiler, Platform: b.Platform,
	}
}

// queued notes that b has something to do from now on.
func (o *observers) queued(b *backend) {
	o.health.Queued(b.family)
	o.metrics.Queued(metrics.Backend{Mode: b.mode, Family: b.family}, time.Now())
}

// result takes in how a round of b went that was for a snapshot.
func (o *observers) result(b *backend, s *service.Snapshot, r reconcile.Result) {
	extent := metrics.Partial
	if r.Whole {
		extent = metrics.Full
	}
	o.health.Result(b.family, r)
	o.metrics.Result(metrics.Backend{Mode: b.mode, Family: b.family}, metrics.Round{Result: r, Snapshot: s, Extent: extent, Restored: b.restored()})
	o.book.Result(b.family, s, r)
	o.herald.result(b.family, r.Generation, r)
	o.disputed(b.family, r)
	if r.Err != nil && !health.Partial(r.Err) {
		return
	}
	o.limited(b.family, r)
	o.lacking(b)
	o.without(b.family, s, r.Without)
	o.metrics.ChangesTaken()
	for _, after := range o.latency.settle(b.family, r.Start, r.Start.Add(r.Took)) {
		o.metrics.InForce(b.family, after)
	}
	o.checks.follow(b.family, s)
	o.unknownPods(b.family, s)
	o.pendingNodePorts(b.family, s)
	o.refusedAddresses()
}

func (o *observers) problems() []servicestate.Problem {
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

// problem notes a problem when it comes up.
func (o *observers) problem(p track.Problem) {
	o.book.Noticed(problemOf(p), time.Now())
	if p.Refused {
		o.refusals.fresh.Store(true)
	}
	o.herald.problem()
}

// observe is what metrics show of the moment.
func (o *observers) observe() metrics.Observation {
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
	for _, s := range o.contact.sources() {
		x := metrics.Source{Name: s.Name, Synced: s.Synced, Silent: o.contact.given(s.Name), Faults: s.Faults}
		switch {
		case !s.LastContact.IsZero():
			x.Staleness = r.CurrentTime.Sub(s.LastContact)
		case !s.Synced:
			// What was never read is no fresher than what was read at the start.
			x.Staleness = r.CurrentTime.Sub(o.latency.start)
		}
		seen.Sources = append(seen.Sources, x)
	}
	known := o.book.Summary()
	for state, n := range known.States {
		seen.Services[string(state)] = n
	}
	for reason, n := range known.Unserved {
		seen.Unserved[string(reason)] = n
	}
	for _, p := range o.tracker.Problems() {
		seen.Skipped[fieldOf(p.Field)]++
	}
	seen.Tracked = tracked()
	seen.Packets, seen.Relay = o.packets(), o.relayed()
	seen.Localhost = o.localhost()
	seen.Standby = r.Standby != ""
	for name := range r.Conditions {
		seen.Conditions = append(seen.Conditions, name)
	}
	return seen
}
