// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/common/condition"
	"kubeproxy/common/health"
	"kubeproxy/common/health/servicestate"
	"kubeproxy/common/lease"
	"kubeproxy/common/metrics"
	"kubeproxy/common/peers"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/report"
	"kubeproxy/common/service"
	"kubeproxy/common/silence"
	"kubeproxy/common/source"
	"kubeproxy/common/takeover"
	"kubeproxy/common/track"
	"kubeproxy/common/traffic"
	"kubeproxy/config"
	linuxsilence "kubeproxy/platform/linux/silence"
	"kubeproxy/platform/mode"
	"kubeproxy/platform/modes"
)

// firstRetry is the pause after a first failed round, and doubles up to the sync period.
const firstRetry = 250 * time.Millisecond

// watchPause is the pause after a failure of the watch.
const watchPause = 5 * time.Second

// watch reports foreign changes to m's rules to the loop until ctx ends. A failure of the
// watch does not end the proxy, because a resync finds drift, too.
func (m *member) watch(ctx context.Context) error {
	for ctx.Err() == nil {
		err := m.loop.Backend.Watch(ctx, m.loop.DataplaneChanged)
		if ctx.Err() != nil {
			return nil
		}
		klog.FromContext(ctx).Error(err, "The watch of the rules for changes by others ended", "backend", m.String(), "retry", watchPause)
		reconcile.Pause(ctx, watchPause)
		m.loop.DataplaneChanged()
	}
	return nil
}

// Selected is a mode that works here, with its backends.
type Selected struct {
	mode.Descriptor
	Config   *config.Config  // with the mode
	Origin   string          // what selected it
	Backends []*mode.Backend // at least one
	// Unavailable holds why a family has no backend.
	Unavailable map[service.Family]string
	health      *health.Monitor // which the backends know
	relayed     *servicestate.Relayed
	traffic     *traffic.Collector // nil if nothing is counted
	silent      *silence.Box       // nil where nothing tells of silent endpoints
	draws       func() bool        // see mode.Setup
	drawn       func(service.Address)
	peers       *wantedPeers
}

// Candidate is a mode that may be selected.
type Candidate struct {
	mode.Descriptor
	origin   string // what requests it
	disabled bool   // a feature gate forbids it
}

// Candidates lists the modes to try, in order. annotated is the mode in the annotation of
// the Node. It is used only if no mode is configured.
func (o *Options) Candidates(c *config.Config, annotated v1alpha1.ProxyMode) []Candidate {
	var all []Candidate
	if d, ok := o.Modes.Find(string(c.Mode), c.OS); ok {
		all = append(all, Candidate{Descriptor: d, origin: o.modeOrigin()})
		if !o.Fallback || d.FallbackRank == 0 {
			return all
		}
		for _, next := range o.Modes.Fallbacks(c.OS) {
			if next.FallbackRank > d.FallbackRank {
				all = append(all, Candidate{Descriptor: next, origin: fmt.Sprintf("--proxy-mode-fallback, since %s cannot work here", c.Mode)})
			}
		}
		return all
	}
	if d, ok := o.Modes.Find(string(annotated), c.OS); ok {
		all = append(all, Candidate{d, "the Node's annotation " + modeAnnotation, c.SwitchedOff(annotated)})
	}
	for _, d := range o.Modes.Defaults(c.OS) {
		if d.Name != annotated {
			all = append(all, Candidate{Descriptor: d, origin: "the best that works here"})
		}
	}
	return all
}

// modeOrigin returns where the mode is configured.
func (o *Options) modeOrigin() string {
	if o.FlagSet != nil && o.FlagSet.Changed("proxy-mode") {
		return "--proxy-mode"
	}
	return o.Flags.Config
}

// selectMode opens the candidates in order and returns the first that works. It logs why
// earlier ones do not. If none works, the error lists the reason of each.
func selectMode(log klog.Logger, all []Candidate, open func(Candidate) (*Selected, error)) (*Selected, error) {
	if len(all) == 0 {
		return nil, mode.ErrNoSystem
	}
	var errs []error
	for i, w := range all {
		x, err := w.open(open)
		if err == nil {
			return x, nil
		}
		errs = append(errs, err)
		if i+1 < len(all) {
			log.Info("Warning: a mode cannot work here; trying the next", "mode", w.Name, "next", all[i+1].Name, "err", err.Error(), "nextFrom", all[i+1].origin)
		}
	}
	return nil, errors.Join(errs...)
}

