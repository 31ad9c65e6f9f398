// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"os"
	"runtime/debug"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"kubeproxy/cmd/kube-proxy/internal/host"
	"kubeproxy/common/lease"
	"kubeproxy/common/report"
	"kubeproxy/common/service"
	"kubeproxy/common/source"
	"kubeproxy/common/track"
	"kubeproxy/config"
)

// proxy is what the parts of a running proxy share. It is complete before one of them
// runs.
type proxy struct {
	options  *Options
	process  Process
	system   System
	node     string
	active   *activeConfig
	selected *Selected
	request  modeRequest // that led to selected
	source   source.Source
	tracker  *track.Tracker
	reports  *report.Reports
	lease    *lease.Lease // nil where processes of a node do not meet
	progress *progress
	log      klog.Logger
}

// Run forwards traffic until ctx ends. The rules stay in force after it returns. It
// returns ErrRestart if the configuration has changed so that a new process must start.
func (s System) Run(ctx context.Context, o *Options, process Process, c *config.Config) error {
	hangup, stopSignals := notifyHangup(o)
	defer stopSignals()
	p, err := s.newProxy(ctx, o, process, c)
	if err != nil {
		return err
	}
	p.showUnprogrammed(ctx)
	group, ctx := errgroup.WithContext(ctx)
	members, err := p.newMembers(ctx)
	if err != nil {
		return err
	}
	servers, err := p.newServers(group)
	if err != nil {
		return err
	}
	r := &reloader{proxy: p, servers: servers, loops: loopsOf(members), hangup: hangup}
	r.servers.start(ctx, p.active.config())
	group.Go(func() error { return r.run(ctx) })
	group.Go(func() error { return p.followKubeconfig(ctx) })
	host.Watch(ctx, group, p.tracker, p.log)
	group.Go(func() error {
		p.reports.Run(ctx)
		return nil
	})
	if c := p.selected.traffic; c != nil {
		group.Go(func() error {
			c.Run(ctx)
			return nil
		})
	}
	defer p.runLease(ctx, r.loops)()
	for _, m := range members {
		m.start(ctx, group)
	}
	group.Go(func() error { return p.source.Run(ctx, p.reports.Sink()) })
	group.Go(func() error { return p.prepareAfterFirstRound(ctx) })
	if process.Started != nil {
		process.Started()
	}
	err = group.Wait()
	if err == nil || errors.Is(err, ErrRestart) {
		p.shutDown(ctx)
	}
	return err
}

// newProxy selects the mode and makes the parts of the proxy, of which none runs yet.
func (s System) newProxy(ctx context.Context, o *Options, process Process, c *config.Config) (*proxy, error) {
	log := klog.FromContext(ctx)
	node, err := NodeName(c)
	if err != nil {
		return nil, err
	}
	sources := newSources(o)
	from, err := o.newSource(process.Build.GitVersion, c, node, sources, log)
	if err != nil {
		return nil, err
	}
	request := newModeRequest(ctx, c, o, from)
	selected, err := o.newBackends(ctx, c, request.annotated)
	if err != nil {
		return nil, err
	}
	c = selected.Config
	LimitMemory(log, os.DirFS("/"), selected.Descriptor)
	logStart(log, o, process, selected)
	tracker := track.New(TrackOptions(selected.Descriptor, c, node))
	selected.traffic = newCollector(selected, tracker)
	p := &proxy{
		options: o, process: process, system: s, node: node, active: newActiveConfig(o.Flags.Config, c), selected: selected, request: request,
		source: from, tracker: tracker, reports: s.newReports(selected, report.Options{Node: node, Build: process.Build, API: apiOf(from), Sources: sources, Tracker: tracker, Log: log}),
		lease: s.newLease(c.ProxyName, lease.Identity{Mode: string(selected.Name), Version: process.Build.GitVersion}), progress: newProgress(log, sources.Unsynced), log: log,
	}
	warnUnknownPods(TrackOptions(selected.Descriptor, c, node), log)
	return p, nil
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
	p.system.KeepPrepared(ctx, host.Preparation{
		Config: p.active.config, Requests: p.active.prepareRequests, Mode: p.selected.Descriptor, Tracker: p.tracker, Health: p.reports.Health,
	})
	return nil
}

func warnUnknownPods(o track.Options, log klog.Logger) {
	if !o.Pods.Known(service.IPv4) && !o.Pods.Known(service.IPv6) && !o.PodsFromNode {
		log.Info("Pods cannot be distinguished from other clients, so all clients of ClusterIPs count as pods: set --cluster-cidr or another --detect-local-mode")
	}
}
