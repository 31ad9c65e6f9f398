// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package agent is the running proxy: it selects a mode, connects source, Tracker, loops,
// reports and servers, starts them, reloads the configuration and stops them. The
// configuration and a System go in. What the parts do is decided in the parts.
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"kubeproxy/cmd/kube-proxy/internal/host"
	filewatch "kubeproxy/common/files"
	"kubeproxy/common/lease"
	"kubeproxy/common/logging"
	"kubeproxy/common/metrics"
	"kubeproxy/common/report"
	"kubeproxy/common/service"
	"kubeproxy/common/source"
	"kubeproxy/common/track"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
	"kubeproxy/platform/modes"
)

// proxy is what the parts of a running proxy share, complete before one runs.
type proxy struct {
	options      *Options
	process      Process
	system       System
	node         string
	active       *activeConfig
	selected     *Selected
	request      modeRequest // that led to selected
	source       source.Source
	tracker      *track.Tracker
	reports      *report.Reports
	lease        *lease.Lease // nil where processes of a node do not meet
	progress     *progress
	log          klog.Logger
	settingsKept atomic.Bool // see keepSettingsOnce
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
	c = p.active.config()
	r.servers.moveBoth(ctx, c, c.BindAddressHardFail)
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
	p.selected.peers = p.newPeers(ctx, group, r.loops)
	defer p.runLease(ctx, r.loops)()
	for _, m := range members {
		p.start(ctx, group, m)
	}
	group.Go(func() error { return p.source.Run(ctx, p.reports.Sink()) })
	group.Go(func() error { return p.prepareAfterFirstRound(ctx, group) })
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
	selected.silent = newBox(c, tracker, p.reports.Silent.Changed)
	selected.draws = func() bool { return p.active.config().SecondDraw == config.DrawAgain }
	selected.drawn = func(e service.Address) { p.reports.Metrics.DrewAgain(e.Family) }
	warnUnknownPods(TrackOptions(selected.Descriptor, c, node), log)
	return p, nil
}

// prepareAfterFirstRound does what can wait for the first rules, until ctx ends.
func (p *proxy) prepareAfterFirstRound(ctx context.Context, group *errgroup.Group) error {
	if !p.progress.wait(ctx) {
		return nil
	}
	// The first round needs memory that later rounds do not need.
	debug.FreeOSMemory()
	p.keepSettingsOnce(ctx) // without a lease
	p.followSilence(ctx, group)
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

// Options are the values of the command line.
type Options struct {
	Modes     mode.Table // that exist
	Flags     config.Flags
	Manifests []string
	Fallback  bool           // see --proxy-mode-fallback
	Exposed   bool           // see --expose-admin-pages
	CertFile  string         // see --tls-cert-file
	KeyFile   string         // see --tls-private-key-file
	FlagSet   *pflag.FlagSet // all of the above

	loadedKey string // the key of the configuration file's content
}

// NewOptions returns Options for the modes of t.
func NewOptions(t mode.Table) *Options {
	return &Options{Modes: t, Flags: config.Flags{Modes: t.Config()}}
}

// Load reads the configuration for os.
func (o *Options) Load(os config.OS) (*config.Config, error) {
	file := filewatch.NewContent(o.Flags.ReadFile())
	if file.Err != nil {
		return nil, file.Err
	}
	o.loadedKey = file.Key
	return config.LoadFrom(&o.Flags, os, file.Data)
}

// Process is what the proxy gets from the process that it runs in.
type Process struct {
	Build metrics.Build
	Logs  *logging.Log
	// Started, if set, is called when the proxy runs.
	Started func()
	// StopBegan returns when the stop that ended ctx began.
	StopBegan func(ctx context.Context) time.Time
}

// System is what the proxy needs of the system that it runs on, see package host.
type System struct {
	OS config.OS
	// LeaseTransport returns the transport by which service proxies of a node find each
	// other, nil if there is none, and the identity of this one.
	LeaseTransport func(proxyName string) (lease.Transport, lease.Identity)
	// Processes names the processes that look like service proxies of this node.
	Processes func() string
	// KeepPrepared applies the system settings until ctx ends.
	KeepPrepared func(ctx context.Context, p host.Preparation)
	// KeepSettings keeps the settings of the proxy of c for commands beside a dead one.
	KeepSettings func(ctx context.Context, c *config.Config, text []byte) error
	// Tracked counts the entries of connection tracking, nil if they are unknown.
	Tracked func() *metrics.Tracked
}

// ThisSystem returns the system that this program runs on.
func ThisSystem() System {
	return System{
		OS: host.OS, LeaseTransport: host.LeaseTransport, Processes: host.Processes, KeepPrepared: host.KeepPrepared, KeepSettings: modes.KeepSettings, Tracked: host.Tracked,
	}
}

// progress logs what a slow start is still waiting for.
type progress struct {
	log      klog.Logger
	mu       sync.Mutex
	waiting  []string
	unsynced func() []string // sources that have not been read yet
	allDone  chan struct{}   // closed when nothing is left
}

// progressInterval is before the first line of progress, and doubles to maxProgressInterval.
const progressInterval, maxProgressInterval = 2 * time.Second, time.Minute

func newProgress(log klog.Logger, unsynced func() []string) *progress {
	return &progress{log: log, unsynced: unsynced, allDone: make(chan struct{})}
}

func (p *progress) expect(name string) { p.waiting = append(p.waiting, name) }

func (p *progress) done(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.waiting, name)
	if i < 0 {
		return
	}
	p.waiting = slices.Delete(p.waiting, i, i+1)
	if len(p.waiting) == 0 {
		close(p.allDone)
	}
}