func (ca Candidate) open(open func(Candidate) (*Selected, error)) (*Selected, error) {
	if ca.disabled {
		return nil, fmt.Errorf("mode %s is switched off by a feature gate", ca.Name)
	}
	return open(ca)
}

// configFor returns c with the mode of w.
func (ca Candidate) configFor(c *config.Config) *config.Config {
	now := *c
	now.Mode = ca.Name
	return &now
}

// newBackends selects a mode, by c or else the Node's annotation, and returns its backends.
func (o *Options) newBackends(ctx context.Context, c *config.Config, annotated v1alpha1.ProxyMode) (*Selected, error) {
	return selectMode(klog.FromContext(ctx), o.Candidates(c, annotated), func(w Candidate) (*Selected, error) { return o.open(ctx, c, w) })
}

// open returns the backends of w, or in a sentence why the mode cannot work here.
func (o *Options) open(ctx context.Context, c *config.Config, w Candidate) (*Selected, error) {
	if err := o.Modes.CheckNamed(c, w.Descriptor); err != nil {
		return nil, err
	}
	x := &Selected{Descriptor: w.Descriptor, Config: w.configFor(c), Origin: w.origin, health: health.New(health.Options{})}
	var err error
	x.Backends, x.Unavailable, err = modes.Open(ctx, w.Descriptor, x.setup(klog.FromContext(ctx)))
	if errors.Is(err, mode.ErrNoSystem) {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("mode %s cannot work here: %w", w.Name, err)
	}
	return x, nil
}

// setup returns what the mode of x gets from the process.
func (se *Selected) setup(log klog.Logger) mode.Setup {
	s := Setup(se.Config)
	s.DetailedCondition, s.Progress = (&report.Dataplane{Health: se.health, Log: log}).Condition, se.health.Progress
	se.relayed = &servicestate.Relayed{Condition: func(text, detail string) { se.health.SetDetailedCondition(condition.Unreached, text, detail) }, Log: func(f service.Family, name service.PortName, why string) {
		log.Info("Warning: connections to a Service fail, because its endpoints do not answer",
			"service", name.String(), "protocol", name.Protocol.String(), "family", f.String(), "err", why)
	}}
	s.Attempted = func(f service.Family, name service.PortName, endpoint netip.AddrPort, err error) {
		if name.Protocol != service.UDP || !errors.Is(err, os.ErrDeadlineExceeded) { // many servers answer nobody
			se.relayed.Attempted(f, name, endpoint, err)
		}
		if e, tells := linuxsilence.OfRelay(name, endpoint, err); tells && se.silent != nil {
			se.silent.Observe(e)
		}
	}
	s.Silent = func() *silence.Box { return se.silent }
	s.Draws = func() bool { return se.draws() }
	s.Drawn = func(e service.Address) { se.drawn(e) }
	s.Peers = func() mode.Peers { return se.peers }
	return s
}

// newBox returns what decides which endpoints do not answer, nil where nothing tells. report gets
// them after the Tracker.
func newBox(c *config.Config, t *track.Tracker, report func(map[service.Address]silence.Record)) *silence.Box {
	if c.OS != config.Linux {
		return nil
	}
	return silence.New(silence.Options{
		Dial: linuxsilence.Dial, Peers: t.Peers, SameNode: t.SameNode,
		Changed: func(all map[service.Address]silence.Record) {
			since := map[service.Address]time.Time{}
			for e, r := range all {
				since[e] = r.Since
			}
			t.SetSilent(since)
			report(all)
		},
	})
}

