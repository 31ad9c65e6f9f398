// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	filewatch "kubeproxy/common/files"
	"kubeproxy/common/health"
	"kubeproxy/common/logging"
	"kubeproxy/common/metrics"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/source"
	"kubeproxy/common/takeover"
	"kubeproxy/common/track"
	"kubeproxy/config"
	"kubeproxy/platform/linux/userspace"
)

// backend is one dataplane for one family, with the functions and the state that
// accompany it.
type backend struct {
	reconcile.Backend
	mode   string
	family service.Family
	// cleanConntrack, if set, follows each round whose rules are at least partly in
	// force. It receives the snapshot of the round.
	cleanConntrack func(context.Context, *service.Snapshot, reconcile.Result) (flows int, err error)
	// registerMetrics, if set, receives the metrics in which the mode counts what only it
	// does.
	registerMetrics func(*metrics.Metrics)
	// conditions, if set, carries the conditions that the dataplane reports.
	conditions *backendConditions
	// grace bounds what a round may still take at a stop, 0 for no bound.
	grace time.Duration
	// cleanAfter schedules another call of cleanConntrack. It is set before the first
	// round.
	cleanAfter func(time.Duration)
	// recheck makes cleanConntrack check entries again that were right before.
	recheck atomic.Bool
	// ownedTargets names the cleanup targets that rounds keep in order. audit returns a
	// backend that can verify that they do. See dataplane.
	ownedTargets []string
	audit        func() (reconcile.Backend, error)
	// takeover, if set, receives the result of each round.
	takeover       *takeover.Takeover
	degradedReason string // the degradation that was reported last
	// localhost, if set, holds the listeners of NodePorts on a loopback address.
	localhost *userspace.Localhost
}

func (b *backend) String() string { return b.mode + " " + b.family.String() }

// firstRetry is the pause after a first failed round. It doubles from there to the sync
// period.
const firstRetry = 250 * time.Millisecond

// run is the command without a subcommand: one of the actions that end by themselves, or
// the proxy, until ctx ends.
func run(ctx context.Context, o *options, to streams) error {
	c, err := o.load()
	work := func(ctx context.Context, to streams) error {
		if err != nil {
			return err
		}
		return act(ctx, o, c, to)
	}
	if o.asService(c) {
		return o.serveAsService(ctx, to, work)
	}
	if err := work(ctx, to); !errors.Is(err, errRestart) {
		return err
	}
	return nil // the supervisor restarts the process
}

// load reads the configuration, and records the key of the file's content.
func (o *options) load() (*config.Config, error) {
	file := filewatch.NewContent(o.config.ReadFile())
	if file.Err != nil {
		return nil, file.Err
	}
	o.loadedKey = file.Key
	return config.LoadFrom(&o.config, hostOS, file.Data)
}

// act runs the action that the command line selects with the configuration c.
func act(ctx context.Context, o *options, c *config.Config, to streams) error {
	log, err := logging.Start(&c.Logging, to.err)
	defer klog.StopFlushDaemon()
	if err != nil {
		return err
	}
	ctx = klog.NewContext(ctx, log.Logger)
	logConfigIssues(log.Logger, c)
	limitMemory(log.Logger, os.DirFS("/"), c.Mode)
	switch {
	case o.config.WriteConfigTo != "":
		return writeConfig(c, o.config.WriteConfigTo, to.out)
	case o.config.Cleanup:
		return cleanup(ctx, c, o.config.CleanupIPVS)
	case o.config.InitOnly:
		return prepare(ctx, c)
	}
	o.logs = log
	return proxy(ctx, o, c)
}

// logConfigIssues logs settings that may surprise the author of the configuration.
func logConfigIssues(log klog.Logger, c *config.Config) {
	for _, w := range c.Warnings {
		log.Info("Warning: mistake in the configuration: "+w.Error(), "strict", "--strict-config ends the process instead")
	}
	for _, o := range c.Overrides {
		log.Info(o.String(), "flag", o.Flag, "path", o.Path, "from", o.From, "to", o.To)
	}
	for _, n := range c.Notes {
		log.Info("Note on the configuration: " + n.String())
	}
}

