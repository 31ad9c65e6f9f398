// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package report passes what happens in the proxy to everything that shows it: health,
// metrics, states of Services, Events, health checks of Services and the log. Objects,
// rounds and states of the lease go in. Each reporter has one subject. Reports.Sequence
// lists them in the order in which they receive a round. It decides nothing about
// traffic.
package report

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"kubeproxy/common/condition"
	"kubeproxy/common/health"
	"kubeproxy/common/health/servicestate"
	"kubeproxy/common/kubeclient"
	"kubeproxy/common/metrics"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/source"
	"kubeproxy/common/track"
)

// Options are what Reports need to know.
type Options struct {
	Mode, Node string
	// DeprecatedMode is why Kubernetes is going to remove the mode, empty if it stays.
	DeprecatedMode string
	Families       []service.Family // with a backend
	// Unavailable is why the other families have none.
	Unavailable map[service.Family]string
	// SyncPeriod is the longest time between two rounds.
	SyncPeriod time.Duration
	Build      metrics.Build
	Features   []metrics.Feature
	// MetricGroups is as in metrics.Options.
	MetricGroups []string
	// PodsFromNode is whether pods are identified by the Node's podCIDRs.
	PodsFromNode bool
	// ProxyName and ExternalIPsIgnored are as in track.Options.
	ProxyName          string
	ExternalIPsIgnored bool

	// API is where Events are written, nil for nowhere.
	API *rest.Config
	// Health, if set, has conditions of the dataplane already.
	Health  *health.Monitor
	Tracker *track.Tracker
	Sources *Sources
	// Addresses returns the addresses of the node's interfaces, none if they are unknown.
	Addresses func() []netip.Addr
	// Relayed, if set, knows how connections through the process fare.
	Relayed *servicestate.Relayed
	// Observe, if set, adds what backends count to an observation.
	Observe func(*metrics.Observation)
	// Processes names the processes that look like service proxies of this node.
	Processes func() string
	// Listen and MaxConnections are for the health checks of Services.
	Listen         func(ctx context.Context, network, addr string) (net.Listener, error)
	MaxConnections int
	Log            klog.Logger
}

// Reports are the reporters of a proxy. All are complete when New returns.
type Reports struct {
	Health       *health.Monitor
	Metrics      *metrics.Metrics
	Services     *servicestate.Store
	Events       *Events
	OtherProxies *OtherProxies
	Silent       *Silent
	Ended        *Ended

	sink   sink
	checks *checks
	limits *limits
	node   string
	// addresses is as in Options.
	addresses func() []netip.Addr
	// podsFromNode is as in track.Options.
	podsFromNode atomic.Bool
	latency      *latency
	log          klog.Logger
	// problems are those that conditions show.
	problems []*problems
}