// followSilence finds endpoints that do not answer until ctx ends.
func (p *proxy) followSilence(ctx context.Context, group *errgroup.Group) {
	if p.selected.silent == nil {
		return
	}
	group.Go(func() error {
		p.selected.silent.Run(ctx)
		return nil
	})
	policy := func(name service.PortName) track.Silent {
		return p.tracker.SilentPolicy(types.NamespacedName{Namespace: name.Namespace, Name: name.Name})
	}
	w := &linuxsilence.Watch{
		Latest: p.tracker.Latest, Observe: p.selected.silent.Observe, Undecided: p.selected.silent.Undecided,
		Direct: p.selected.Config.SocketAcceleration != config.AccelerateNone,
		Wanted: func(name service.PortName) bool { return policy(name) != track.SilentOff },
		Draws: func() bool {
			return p.selected.System.Translates && p.selected.draws() && (p.lease == nil || !p.lease.State().Standby)
		},
		Drawn: p.selected.drawn, Late: p.selected.silent.Late,
		LetGo: func(port *service.Port, client netip.Addr, e service.Address) {
			if _, dead := p.selected.silent.Records()[e]; !dead && policy(port.Name) == track.SilentOn {
				return // dials will tell it from lost packets
			}
			i := slices.IndexFunc(p.selected.Backends, func(b *mode.Backend) bool { return b.Family == e.Family && b.LetGo != nil })
			if i < 0 {
				return
			}
			if err := p.selected.Backends[i].LetGo(port, client, e); err != nil {
				p.log.V(1).Info("A client keeps an endpoint that does not answer", "endpoint", e.String(), "reason", err.Error())
			}
		},
	}
	for _, b := range p.selected.Backends {
		w.Families = append(w.Families, b.Family)
	}
	group.Go(func() error {
		if err := w.Run(ctx); err != nil && ctx.Err() == nil {
			p.log.Info("Connections to endpoints that do not answer are not looked for", "reason", err.Error())
		}
		return nil
	})
}

// Setup returns what modes get from a command, which reports nothing of rounds.
func Setup(c *config.Config) mode.Setup {
	return mode.Setup{
		Config: c, NodeName: func() (string, error) { return NodeName(c) },
		DetailedCondition: func(condition.Name) func(string, string) { return func(string, string) {} },
		Progress:          func() {},
		Attempted:         func(service.Family, service.PortName, netip.AddrPort, error) {},
		Peers:             func() mode.Peers { return peers.Fixed{} },
	}
}

// Targets lists the places where any mode of ours, or kube-proxy, may have left something.
func (o *Options) Targets(ctx context.Context, c *config.Config) ([]takeover.Target, error) {
	return modes.Targets(ctx, o.Modes, Setup(c))
}

// modeRequest holds the requests for a mode that a process started with.
type modeRequest struct {
	configured v1alpha1.ProxyMode
	annotated  v1alpha1.ProxyMode // by the Node
}

var (
	_ nodeReader = (*apiSource)(nil)
	_ nodeReader = (*source.Manifests)(nil)
)

// newModeRequest reads the Node, if it can, where no mode is configured.
func newModeRequest(ctx context.Context, c *config.Config, o *Options, from source.Source) modeRequest {
	w := modeRequest{configured: c.Mode}
	if reader, is := from.(nodeReader); is && c.Mode == "" && c.OS == config.Linux {
		w.annotated = nodeMode(ctx, reader, config.ModesOf(o.Flags.Modes, c.OS))
	}
	return w
}

// The times of a stop.
const (
	// StopTime bounds a stop from the signal on, if no call hangs.
	StopTime = 4 * time.Second
	// handOverTime is the part of StopTime to redirect new connections. Open ones have the rest.
	handOverTime = 3 * time.Second
)

// shutDown handles connections when the proxy ends. In modes with a relay, it redirects
// new ones past the process, and lets open ones end first.
func (p *proxy) shutDown(ctx context.Context) {
	log, backends := p.log, p.selected.Backends
	name, deadline := string(p.selected.Name), p.process.StopBegan(ctx).Add(StopTime)
	standby := p.lease != nil && p.lease.State().Standby
	relay := backends[0].Relay // it counts the connections of all families
	if relay == nil {
		log.Info("Stopped; the rules stay in force", "mode", name)
		return
	}
	drain := func() {
		log.Info("Stopping; connections through this process may end", "mode", name,
			"within", time.Until(deadline).Round(time.Millisecond).String(), "connections", relay.Connections())
		forEachBackend(backends, deadline, func(ctx context.Context, b *mode.Backend) bool {
			b.Relay.Drain(ctx)
			return true
		})
	}
	if standby { // another process owns the rules and goes on
		drain()
		log.Info("Stopped; another service proxy programs this node", "mode", name, "brokenOff", relay.Connections())
		return
	}
	handed := forEachBackend(backends, deadline.Add(handOverTime-StopTime), func(ctx context.Context, b *mode.Backend) bool { return handOver(ctx, log, b) })
	drain()
	what := "Stopped; new connections to Services go to endpoints without a process"
	if !handed {
		what = "Stopped; until the next start, new connections to Services are refused, except where the log says that they are led past this process"
	}
	log.Info(what, "mode", name, "brokenOff", relay.Connections())
}

