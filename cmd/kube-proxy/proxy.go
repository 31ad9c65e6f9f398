// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"kubeproxy/common/lease"
	"kubeproxy/common/report"
	"kubeproxy/common/source"
	"kubeproxy/common/track"
	"kubeproxy/config"
)

// proxy is what the parts of a running proxy share. It is complete before one of them
// runs.
type proxy struct {
	options  *options
	node     string
	active   *activeConfig
	selected *selectedMode
	request  modeRequest // that led to selected
	source   source.Source
	tracker  *track.Tracker
	reports  *report.Reports
	lease    *lease.Lease // nil where processes of a node do not meet
	progress *progress
	log      klog.Logger
}

// forward forwards traffic until ctx ends. The rules stay in force after it returns.
func forward(ctx context.Context, o *options, c *config.Config) error {
	hangup, stopSignals := notifyHangup(o)
	defer stopSignals()
	p, err := newProxy(ctx, o, c)
	if err != nil {
		return err
	}
	p.showUnprogrammed(ctx)
	p.observeRelay()
	group, ctx := errgroup.WithContext(ctx)
	members, err := p.newMembers(ctx)
	if err != nil {
		return err
	}
	r := &reloader{proxy: p, servers: p.newServers(group), loops: loopsOf(members), hangup: hangup}
	r.servers.start(ctx, p.active.config())
	group.Go(func() error { return r.run(ctx) })
	watchHost(ctx, group, p.tracker, p.log)
	group.Go(func() error {
		p.reports.Run(ctx)
		return nil
	})
	defer p.runLease(ctx, r.loops)()
	for _, m := range members {
		m.start(ctx, group)
	}
	group.Go(func() error { return p.source.Run(ctx, p.reports.Sink()) })
	group.Go(func() error { return p.prepareAfterFirstRound(ctx) })
	o.reportStarted()
	err = group.Wait()
	if err == nil || errors.Is(err, errRestart) {
		p.shutDown(ctx)
	}
	return err
}

// newProxy selects the mode and makes the parts of the proxy, of which none runs yet.
func newProxy(ctx context.Context, o *options, c *config.Config) (*proxy, error) {
	log := klog.FromContext(ctx)
	node, err := nodeName(c)
	if err != nil {
		return nil, err
	}
	sources := newSources(o)
	from, err := newSource(o, c, node, sources, log)
	if err != nil {
		return nil, err
	}
	request := newModeRequest(ctx, c, from)
	selected, err := newBackends(ctx, c, o, request.annotated)
	if err != nil {
		return nil, err
	}
	c = selected.config
	limitMemory(log, os.DirFS("/"), modeOf(c))
	logStart(log, o, selected)
	tracker := track.New(trackOptions(c, node))
	p := &proxy{
		options: o, node: node, active: newActiveConfig(o.config.Config, c), selected: selected, request: request,
		source: from, tracker: tracker, reports: newReports(selected, report.Options{Node: node, API: apiOf(from), Sources: sources, Tracker: tracker, Log: log}),
		lease: newLease(c.ProxyName, selected.mode()), progress: newProgress(log, sources.Unsynced), log: log,
	}
	warnUnknownPods(trackOptions(c, node), log)
	return p, nil
}