// New returns the Reports of a proxy that starts now, each part after those that it uses.
func New(o Options) *Reports {
	started := time.Now()
	if o.Addresses == nil {
		o.Addresses = func() []netip.Addr { return nil }
	}
	monitor := cmp.Or(o.Health, health.New(health.Options{}))
	monitor.Configure(health.Options{
		Families: o.Families, SyncPeriod: o.SyncPeriod, NodeRequired: o.Sources.api, Sources: o.Sources.report,
	})
	counts := metrics.New(metrics.Options{Backends: backendsOf(o), Build: o.Build, Features: o.Features, Groups: o.MetricGroups})
	kubeclient.CountRequests(counts)
	events := newEvents(o, counts)
	servers := newCheckServers(o, monitor, events)
	services := &servicestate.Store{
		Latest: o.Tracker.Latest, Problems: o.Tracker.Problems,
		Unanswered: servers.unanswered, Unavailable: o.Unavailable, Endpoints: o.Tracker.Choice, Addresses: o.Addresses,
		Labels: o.Tracker.Labels, Relayed: o.Relayed,
	}
	r := &Reports{
		Health: monitor, Metrics: counts, Services: services, Events: events,
		OtherProxies: &OtherProxies{health: monitor, events: events, processes: o.Processes, log: o.Log},
		Silent:       &Silent{uses: o.Tracker.SilentUses, events: events, log: o.Log, reported: map[types.NamespacedName]bool{}},
		Ended:        &Ended{events: events, log: o.Log, all: map[track.Ending]*ending{}, reported: map[types.NamespacedName]bool{}},
		checks:       newChecks(servers, services.Failing, o.Unavailable),
		limits:       &limits{mode: o.Mode, health: monitor, events: events, log: o.Log},
		node:         o.Node,
		addresses:    o.Addresses,
		problems:     newProblems(o.Tracker, monitor),
		latency:      newLatency(started),
		log:          o.Log,
	}
	r.sink = sink{
		Tracker: o.Tracker, health: monitor, metrics: counts, events: events, latency: r.latency, sources: o.Sources,
		node:         &nodeLog{log: o.Log, name: o.Node, podCIDRs: o.PodsFromNode},
		deprecations: &deprecations{log: o.Log, externalIPsIgnored: o.ExternalIPsIgnored, name: o.ProxyName, uses: map[types.NamespacedName]bool{}},
	}
	x := &metricsReader{health: monitor, services: services, sources: o.Sources, tracker: o.Tracker, silent: r.Silent, dataplane: o.Observe, started: started}
	counts.Observe(x.observe)
	o.Tracker.Subscribe(track.Listener{Found: r.problemsFound})
	r.podsFromNode.Store(o.PodsFromNode)
	r.reportUnavailable(o.Unavailable)
	warnDeprecatedMode(o.Mode, o.DeprecatedMode, events, o.Log)
	return r
}

func backendsOf(o Options) []metrics.Backend {
	var all []metrics.Backend
	for _, f := range o.Families {
		all = append(all, metrics.Backend{Mode: o.Mode, Family: f})
	}
	return all
}

// Sink returns the sink of the source: it reports objects and passes them to the Tracker.
func (r *Reports) Sink() source.Sink { return r.sink }

// Run writes Events, answers health checks and warns of an unknown Node, until ctx ends.
func (r *Reports) Run(ctx context.Context) {
	var all sync.WaitGroup
	all.Go(func() { r.Events.Run(ctx) })
	all.Go(func() { r.checks.servers.Run(ctx) })
	all.Go(func() { r.sink.node.warnIfUnknown(ctx, r.sink.sources, r.sink.Tracker) })
	all.Wait()
}

// Reconfigure applies changed settings of the Tracker.
func (r *Reports) Reconfigure(o track.Options) { r.podsFromNode.Store(o.PodsFromNode) }

// Queued records that a backend has a pending change from now on.
func (r *Reports) Queued(mode string, f service.Family) {
	r.Health.Queued(f)
	r.Metrics.Queued(metrics.Backend{Mode: mode, Family: f}, time.Now())
}

// Standby records that another process programs the node for want. Health checks of
// Services are still answered, as this process has their ports.
func (r *Reports) Standby(f service.Family, want *service.Snapshot) {
	now := time.Now()
	r.Metrics.ChangesSynced()
	r.latency.takeProgrammed(f, now, now) // the latency of the other process is unknown
	r.checks.update(f, want)
}

// mostProblems is how many problems that appear at once are logged. The rest is counted.
const mostProblems = 20

// problemsFound records new problems.
func (r *Reports) problemsFound(all []track.Problem) {
	for _, p := range all[:min(len(all), mostProblems)] {
		r.logProblem(p)
	}
	if n := len(all) - mostProblems; n > 0 {
		r.log.Error(nil, "There are more problems: kube-proxy status and /services have them all", "more", n)
	}
	for _, p := range all {
		r.Services.ProblemFound(p, time.Now())
		for _, x := range r.problems {
			x.problemFound(p)
		}
		r.Events.problemFound()
	}
}

func (r *Reports) reportProblems(Round) {
	for _, x := range r.problems {
		x.report()
	}
}

// logProblem logs p. One that concerns the own Node or a ServiceCIDR has no Service.
func (r *Reports) logProblem(p track.Problem) {
	if p.Kind != track.OfService {
		r.log.Error(nil, p.Message, "field", p.Field)
		return
	}
	r.log.Error(nil, p.Message, "service", p.Service.String(), "field", p.Field)
}