// forEachBackend calls do for all backends at once, and returns whether all returned true in time.
func forEachBackend(backends []*mode.Backend, deadline time.Time, do func(context.Context, *mode.Backend) bool) bool {
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	var all sync.WaitGroup
	var failed atomic.Bool
	for _, b := range backends {
		all.Go(func() {
			if !do(ctx, b) {
				failed.Store(true)
			}
		})
	}
	all.Wait()
	return !failed.Load()
}

// handOver redirects new connections past the relay b, and logs the result.
func handOver(ctx context.Context, log klog.Logger, b *mode.Backend) bool {
	start := time.Now()
	loss, err := b.Relay.HandOver(ctx)
	log = log.WithValues("backend", b.String())
	switch {
	case err != nil:
		log.Error(err, "Connections cannot be led past this process; new ones are refused from its end to the next start")
		return false
	case loss != "":
		log.Info("New connections go straight to endpoints until the next start, without "+loss, "took", time.Since(start))
	default:
		log.Info("New connections go straight to endpoints until the next start", "took", time.Since(start))
	}
	return true
}

// newTakeover returns the takeover for b, nil without targets. It waits for the first rounds.
func (p *proxy) newTakeover(ctx context.Context, b *mode.Backend, kick func()) (*takeover.Takeover, error) {
	if len(b.Owned) == 0 {
		return nil, nil
	}
	all, err := p.options.Targets(ctx, p.selected.Config)
	if err != nil {
		return nil, err
	}
	return takeover.New(takeover.Options{
		Family: b.Family, Targets: all, Owned: b.Owned, Audit: b.Audit, Enter: p.leaseEnter(), Log: p.log.WithValues("backend", b.String()),
		Condition:          func(text string) { p.showLeftovers(b.Family, text) },
		ReportForeignRules: func(what string) { p.reports.OtherProxies.ReportForeignRules(b.Family, what) },
		CountFailure:       func() { p.reports.Metrics.CleanupFailed(metrics.Backend{Mode: b.Mode, Family: b.Family}) },
		OnRemoved: func() {
			if b.Conntrack != nil {
				b.Conntrack.Recheck()
			}
			kick()
		},
	}), nil
}

// showUnprogrammed shows the leftovers of families that are not programmed.
func (p *proxy) showUnprogrammed(ctx context.Context) {
	unavailable := p.selected.Unavailable
	if len(unavailable) == 0 {
		return
	}
	all, err := p.options.Targets(ctx, p.selected.Config)
	if err != nil {
		p.log.Error(err, takeover.UnreadText)
	}
	var unprogrammed []takeover.Target
	for _, t := range all {
		if unavailable[t.Family] != "" {
			unprogrammed = append(unprogrammed, t)
		}
	}
	takeover.ReportUnprogrammed(ctx, p.log, unprogrammed, p.showLeftovers)
}

// showLeftovers updates the condition about what an earlier service proxy left.
func (p *proxy) showLeftovers(f service.Family, text string) {
	p.reports.Health.SetCondition(condition.Leftovers.Of(f.String()), text)
}

// member is a backend with what runs beside it.
type member struct {
	*mode.Backend
	loop     *reconcile.Loop
	takeover *takeover.Takeover // nil if there is nothing to take over from
}

// The pauses of repairs, see Drift of reconcile.Loop: they take at most 5 % of the time.
const (
	driftPause      = 100 * time.Millisecond
	driftPauseMax   = time.Second
	driftCostFactor = 20
)

// newMembers returns a member for each backend, and looks for what an earlier proxy left.
func (p *proxy) newMembers(ctx context.Context) ([]*member, error) {
	var all []*member
	for _, b := range p.selected.Backends {
		m, err := p.newMember(ctx, b)
		if err != nil {
			return nil, err
		}
		p.progress.expect(b.String())
		all = append(all, m)
	}
	return all, nil
}

