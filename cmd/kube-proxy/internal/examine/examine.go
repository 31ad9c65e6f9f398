// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package examine selects what doctor checks on this node: the running proxy, its mode,
// and the checks of the node, the API server and the proxy. Options go in; checks come
// out. Package doctor and those of each system have the checks themselves. It also reads
// the two states that diff compares.
package examine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/cmd/kube-proxy/internal/agent"
	"kubeproxy/cmd/kube-proxy/internal/host"
	"kubeproxy/cmd/kube-proxy/internal/reading"
	"kubeproxy/common/doctor"
	"kubeproxy/common/lease"
	"kubeproxy/common/plandiff"
	"kubeproxy/common/service"
	"kubeproxy/common/source"
	"kubeproxy/common/statusview"
	"kubeproxy/common/takeover"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
	"kubeproxy/platform/modes"
)

// Options are what the caller asks for.
type Options struct {
	Proxy    *agent.Options // as the proxy gets them
	Version  string         // of this program
	Server   string         // of the running proxy; empty for the one in the configuration
	AllModes bool           // look at every mode of this system
	// BeforeStart has the findings for a start, so that no proxy has to run.
	BeforeStart bool
	Timeout     time.Duration // of each check
}

// Examination is what the checks of a system need.
type Examination struct {
	options  Options
	config   *config.Config
	node     string
	contents map[string][]byte // of standard input and pipes among the manifests, which several checks read
	// selected is the configured mode, or else the best one. modes are those to examine.
	selected mode.Descriptor
	modes    mode.Table
	// targets lists where any mode may have left something.
	targets func(context.Context) ([]takeover.Target, error)
	// proxy is the running proxy. holder returns the one that programs the node.
	proxy  *doctor.Proxy
	holder func(context.Context) (lease.Identity, error)
	// settings says which settings count beside a proxy that does not answer.
	settings string
}

// services returns what is to be served, nil if that is unknown.
type services func(context.Context) (*service.Snapshot, error)

// Find finds the running proxy of c, its Node, and the modes to examine.
func Find(ctx context.Context, o Options, c *config.Config) (*Examination, error) {
	proxy, err := o.askProxy(ctx, c)
	if err != nil {
		return nil, err
	}
	c, settings := o.resume(c)
	if proxy.Answer == nil {
		if proxy, err = o.askProxy(ctx, c); err != nil {
			return nil, err
		}
	}
	node, err := agent.NodeName(c)
	if err != nil {
		return nil, err
	}
	contents, err := reading.ReadPipes(o.Proxy.Manifests)
	if err != nil {
		return nil, err
	}
	ask := host.LeaseHolder(c.ProxyName)
	holder := sync.OnceValues(func() (lease.Identity, error) { return ask(ctx) }) // one that hangs takes seconds
	x := &Examination{
		options: o, config: c, node: node, contents: contents, selected: o.Proxy.Modes.Of(c), proxy: proxy, holder: func(context.Context) (lease.Identity, error) { return holder() },
		targets: func(ctx context.Context) ([]takeover.Target, error) {
			all, err := o.Proxy.Targets(ctx, c)
			return slices.DeleteFunc(all, func(t takeover.Target) bool { return modes.IsBeside(c, t) }), err
		},
	}
	if proxy.Answer == nil {
		x.settings = settings
		if _, found := x.installed(ctx); settings == notKept && !found {
			x.settings = ""
		}
	}
	x.modes = x.examined(ctx)
	if proxy.Answer != nil && c.HostnameOverride == "" {
		x.node = proxy.Answer.Node
	}
	return x, nil
}

// Checks returns all checks.
func (e *Examination) Checks(ctx context.Context) ([]doctor.Check, error) {
	server := newServerChecks(e)
	read := sync.OnceValues(func() (*service.Snapshot, error) { return e.readServices(ctx, server) })
	silent := doctor.Silent{Node: e.node, Holder: e.holder, BeforeStart: e.options.BeforeStart, Absent: func(ctx context.Context) (string, string) { return e.absent(ctx, server) }}
	checks, err := systemChecks(ctx, e, func(context.Context) (*service.Snapshot, error) { return read() }, &silent)
	if err != nil {
		return nil, err
	}
	if all := e.options.Proxy.Manifests; len(all) > 0 {
		checks = append(checks, doctor.ManifestNode(&source.Manifests{Paths: all, NodeName: e.node, Contents: e.contents}, host.InterfaceAddrs, podsOf(e)))
	} else {
		checks = append(checks, server.Checks()...)
	}
	checks = append(checks, doctor.ServiceChecks(e.survey(server))...)
	return append(checks, e.proxy.Check(silent)), nil
}

// owned names the targets that a mode keeps in order.
func (e *Examination) owned(d mode.Descriptor) (all []string) {
	if d.System == nil || d.System.Owned == nil {
		return nil
	}
	for _, f := range service.Families {
		// A command that is missing is what the probe of the mode reports.
		names, _ := d.System.Owned(e.config, f)
		all = append(all, names...)
	}
	return all
}

