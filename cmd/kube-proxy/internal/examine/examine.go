// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package examine selects what doctor checks on this node: the running proxy, its mode,
// and the checks of the node, the API server and the proxy. Options go in; checks come
// out. Package doctor and those of each system have the checks themselves. It also reads
// the two states that diff compares.
package examine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"kubeproxy/cmd/kube-proxy/internal/agent"
	"kubeproxy/cmd/kube-proxy/internal/host"
	"kubeproxy/cmd/kube-proxy/internal/reading"
	"kubeproxy/common/doctor"
	"kubeproxy/common/lease"
	"kubeproxy/common/service"
	"kubeproxy/common/statusview"
	"kubeproxy/common/takeover"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
)

// Options are what the caller asks for.
type Options struct {
	Proxy    *agent.Options // as the proxy gets them
	Version  string         // of this program
	Server   string         // of the running proxy; empty for the one in the configuration
	AllModes bool           // look at every mode of this system
	Timeout  time.Duration  // of each check
}

// Examination is what the checks of a system need.
type Examination struct {
	options Options
	config  *config.Config
	node    string
	// selected is the configured mode, or else the best one. modes are those to examine.
	selected mode.Descriptor
	modes    mode.Table
	// targets lists where any mode may have left something.
	targets func(context.Context) ([]takeover.Target, error)
	// proxy is the running proxy. holder returns the one that programs the node.
	proxy  *doctor.Proxy
	holder func(context.Context) (lease.Identity, bool)
}

// services returns what is to be served, nil if that is unknown.
type services func(context.Context) (*service.Snapshot, error)

// Find finds the running proxy of c, its Node, and the modes to examine.
func Find(ctx context.Context, o Options, c *config.Config) (*Examination, error) {
	node, err := agent.NodeName(c)
	if err != nil {
		return nil, err
	}
	proxy, err := o.askProxy(ctx, c)
	if err != nil {
		return nil, err
	}
	x := &Examination{
		options: o, config: c, node: node, selected: o.Proxy.Modes.Of(c), proxy: proxy, holder: host.LeaseHolder(c.ProxyName),
		targets: func(ctx context.Context) ([]takeover.Target, error) { return o.Proxy.Targets(ctx, c) },
	}
	x.modes = x.examined()
	if proxy.Answer != nil && c.HostnameOverride == "" {
		x.node = proxy.Answer.Node
	}
	return x, nil
}

// Checks returns all checks.
func (e *Examination) Checks(ctx context.Context) ([]doctor.Check, error) {
	server := newServerChecks(e)
	read := sync.OnceValues(func() (*service.Snapshot, error) { return e.readServices(ctx, server) })
	checks, err := systemChecks(ctx, e, func(context.Context) (*service.Snapshot, error) { return read() })
	if err != nil {
		return nil, err
	}
	if all := e.options.Proxy.Manifests; len(all) > 0 {
		checks = append(checks, doctor.ManifestNode(all, e.node, host.InterfaceAddrs, podsOf(e)))
	} else {
		checks = append(checks, server.Checks()...)
	}
	return append(checks, e.proxy.Check(e.holder)), nil
}

// Mode returns the mode that is examined first: the configured one, that of the running
// proxy, or the one that would be selected.
func (e *Examination) Mode() mode.Descriptor { return e.modes[0] }

// Node returns the name of the node.
func (e *Examination) Node() string { return e.node }

// Families returns those that the node can serve in Mode, and why it cannot serve the
// others.
func (e *Examination) Families() (all []service.Family, lacking []string) {
	for _, f := range service.Families {
		if err := probeMode(e.config, e.Mode(), f); err != nil {
			lacking = append(lacking, fmt.Sprintf("%s is not compared: %v", f, err))
			continue
		}
		all = append(all, f)
	}
	return all, lacking
}

// Report returns a report on e without findings.
func (e *Examination) Report() *doctor.Report {
	return &doctor.Report{Node: e.node, System: string(e.config.OS), Proxy: e.proxy.String(), Modes: e.modes.Names()}
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

// examined returns the modes to examine: all, the configured one, that of the running
// proxy, or the one that would be selected. If none works, it is the best one.
func (e *Examination) examined() mode.Table {
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
	r := reading.Reader{Config: e.config, Mode: e.selected, Node: e.node, Version: e.options.Version}
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