func (p *proxy) newMember(ctx context.Context, b *mode.Backend) (*member, error) {
	l := reconcile.NewLoop(b.WithLocalhost())
	l.Latest = p.tracker.Latest
	timing := timingOf(p.selected.Descriptor, p.selected.Config)
	l.MinInterval, l.Burst, l.Resync, l.Retry = timing.MinInterval, 10, timing.Resync, timing.Retry
	l.CostFactor, l.Grace = timing.CostFactor, b.Grace
	l.Drift, l.DriftCostFactor = reconcile.Backoff{First: driftPause, Max: driftPauseMax}, driftCostFactor
	l.Enter = p.leaseEnter()
	t, err := p.newTakeover(ctx, b, l.Kick)
	if err != nil {
		return nil, err
	}
	m := &member{Backend: b, loop: l, takeover: t}
	l.Standby = func(want *service.Snapshot) {
		if t != nil {
			t.Standby()
		}
		p.reports.Standby(b.Family, want)
	}
	rounds := p.reports.Sequence(p.afterRounds(ctx, m))
	l.Report = func(r reconcile.Result) { rounds.Report(report.Round{Mode: b.Mode, Family: b.Family, Result: r}) }
	p.tracker.Subscribe(track.Listener{Changed: func() {
		p.reports.Queued(b.Mode, b.Family)
		l.SnapshotChanged()
	}})
	if t != nil {
		t.Discover(ctx)
	}
	return m, nil
}

// afterRounds returns what follows the rounds of m.
func (p *proxy) afterRounds(ctx context.Context, m *member) report.Backend {
	r := report.Backend{
		Log:     p.log.WithValues("backend", m.String()),
		InForce: func() { p.progress.done(m.String()) },
	}
	if m.takeover != nil {
		r.Takeover = m.takeover.RecordRound
	}
	if m.Conntrack != nil {
		r.CleanConntrack = func(r reconcile.Result) (int, error) {
			if m.Orphans != nil {
				m.Orphans.InForce(r.Snapshot)
			}
			// A cleanup that has begun is finished even if ctx ends.
			flows, again, err := m.Conntrack.Clean(context.WithoutCancel(ctx), r)
			if again > 0 {
				time.AfterFunc(again, m.loop.Kick)
			}
			return flows, err
		}
	}
	return r
}

// start starts the goroutines of m in group.
func (p *proxy) start(ctx context.Context, group *errgroup.Group, m *member) {
	group.Go(func() error { return m.loop.Run(ctx) })
	if m.takeover != nil {
		group.Go(func() error {
			m.takeover.Run(ctx)
			return nil
		})
	}
	group.Go(func() error { return m.watch(ctx) })
	if m.Orphans != nil {
		group.Go(func() error {
			m.Orphans.Run(ctx, p.tracker, p.leaseEnter(), func(begun []track.Ending, ended, rebalanced int) {
				p.reports.Metrics.ConnectionsEnded(m.Family, ended, rebalanced)
				p.reports.Ended.Begun(begun)
			})
			return nil
		})
	}
}

func loopsOf(members []*member) []*reconcile.Loop {
	var all []*reconcile.Loop
	for _, m := range members {
		all = append(all, m.loop)
	}
	return all
}

// newLease returns the lease that this process shares with other proxies of the same
// Services, nil where there is no transport for one.
func (s System) newLease(proxyName string, as lease.Identity) *lease.Lease {
	transport, self := s.LeaseTransport(proxyName)
	if transport == nil {
		return nil
	}
	self.Mode, self.Version = as.Mode, as.Version
	return lease.New(transport, self)
}

// leaseEnter returns what admits this process to program the node, nil if all may.
func (p *proxy) leaseEnter() func(context.Context) (func(), bool) {
	if p.lease == nil {
		return nil
	}
	return func(ctx context.Context) (func(), bool) {
		leave, ok := p.lease.Enter(ctx)
		if ok {
			p.keepSettingsOnce(ctx) // before the first rules
		}
		return leave, ok
	}
}

// runLease runs the lease until end, after the last change: then others may program.
func (p *proxy) runLease(ctx context.Context, loops []*reconcile.Loop) (end func()) {
	if p.lease == nil {
		return func() {}
	}
	standby := false
	changed := func(s lease.State) {
		if ctx.Err() != nil {
			return // the process is stopping
		}
		p.reports.OtherProxies.LeaseChanged(s)
		if s.Standby == standby {
			return // loops wait for the first state, and only Standby concerns them
		}
		standby = s.Standby
		p.settingsKept.Store(false)
		p.selected.peers.Reopen()
		for _, l := range loops {
			l.Kick()
		}
	}
	p.lease.Fault = p.reports.Health.Fault
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.lease.Run(running, changed)
	}()
	return func() {
		cancel()
		<-ended
		p.reports.OtherProxies.Stop()
	}
}