// left names the targets in which an earlier process of this program left something.
func (e *Examination) left(ctx context.Context) (names []string, err error) {
	targets, err := e.targets(ctx)
	for _, t := range targets {
		if t.Upstream {
			continue
		}
		what, findErr := t.Find(ctx)
		if err == nil && takeover.AsUnchecked(findErr) == nil {
			err = findErr
		}
		if what != "" {
			names = append(names, t.String())
		}
	}
	return names, err
}

// absent says what the node does without a proxy, and how to start one.
func (e *Examination) absent(ctx context.Context, server *doctor.Cluster) (what, advice string) {
	names, err := e.left(ctx)
	switch {
	case len(names) > 0:
		what = fmt.Sprintf("no proxy runs on this node: what an earlier process made serves on (%s), and changes do not arrive", strings.Join(names, ", "))
	case err != nil:
		what = fmt.Sprintf("no proxy runs on this node, and what an earlier process left is unknown: %v", err)
	default:
		what = "no proxy runs on this node, and nothing is programmed: no Service works here"
	}
	return what + e.lacking(ctx, server) + e.settings, fmt.Sprintf(startAdvice, e.node) + "; kube-proxy doctor --before-start has the findings for a start alone"
}

// lacking says how much the node differs from what is desired, if that is known.
func (e *Examination) lacking(ctx context.Context, server *doctor.Cluster) string {
	from := e.options.Proxy.Manifests
	switch {
	case len(from) == 0 && !server.Configured():
		return ""
	case len(from) == 0 && server.Config(ctx) == nil:
		return "; what the node lacks is unknown, as the API server cannot be asked"
	}
	d := &Diff{Proxy: e.options.Proxy, Version: e.options.Version, Timeout: e.options.Timeout / 2} // the plan needs the rest
	x := &comparison{Diff: d, config: e.config, out: plandiff.New()}
	err := x.use(e)
	if err == nil {
		var want *service.Snapshot
		if want, err = x.read(ctx, from, true); err == nil {
			err = x.plan(ctx, want)
		}
	}
	switch n := len(x.out.Plan); {
	case err != nil:
		return fmt.Sprintf("; what the node lacks is unknown: %v", err)
	case n == 0:
		return "; the node lacks nothing yet"
	case n == 1:
		return "; the node lacks 1 change: " + x.out.Plan[0]
	default:
		return fmt.Sprintf("; the node lacks %d changes, which kube-proxy diff lists", n)
	}
}

// notKept is about rules that are there without settings.
const notKept = "; what is programmed here has no table kube-settings with its settings, so those of this command count"

// resume completes flags by the last proxy's settings here, and says what it took, or why nothing.
func (o *Options) resume(c *config.Config) (now *config.Config, note string) {
	if o.BeforeStart || o.Proxy.Flags.Config != "" {
		return c, ""
	}
	proxy, last, err := o.Proxy.Resume(c)
	switch {
	case err != nil:
		return c, fmt.Sprintf("; the settings with which the proxy last ran here are unknown, so those of this command count: %v", err)
	case last == nil:
		return c, notKept
	}
	o.Proxy = proxy
	var taken []string
	for _, x := range significant(config.Diff(c, last, config.Use{})) {
		taken = append(taken, x.Path+" "+x.To)
	}
	if len(taken) > 0 {
		note = "; settings that no flag gives are those with which the proxy last ran here: " + strings.Join(taken, ", ")
	}
	return last, note
}

// ofProcess begin the names of settings that no rule depends on.
var ofProcess = []string{"clientConnection", "logging", "healthz", "metrics", "enableProfiling", "configSync", "showHidden", "bindAddressHardFail", "oomScoreAdj", "mode", "conntrack.m", "conntrack.tcpE", "conntrack.tcpC", "conntrack.udp"}

// differing lists the settings that the running proxy, if one answers, has otherwise.
func (e *Examination) differing(ctx context.Context) (all []string) {
	if e.proxy.Answer == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	q := statusview.Query{Server: e.proxy.Answer.Server, Version: e.options.Version}
	page, err := q.Page(ctx, "/configz")
	var served map[string]v1alpha1.KubeProxyConfiguration
	if err != nil || json.Unmarshal(page, &served) != nil || len(served) != 1 {
		return nil
	}
	running := *e.config
	for _, c := range served {
		running.KubeProxyConfiguration = c
	}
	if flags, err := q.Page(ctx, "/flagz"); err == nil {
		running.CountTraffic = strings.Contains(string(flags), "count-traffic=true")
	}
	for _, c := range significant(config.Diff(&running, e.config, config.Use{})) {
		all = append(all, fmt.Sprintf("%s %s, here %s", c.Path, c.From, c.To))
	}
	return all
}

// significant are those of all on which rules may depend.
func significant(all []config.Change) []config.Change {
	return slices.DeleteFunc(all, func(c config.Change) bool {
		return strings.HasSuffix(c.Path, "yncPeriod") || slices.ContainsFunc(ofProcess, func(p string) bool { return strings.HasPrefix(c.Path, p) })
	})
}

// Mode returns the mode to examine first: the configured, the proxy's, or the one to select.
func (e *Examination) Mode() mode.Descriptor { return e.modes[0] }

