// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"kubeproxy/cmd/kube-proxy/internal/agent"
	"kubeproxy/cmd/kube-proxy/internal/host"
	"kubeproxy/common/doctor"
	"kubeproxy/common/doctor/apiserver"
	"kubeproxy/common/lease"
	"kubeproxy/common/service"
	"kubeproxy/common/source"
	"kubeproxy/common/statusview"
	"kubeproxy/common/takeover"
	"kubeproxy/common/track"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
)

const doctorText = `Find what keeps the proxy, or its traffic, from working on this node.

It looks at the node, at the API server and at the proxy that runs here, if one
does, and prints for each finding what it is, why it matters and to whom, the
command that mends it, and where to read more. It takes the flags of the proxy,
to be given as the proxy has them. It changes nothing; the kernel may load
modules that it is asked for.

Without --proxy-mode it looks at the mode of the running proxy, or at the one
that would be selected. It takes the rights of the proxy, mostly those of root.

The exit code is 0 if nothing is found, 1 if something is, and 2 if a check
could not look.`

const doctorExample = `  kube-proxy doctor
  kube-proxy doctor --config kube-proxy.yaml --kubeconfig /etc/kubernetes/kube-proxy.conf
  kube-proxy doctor --all-modes -o json | jq -r '.findings[] | .id + ": " + .what'`

// The forms of a report.
const (
	doctorAsText = "text"
	doctorAsJSON = "json"
)

// doctorOptions are the flags of doctor.
type doctorOptions struct {
	options
	format, server string
	allModes       bool
	timeout        time.Duration
}

func newDoctor(to streams, table mode.Table) *cobra.Command {
	d := &doctorOptions{options: *newOptions(table)}
	cmd := &cobra.Command{
		Use:     "doctor [flags]",
		Short:   "Find what keeps the proxy from working on this node",
		Long:    doctorText,
		Example: doctorExample,
		RunE: func(cmd *cobra.Command, args []string) error {
			err := noArgs(cmd, args)
			if err == nil {
				err = d.run(cmd.Context(), to)
			}
			if _, coded := errors.AsType[*exit](err); err == nil || coded {
				return err
			}
			return &exit{doctor.ExitFailed, err}
		},
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return &exit{doctor.ExitFailed, flagError(cmd, err)} })
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	d.register(all)
	all.VisitAll(func(f *pflag.Flag) {
		switch f.Name {
		case "cleanup", "cleanup-iptables", "cleanup-ipvs", "init-only", "write-config-to", "version":
		default:
			cmd.Flags().AddFlag(f)
		}
	})
	cmd.Flags().BoolVar(&d.allModes, "all-modes", false, "look at every mode of this system, not only at the one of the proxy")
	cmd.Flags().StringVarP(&d.format, "output", "o", doctorAsText, "`FORMAT` of what is printed: text or json")
	cmd.Flags().StringVar(&d.server, "server", "", "`HOST[:PORT]` of the metrics server of the running proxy; goes before metricsBindAddress")
	cmd.Flags().DurationVar(&d.timeout, "timeout", 45*time.Second, "how much `TIME` each check has")
	return cmd
}

// examination is what the checks of a system need.
type examination struct {
	config *config.Config
	node   string
	// selected is the mode that is configured, or else the best. modes are those to look
	// at.
	selected mode.Descriptor
	modes    mode.Table
	// targets lists where any mode may have left something.
	targets func(context.Context) ([]takeover.Target, error)
	// proxy is the running proxy. holder returns the one that programs the node.
	proxy  *doctor.Proxy
	holder func(context.Context) (lease.Identity, bool)
	// services returns what is to be served, nil if that is unknown.
	services func(context.Context) (*service.Snapshot, error)
}

func (d *doctorOptions) run(ctx context.Context, to streams) error {
	if d.format != doctorAsText && d.format != doctorAsJSON {
		return fmt.Errorf("--output: %q is unknown: want %s or %s", d.format, doctorAsText, doctorAsJSON)
	}
	c, err := config.Load(&d.Flags, host.OS)
	if err != nil {
		return err
	}
	x := &examination{config: c, selected: d.Modes.Of(c), targets: func(ctx context.Context) ([]takeover.Target, error) { return d.Targets(ctx, c) }}
	if x.node, err = agent.NodeName(c); err != nil {
		return err
	}
	x.holder = leaseHolder(c)
	if err := d.lookForProxy(ctx, x, to.err); err != nil {
		return err
	}
	server := newServerChecks(x)
	read := sync.OnceValues(func() (*service.Snapshot, error) { return d.services(ctx, x, server) })
	x.services = func(context.Context) (*service.Snapshot, error) { return read() }
	checks, err := systemChecks(ctx, x)
	if err != nil {
		return err
	}
	if len(d.Manifests) > 0 {
		checks = append(checks, apiserver.ManifestNode(d.Manifests, x.node, host.InterfaceAddrs, podsOf(x)))
	} else {
		checks = append(checks, server.Checks()...)
	}
	r := doctor.Runner{
		Checks: append(checks, x.proxy.Check(x.holder)), Timeout: d.timeout, Patience: noticeDelay,
		Progress: func(text string) { fmt.Fprintf(to.err, "kube-proxy: %s\n", text) },
	}
	report := &doctor.Report{Node: x.node, System: runtime.GOOS, Proxy: x.proxy.String()}
	report.Modes = x.modes.Names()
	report.Checks, report.Findings = r.Run(ctx)
	return d.print(to.out, report)
}

