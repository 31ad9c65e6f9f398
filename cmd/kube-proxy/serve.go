// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"runtime"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"kubeproxy/common/health"
	"kubeproxy/common/health/servicestate"
	"kubeproxy/common/metrics"
	"kubeproxy/common/service"
)

// startServers starts in group the servers that the configuration enables, and the writer
// of Events.
func (o *statusReporter) startServers(ctx context.Context, group *errgroup.Group, f *activeConfig, opts *options) *servers {
	s := &servers{
		group: group,
		reportListen: func(name string, err error) {
			text := ""
			if err != nil {
				text = err.Error()
			}
			o.health.SetCondition("server-"+name, text)
			o.events.reportServer(name, err)
		},
		health: o.health.Handler(health.Observer{
			Answered: o.metrics.HealthAnswered,
			Checked: func(path string, f service.Family, healthy bool) {
				o.metrics.Checked(metrics.Check{Name: f.String(), Type: path[1:], Passed: healthy})
			},
		}),
		admin:          o.admin(f, opts),
		running:        map[string][]*runningServer{},
		maxConnections: maxConnections(),
	}
	s.start(ctx, f.config())
	o.events.start(ctx, group)
	group.Go(func() error {
		o.checks.servers.Run(ctx)
		return nil
	})
	return s
}

// admin returns the handlers of the metrics server except profiling.
func (o *statusReporter) admin(f *activeConfig, opts *options) health.Admin {
	started := time.Now()
	return health.Admin{
		Mode:    o.mode,
		Metrics: o.metrics.Handler(),
		SLIs:    o.metrics.SLIs(),
		Services: o.services.Handler(func() servicestate.ProxyInfo {
			return servicestate.ProxyInfo{
				Mode: o.mode, Node: o.node, Version: buildInfo().Version, Started: started.UTC(), Health: o.health.Report(),
			}
		}),
		Config: func() any { return f.config().KubeProxyConfiguration },
		Status: &health.Status{
			Started: started, Version: buildInfo().Version, GoVersion: runtime.Version(), More: f.status,
		},
		Flags:     func() map[string]string { return flagValues(opts.flags) },
		Verbosity: opts.logs.Verbosity,
	}
}

// flagValues returns the value of every flag, given or not.
func flagValues(flags *pflag.FlagSet) map[string]string {
	all := map[string]string{}
	flags.VisitAll(func(f *pflag.Flag) { all[f.Name] = f.Value.String() })
	return all
}
