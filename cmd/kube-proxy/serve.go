// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net"
	"runtime"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"kubeproxy/common/health"
	"kubeproxy/common/health/servicestate"
	"kubeproxy/common/metrics"
	"kubeproxy/common/service"
	"kubeproxy/config"
)

// serve starts the servers that c asks for in group.
func (o *observers) serve(ctx context.Context, group *errgroup.Group, c *config.Config, opts *options) {
	start := func(name, addr string, s health.Server) {
		if _, port, err := net.SplitHostPort(addr); err != nil || port == "0" {
			return
		}
		s.Name, s.Addr, s.HardFail = name, addr, c.BindAddressHardFail
		s.Failing = func(err error) {
			text := ""
			if err != nil {
				text = err.Error()
			}
			o.health.SetCondition("server-"+name, text)
		}
		group.Go(func() error { return s.Run(ctx) })
	}
	start("health", c.HealthzBindAddress, health.Server{Handler: o.health.Handler(health.Listener{
		Answered: o.metrics.Answered,
		Checked: func(path string, f service.Family, healthy bool) {
			o.metrics.Checked(metrics.Check{Name: f.String(), Type: path[1:], Passed: healthy})
		},
	})})
	start("metrics", c.MetricsBindAddress, health.Server{Handler: o.admin(c, opts).Handler()})
	group.Go(func() error {
		o.checks.servers.Run(ctx)
		return nil
	})
}

// admin is what the metrics server answers.
func (o *observers) admin(c *config.Config, opts *options) health.Admin {
	started := time.Now()
	return health.Admin{
		Mode:    o.mode,
		Metrics: o.metrics.Handler(),
		SLIs:    o.metrics.SLIs(),
		Services: o.book.Handler(func() servicestate.About {
			return servicestate.About{
				Mode: o.mode, Node: o.node, Version: builtFrom().Version, Started: started.UTC(), Health: o.health.Report(),
			}
		}),
		Config:    func() any { return c.KubeProxyConfiguration },
		Status:    &health.Status{Started: started, Version: builtFrom().Version, GoVersion: runtime.Version()},
		Flags:     func() map[string]string { return flagValues(opts.flags) },
		Profiling: c.EnableProfiling,
		Verbosity: opts.verbosity,
	}
}

// flagValues returns the value of every flag, given or not.
func flagValues(flags *pflag.FlagSet) map[string]string {
	all := map[string]string{}
	flags.VisitAll(func(f *pflag.Flag) { all[f.Name] = f.Value.String() })
	return all
}