func (d *doctorOptions) print(w io.Writer, r *doctor.Report) error {
	write := doctor.View{Colour: coloured(w)}.Text
	if d.format == doctorAsJSON {
		write = func(w io.Writer, r *doctor.Report) error { return r.JSON(w) }
	}
	if err := write(w, r); err != nil {
		return fmt.Errorf("print the report: %w", err)
	}
	if code := r.ExitCode(); code != 0 {
		return &exit{code: code}
	}
	return nil
}

// lookForProxy finds the running proxy, its Node, and the modes to look at.
func (d *doctorOptions) lookForProxy(ctx context.Context, x *examination, progress io.Writer) (err error) {
	defer noticeIfSlow(progress, "kube-proxy: still looking for the proxy and its mode ...")()
	if x.proxy, err = d.askProxy(ctx, x.config); err != nil {
		return err
	}
	x.modes = d.examined(x)
	if x.proxy.Answer != nil && x.config.HostnameOverride == "" {
		x.node = x.proxy.Answer.Node
	}
	return nil
}

// askTimeout bounds the wait for an answer of the running proxy.
const askTimeout = 5 * time.Second

// askProxy asks the proxy that runs, if one does.
func (d *doctorOptions) askProxy(ctx context.Context, c *config.Config) (*doctor.Proxy, error) {
	at := c.MetricsBindAddress
	if d.server != "" {
		at = d.server
	} else if _, port, _ := net.SplitHostPort(at); port == "0" {
		return &doctor.Proxy{Err: errors.New("metricsBindAddress has port 0, so the proxy serves no metrics")}, nil
	}
	server, err := statusview.DialAddress(at)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return doctor.AskProxy(ctx, statusview.Query{Server: server, Version: buildInfo().Version}), nil
}

// leaseHolder returns the function that asks which proxy programs the node.
func leaseHolder(c *config.Config) func(context.Context) (lease.Identity, bool) {
	transport, _ := host.LeaseTransport(c.ProxyName)
	return func(ctx context.Context) (lease.Identity, bool) {
		if transport == nil {
			return lease.Identity{}, false
		}
		return lease.QueryHolder(ctx, transport)
	}
}

// examined returns the modes to look at: all, the configured one, that of the running
// proxy, or the one that would be selected. If none works, it is the best.
func (d *doctorOptions) examined(x *examination) mode.Table {
	c := x.config
	switch {
	case d.allModes:
		return d.Modes.On(c.OS)
	case c.Mode != "":
		return mode.Table{x.selected}
	case x.proxy.Answer != nil:
		if m, ok := d.Modes.Find(x.proxy.Answer.Mode, c.OS); ok {
			return mode.Table{m}
		}
	}
	for _, w := range d.Candidates(c, "") {
		if probeMode(c, w.Descriptor, mode.PrimaryFamily(c)) == nil {
			return mode.Table{w.Descriptor}
		}
	}
	return mode.Table{x.selected}
}

func newServerChecks(x *examination) *apiserver.Server {
	return &apiserver.Server{Client: agent.KubeClient(x.config, buildInfo().Version), Node: x.node, Addrs: host.InterfaceAddrs, Pods: podsOf(x), SetClock: setClockCommand}
}

func podsOf(x *examination) apiserver.Pods {
	o := agent.TrackOptions(x.selected, x.config, "")
	return apiserver.Pods{CIDRs: o.Pods.Prefixes, FromNode: o.PodsFromNode}
}

// services returns what the running proxy serves, or what one would serve that begins now.
func (d *doctorOptions) services(ctx context.Context, x *examination, server *apiserver.Server) (*service.Snapshot, error) {
	if s := x.proxy.Services(); s != nil {
		return s, nil
	}
	tracker := track.New(agent.TrackOptions(x.selected, x.config, x.node))
	if len(d.Manifests) > 0 {
		files := source.Manifests{Paths: d.Manifests, NodeName: x.node}
		err := files.Load(ctx, tracker)
		if s := tracker.Latest(); s != nil {
			return s, nil // what cannot be used is not the subject here
		}
		return nil, err
	}
	to := server.Config(ctx)
	if to == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	api := source.APIServer{Config: to, NodeName: x.node, ProxyName: x.config.ProxyName}
	err := api.Run(ctx, endingSink{tracker, cancel})
	if s := tracker.Latest(); s != nil {
		return s, nil
	}
	return nil, errors.Join(errors.New("not all Services could be read from the API server in time"), err)
}

// endingSink calls end when all is read.
type endingSink struct {
	source.Sink
	end func()
}

// Synced implements source.Sink.
func (s endingSink) Synced() {
	s.Sink.Synced()
	s.end()
}

// ownServer is a server of the proxy.
type ownServer struct {
	name, flag string
	addr       netip.AddrPort
}

// serverAddrs returns where the servers of the proxy are to listen.
func serverAddrs(c *config.Config) []ownServer {
	var all []ownServer
	for _, s := range []struct{ name, flag, addr string }{
		{"health", "healthz-bind-address", c.HealthzBindAddress}, {"metrics", "metrics-bind-address", c.MetricsBindAddress},
	} {
		if a, err := netip.ParseAddrPort(s.addr); err == nil && a.Port() != 0 {
			all = append(all, ownServer{s.name, s.flag, a})
		}
	}
	return all
}
