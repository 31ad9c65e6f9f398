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

	"k8s.io/klog/v2"

	filewatch "kubeproxy/common/files"
	"kubeproxy/common/logging"
	"kubeproxy/common/metrics"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/report"
	"kubeproxy/common/service"
	"kubeproxy/common/source"
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
	// force.
	cleanConntrack conntrackCleaner
	// registerMetrics, if set, receives the metrics in which the mode counts what only it
	// does.
	registerMetrics func(*metrics.Metrics)
	// conditions, if set, carries the conditions that the dataplane reports.
	conditions *report.DataplaneConditions
	// grace bounds what a round may still take at a stop, 0 for no bound.
	grace time.Duration
	// recheck makes cleanConntrack check entries again that were right before.
	recheck atomic.Bool
	// ownedTargets names the cleanup targets that rounds keep in order. audit returns a
	// backend that can verify that they do. See dataplane.
	ownedTargets []string
	audit        func() (reconcile.Backend, error)
	// localhost, if set, holds the listeners of NodePorts on a loopback address.
	localhost *userspace.Localhost
}

// conntrackCleaner deletes conntrack entries that a round for a snapshot made stale. After
// the pause again, if that is not 0, it is to be called once more.
type conntrackCleaner func(context.Context, *service.Snapshot, reconcile.Result) (flows int, again time.Duration, err error)

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
	return forward(ctx, o, c)
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

// prepareAfterFirstRound does what can wait for the first rules, and goes on until ctx
// ends.
func (p *proxy) prepareAfterFirstRound(ctx context.Context) error {
	if !p.progress.wait(ctx) {
		return nil
	}
	// The first round needs memory that later rounds do not need.
	debug.FreeOSMemory()
	// The settings of connection tracking exist since its first use, so now at the
	// latest. See https://docs.kernel.org/networking/nf_conntrack-sysctl.html
	keepNodePrepared(ctx, p.active, p.selected.mode(), p.tracker, p.reports.Health)
	return nil
}

func warnUnknownPods(o track.Options, log klog.Logger) {
	if !o.Pods.Known(service.IPv4) && !o.Pods.Known(service.IPv6) && !o.PodsFromNode {
		log.Info("Pods cannot be told from other clients, so all clients of ClusterIPs count as pods: set --cluster-cidr or another --detect-local-mode")
	}
}

// newManifests returns the source that reads paths.
func newManifests(paths []string, node string, sources *report.Sources, log klog.Logger) *source.Manifests {
	return &source.Manifests{
		Paths:    paths,
		NodeName: node,
		Report: func(f source.Fault) {
			failingSince := sources.RecordFault(report.ManifestSource, f)
			if f.Err == nil {
				log.Info("A manifest can be used again, or is gone", "object", f.Object, "failedFor", time.Since(failingSince).Round(time.Millisecond))
				return
			}
			log.Error(f.Err, "A manifest cannot be used", "object", f.Object)
		},
		Contact: sources.ManifestsRead,
		Note:    func(s string) { log.Info("Note on the manifests: " + s) },
	}
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