// Node returns the name of the node.
func (e *Examination) Node() string { return e.node }

// Families returns those that the node can serve in Mode, and why it cannot serve others.
func (e *Examination) Families() (all []service.Family, lacking []string) {
	return e.families(e.Mode())
}

func (e *Examination) families(d mode.Descriptor) (all []service.Family, lacking []string) {
	for _, f := range service.Families {
		if err := probeMode(e.config, d, f); err != nil {
			lacking = append(lacking, fmt.Sprintf("%s is not compared: %v", f, err))
			continue
		}
		all = append(all, f)
	}
	return all, lacking
}

// Report returns a report on e without findings.
func (e *Examination) Report() *doctor.Report {
	return &doctor.Report{BeforeStart: e.options.BeforeStart, Node: e.node, System: string(e.config.OS), Proxy: e.proxy.String(), Modes: e.modes.Names()}
}

// askTimeout bounds the wait for an answer of the running proxy.
const askTimeout = 5 * time.Second

// askProxy asks the proxy that runs, if one does.
func (o Options) askProxy(ctx context.Context, c *config.Config) (*doctor.Proxy, error) {
	at := c.MetricsBindAddress
	if o.Server != "" {
		at = o.Server
	} else if _, port, _ := net.SplitHostPort(at); port == "0" {
		return &doctor.Proxy{Err: errors.New("metricsBindAddress has port 0, so the proxy serves no metrics")}, nil
	}
	server, err := statusview.DialAddress(at)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return doctor.AskProxy(ctx, statusview.Query{Server: server, Version: o.Version}), nil
}

// installed returns the mode of which a process that has ended left most, false if none did.
func (e *Examination) installed(ctx context.Context) (best mode.Descriptor, found bool) {
	names, _ := e.left(ctx)
	most := 0
	for _, d := range e.options.Proxy.Modes.On(e.config.OS) {
		n := 0
		for _, name := range e.owned(d) {
			if slices.Contains(names, name) {
				n++
			}
		}
		if n > most {
			best, most = d, n
		}
	}
	return best, most > 0
}

// examined returns the modes to examine: all, the configured one, that of the running proxy or of a
// dead one's rules, the one that would be selected, or the best.
func (e *Examination) examined(ctx context.Context) mode.Table {
	c, d := e.config, e.options
	switch {
	case d.AllModes:
		return d.Proxy.Modes.On(c.OS)
	case c.Mode != "":
		return mode.Table{e.selected}
	case e.proxy.Answer != nil:
		if m, ok := d.Proxy.Modes.Find(e.proxy.Answer.Mode, c.OS); ok {
			return mode.Table{m}
		}
	case !e.options.BeforeStart:
		if m, ok := e.installed(ctx); ok {
			return mode.Table{m}
		}
	}
	for _, w := range d.Proxy.Candidates(c, "") {
		if probeMode(c, w.Descriptor, mode.PrimaryFamily(c)) == nil {
			return mode.Table{w.Descriptor}
		}
	}
	return mode.Table{e.selected}
}

func newServerChecks(x *Examination) *doctor.Cluster {
	return &doctor.Cluster{Client: agent.KubeClient(x.config, x.options.Version), Node: x.node, Addrs: host.InterfaceAddrs, Pods: podsOf(x), SetClock: setClockCommand}
}

func podsOf(x *Examination) doctor.Pods {
	o := agent.TrackOptions(x.selected, x.config, "")
	return doctor.Pods{CIDRs: o.Pods.Prefixes, FromNode: o.PodsFromNode}
}

// readServices returns what the running proxy serves, or what a starting one would serve.
func (e *Examination) readServices(ctx context.Context, server *doctor.Cluster) (*service.Snapshot, error) {
	if s := e.proxy.Services(); s != nil {
		return s, nil
	}
	r := reading.Reader{Config: e.config, Mode: e.selected, Node: e.node, Version: e.options.Version, Contents: e.contents}
	if all := e.options.Proxy.Manifests; len(all) > 0 {
		tracker, err := r.Manifests(ctx, all)
		if s := tracker.Latest(); s != nil {
			return s, nil // what cannot be used is not the subject here
		}
		return nil, err
	}
	to := server.Config(ctx)
	if to == nil {
		return nil, nil
	}
	return r.Server(ctx, to, e.options.Timeout)
}

// answeredAt returns where the proxy answered, if that is an address.
func (e *Examination) answeredAt() (at netip.AddrPort) {
	if e.proxy.Answer != nil {
		at, _ = netip.ParseAddrPort(e.proxy.Answer.Server)
	}
	return at
}

// serversOf returns where the servers of the proxy are to listen.
func serversOf(c *config.Config) []doctor.Server {
	var all []doctor.Server
	for _, s := range []struct{ name, flag, addr string }{
		{"health", "healthz-bind-address", c.HealthzBindAddress}, {"metrics", "metrics-bind-address", c.MetricsBindAddress},
	} {
		if a, err := netip.ParseAddrPort(s.addr); err == nil && a.Port() != 0 {
			all = append(all, doctor.Server{Name: s.name, Flag: s.flag, Addr: a})
		}
	}
	return all
}