// writeConfig writes the configuration to a file, or to out if path is -.
func writeConfig(c *config.Config, path string, out io.Writer) error {
	if path == "-" {
		return c.Write(out)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	return errors.Join(c.Write(f), f.Close())
}

// proxy forwards traffic until ctx ends. The rules stay in force after it returns.
func proxy(ctx context.Context, o *options, c *config.Config) error {
	log := klog.FromContext(ctx)
	node, err := nodeName(c)
	if err != nil {
		return err
	}
	sources := newSourceStatus(len(o.manifests) == 0)
	hangup, stopSignals := notifyHangup(o)
	defer stopSignals()
	from, err := newSource(o, c, node, sources, log)
	if err != nil {
		return err
	}
	request := newModeRequest(ctx, c, from)
	selected, err := newBackends(ctx, c, o, request.annotated)
	if err != nil {
		return err
	}
	c, backends := selected.config, selected.backends
	limitMemory(log, os.DirFS("/"), modeOf(c))
	logStart(log, o, selected)
	reporter := newStatusReporter(c, backends, node, sources, log)
	reporter.reportUnprogrammed(ctx, selected)
	reporter.observeRelay(selected)
	reporter.enableEvents(from, log)
	var loops []*reconcile.Loop
	reporter.tracker = newTracker(c, node, reporter.problemFound, log, func() {
		for i, l := range loops {
			reporter.changeQueued(backends[i])
			l.SnapshotChanged()
		}
	})
	group, ctx := errgroup.WithContext(ctx)
	progress := newProgress(log, sources.unsynced)
	for _, b := range backends {
		l := newLoop(ctx, c, b, reporter, progress)
		loops = append(loops, l)
		if err := reporter.prepareTakeover(ctx, selected, b, l.Kick); err != nil {
			return err
		}
	}
	active := newActiveConfig(o.config.Config, c)
	r := &reloader{options: o, active: active, reporter: reporter, loops: loops, mode: backends[0].mode, modeRequest: request, hangup: hangup, log: log}
	r.servers = reporter.startServers(ctx, group, active, o)
	group.Go(func() error { return r.run(ctx) })
	reporter.watchNode(ctx, group)
	defer reporter.startLease(ctx, loops)()
	for i, b := range backends {
		startBackend(ctx, group, b, loops[i])
	}
	group.Go(func() error { return from.Run(ctx, instrumentedSink{reporter.tracker, reporter}) })
	group.Go(func() error { return prepareAfterFirstRound(ctx, progress, active, reporter) })
	o.reportStarted()
	err = group.Wait()
	if err == nil || errors.Is(err, errRestart) {
		reporter.shutDown(ctx, log, backends)
	}
	return err
}

// startBackend starts the goroutines of b in group.
func startBackend(ctx context.Context, group *errgroup.Group, b *backend, l *reconcile.Loop) {
	group.Go(func() error { return l.Run(ctx) })
	if b.takeover != nil {
		group.Go(func() error {
			b.takeover.Run(ctx)
			return nil
		})
	}
	if w, ok := b.Backend.(reconcile.Watcher); ok {
		group.Go(func() error { return watch(ctx, b, w, l.DataplaneChanged) })
	}
}

// prepareAfterFirstRound does what can wait for the first rules, and goes on until ctx
// ends.
func prepareAfterFirstRound(ctx context.Context, p *progress, f *activeConfig, o *statusReporter) error {
	if !p.wait(ctx) {
		return nil
	}
	// The first round needs memory that later rounds do not need.
	debug.FreeOSMemory()
	// The settings of connection tracking exist since its first use, so now at the
	// latest. See https://docs.kernel.org/networking/nf_conntrack-sysctl.html
	keepNodePrepared(ctx, f, o)
	return nil
}

func newTracker(c *config.Config, node string, onProblem func(track.Problem), log klog.Logger, changed func()) *track.Tracker {
	o := trackOptions(c, node)
	o.Changed = changed
	o.Report = func(all []track.Problem) {
		for _, p := range all[:min(len(all), mostProblems)] {
			log.Error(nil, p.Message, "service", p.Service.String(), "field", p.Field)
		}
		if n := len(all) - mostProblems; n > 0 {
			log.Error(nil, "There are more problems: kube-proxy status and /services have them all", "more", n)
		}
		for _, p := range all {
			onProblem(p)
		}
	}
	warnUnknownPods(o, log)
	return track.New(o)
}

// watchNode starts to watch the addresses of the node, and warns if the source does not
// deliver the own Node. Call it before a source runs.
func (o *statusReporter) watchNode(ctx context.Context, group *errgroup.Group) {
	o.watchHost(ctx, group)
	group.Go(func() error {
		o.nodeLog.warnIfUnknown(ctx, o.sources, o.tracker)
		return nil
	})
}

func warnUnknownPods(o track.Options, log klog.Logger) {
	if !o.Pods.Known(service.IPv4) && !o.Pods.Known(service.IPv6) && !o.PodsFromNode {
		log.Info("Pods cannot be told from other clients, so all clients of ClusterIPs count as pods: set --cluster-cidr or another --detect-local-mode")
	}
}

// newManifests returns the source that reads paths.
func newManifests(paths []string, node string, sources *sourceStatus, log klog.Logger) *source.Manifests {
	return &source.Manifests{
		Paths:    paths,
		NodeName: node,
		Report: func(f source.Fault) {
			failingSince := sources.recordFault(manifestSource, f)
			if f.Err == nil {
				log.Info("A manifest can be used again, or is gone", "object", f.Object, "failedFor", time.Since(failingSince).Round(time.Millisecond))
				return
			}
			log.Error(f.Err, "A manifest cannot be used", "object", f.Object)
		},
		Contact: sources.manifestsRead,
		Note:    func(s string) { log.Info("Note on the manifests: " + s) },
	}
}

func newLoop(ctx context.Context, c *config.Config, b *backend, o *statusReporter, p *progress) *reconcile.Loop {
	k := &planRecorder{backend: b}
	r := newRoundLogger(klog.FromContext(ctx).WithValues("backend", b.String()))
	l := reconcile.NewLoop(k)
	l.Latest = o.tracker.Latest
	b.cleanAfter = func(d time.Duration) { time.AfterFunc(d, l.SnapshotChanged) }
	timing := timingOf(c)
	l.MinInterval, l.Burst, l.Resync, l.Retry = timing.MinInterval, 10, timing.Resync, timing.Retry
	l.CostFactor, l.Grace = timing.CostFactor, b.grace
	l.Drift, l.DriftCostFactor = reconcile.Backoff{First: driftPause, Max: driftPauseMax}, driftCostFactor
	o.bindLease(l, b)
	p.expect(b.String())
	l.Report = func(res reconcile.Result) {
		o.recordRound(b, k.desired, res)
		r.logRound(res) // after the condition, so that a reader of the log finds it
		if b.takeover != nil {
			b.takeover.RecordRound(k.desired, res.Err)
		}
		if res.Err == nil || health.OnlyPortErrors(res.Err) { // all other rules are in force
			p.done(b.String())
		}
		if k.needsConntrackCleanup(res) {
			start := time.Now()
			// A cleanup that has begun is finished even if ctx ends.
			flows, err := b.cleanConntrack(context.WithoutCancel(ctx), k.desired, res)
			o.metrics.Conntrack(b.family, time.Since(start), flows)
			if err != nil {
				r.logCleanupError(err)
			}
		}
	}
	return l
}

// planRecorder records the snapshot of the latest round.
type planRecorder struct {
	*backend
	desired *service.Snapshot
}

// Plan implements reconcile.Backend.
func (k *planRecorder) Plan(ctx context.Context, want *service.Snapshot) (reconcile.Plan, error) {
	k.desired = want
	return k.plan(ctx, want)
}

// SetResync implements reconcile.ResyncSetter.
func (k *planRecorder) SetResync(d time.Duration) {
	if b, ok := k.Backend.(reconcile.ResyncSetter); ok {
		b.SetResync(d)
	}
}

// Forget implements reconcile.Forgetter.
func (k *planRecorder) Forget() {
	if b, ok := k.Backend.(reconcile.Forgetter); ok {
		b.Forget()
	}
}

// Suspect implements reconcile.SuspectFinder.
func (k *planRecorder) Suspect() string {
	if b, ok := k.Backend.(reconcile.SuspectFinder); ok {
		return b.Suspect()
	}
	return ""
}

// needsConntrackCleanup returns whether r put rules in force that may have left stale
// conntrack entries.
func (k *planRecorder) needsConntrackCleanup(r reconcile.Result) bool {
	return k.cleanConntrack != nil && (r.Err == nil || len(reconcile.PortErrors(r.Err)) > 0)
}

// watchPause is the pause after a failure of the watch.
const watchPause = 5 * time.Second

// watch reports foreign changes to b's rules until ctx ends. Without a watch, only a
// resync finds drift, so its failure does not end the proxy.
func watch(ctx context.Context, b *backend, w reconcile.Watcher, changed func()) error {
	for ctx.Err() == nil {
		err := w.Watch(ctx, changed)
		if ctx.Err() != nil {
			return nil
		}
		klog.FromContext(ctx).Error(err, "Watching the rules for changes by others broke off", "backend", b.String(), "retry", watchPause)
		select {
		case <-ctx.Done():
		case <-time.After(watchPause):
		}
		changed()
	}
	return nil
}