// Round is a round of one backend.
type Round struct {
	Mode   string
	Family service.Family
	reconcile.Result
}

// InForce reports whether the rules are in force, except for single ports.
func (r Round) InForce() bool { return reconcile.OnlyPortErrors(r.Err) }

// partly reports whether at least some of the rules are in force.
func (r Round) partly() bool { return r.Err == nil || len(reconcile.PortErrors(r.Err)) > 0 }

// Reporter reports rounds on one subject. Backends call it from their own goroutines.
type Reporter interface{ Report(Round) }

// Func is a Reporter.
type Func func(Round)

// Report implements Reporter.
func (f Func) Report(r Round) { f(r) }

// Step is a place in a Sequence.
type Step struct {
	Name string
	// For selects rounds, nil for all.
	For func(Round) bool
	Reporter
}

// Sequence is a Reporter that passes each round to its steps in their order.
type Sequence []Step

// Report implements Reporter.
func (s Sequence) Report(r Round) {
	for _, step := range s {
		if step.For == nil || step.For(r) {
			step.Reporter.Report(r)
		}
	}
}

// Backend has the functions of a backend that receive its rounds. Those that are nil are left out.
type Backend struct {
	Log klog.Logger
	// Takeover receives each round.
	Takeover func(reconcile.Result)
	// InForce is called after each round whose rules are in force, but for single ports.
	InForce func()
	// CleanConntrack deletes conntrack entries that a round made stale, and returns how many.
	CleanConntrack func(reconcile.Result) (flows int, err error)
}

// Sequence returns the reporters that receive the rounds of b, in this order. Health
// comes first, and the log follows every condition, so that a reader of the log finds the
// condition. Cleanup of conntrack entries comes last, as it takes long.
func (r *Reports) Sequence(b Backend) Sequence {
	log := newRoundLogger(b.Log)
	inForce, conditions := Round.InForce, r.fromRound(b.Log)
	s := Sequence{
		{"health", nil, Func(func(x Round) { r.Health.Result(x.Family, x.Result) })},
		{"metrics", nil, Func(r.countRound)},
		{"services", nil, Func(func(x Round) { r.Services.Result(x.Family, x.Result) })},
		{"events", nil, r.Events},
		{"drift", nil, r.OtherProxies},
		{"limits", inForce, r.limits},
		{"conditions", inForce, Func(func(x Round) { r.reportConditions(conditions, x) })},
		{"latency", inForce, Func(r.countInForce)},
		{"checks", inForce, r.checks},
		{"problems", inForce, Func(r.reportProblems)},
		{"log", nil, log},
	}
	if b.Takeover != nil {
		s = append(s, Step{"takeover", nil, Func(func(x Round) { b.Takeover(x.Result) })})
	}
	if b.InForce != nil {
		s = append(s, Step{"start", inForce, Func(func(Round) { b.InForce() })})
	}
	if b.CleanConntrack != nil {
		s = append(s, Step{"conntrack", Round.partly, Func(func(x Round) { r.cleanConntrack(b, x, log) })})
	}
	return s
}

func (r *Reports) countRound(x Round) {
	r.Metrics.Result(metrics.Backend{Mode: x.Mode, Family: x.Family}, x.Result)
}

func (r *Reports) countInForce(x Round) {
	r.Metrics.ChangesSynced()
	for _, after := range r.latency.takeProgrammed(x.Family, x.Start, x.Start.Add(x.Took)) {
		r.Metrics.InForce(x.Family, after)
	}
}

func (r *Reports) cleanConntrack(b Backend, x Round, log *roundLogger) {
	start := time.Now()
	flows, err := b.CleanConntrack(x.Result)
	r.Metrics.Conntrack(x.Family, time.Since(start), flows)
	text := ""
	if err != nil {
		text = "stale connections are not removed, so UDP clients stay with endpoints that left until they pause: " + err.Error()
	}
	r.Health.SetCondition(condition.StaleConnections.Of(x.Family.String()), text)
	log.logCleanup(err)
}