// wait returns true when everything is done, false when ctx ended first.
func (p *progress) wait(ctx context.Context) bool {
	start := time.Now()
	for pause := progressInterval; ; pause = min(2*pause, maxProgressInterval) {
		select {
		case <-ctx.Done():
			return false
		case <-p.allDone:
			return true
		case <-time.After(pause):
		}
		p.mu.Lock()
		left := strings.Join(append(p.unsynced(), p.waiting...), ", ")
		p.mu.Unlock()
		p.log.Info("Still reading and programming for the first time", "waitingFor", left, "elapsed", fmt.Sprint(time.Since(start).Round(time.Second)))
	}
}

// logStart logs the decisions of the start, and where each comes from.
func logStart(log klog.Logger, o *Options, process Process, x *Selected) {
	c := x.Config
	name, _ := NodeName(c) // its error was handled before
	var families []string
	for _, b := range x.Backends {
		families = append(families, b.Family.String())
	}
	args := []any{
		"version", process.Build.GitVersion, "mode", x.Name, "modeFrom", x.Origin, "families", strings.Join(families, ", "),
		"node", name, "nodeFrom", o.nameOrigin(c),
		"pods", podsText(c), "podsFrom", o.podsOrigin(c),
	}
	if ip := c.NodeIP(); ip.IsValid() {
		args = append(args, "nodeIP", ip.String(), "nodeIPFrom", o.settingOrigin("bind-address"))
	}
	log.Info("Starting", args...)
}

// nameOrigin returns where the node's name comes from.
func (o *Options) nameOrigin(c *config.Config) string {
	if c.HostnameOverride == "" {
		return "the host's name"
	}
	return o.settingOrigin("hostname-override")
}

// settingOrigin returns where a setting comes from that has a flag and no default.
func (o *Options) settingOrigin(flag string) string {
	if o.FlagSet != nil && o.FlagSet.Changed(flag) {
		return "--" + flag
	}
	return cmp.Or(o.Flags.Config, "the default")
}

// settingOrDefaultOrigin returns where a setting with flag and default comes from.
func (o *Options) settingOrDefaultOrigin(flag string) string {
	switch {
	case o.FlagSet != nil && o.FlagSet.Changed(flag):
		return "--" + flag
	case o.Flags.Config != "":
		return o.Flags.Config + " or the default"
	}
	return "the default"
}

// podsOrigin returns where the setting in podsText comes from.
func (o *Options) podsOrigin(c *config.Config) string {
	if (c.DetectLocalMode == config.ClusterCIDR || c.DetectLocalMode == "") && c.ClusterCIDR != "" {
		return o.settingOrigin("cluster-cidr")
	}
	return o.settingOrDefaultOrigin("detect-local-mode")
}

// podsText describes how pods on this node are distinguished from other clients.
func podsText(c *config.Config) string {
	switch c.DetectLocalMode {
	case config.NodeCIDR:
		return "sources in the Node's podCIDRs"
	case config.BridgeInterface:
		return "what enters through bridge " + c.DetectLocal.BridgeInterface
	case config.InterfaceNamePrefix:
		return "what enters through interfaces named " + c.DetectLocal.InterfaceNamePrefix + "*"
	}
	if c.ClusterCIDR == "" {
		return "not distinguished, because no cluster CIDR is configured"
	}
	return "sources in clusterCIDR " + c.ClusterCIDR
}

// LogConfigIssues logs settings that may surprise the author of the configuration.
func LogConfigIssues(log klog.Logger, c *config.Config) {
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
