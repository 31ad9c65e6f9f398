// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"crypto/tls"
	"errors"
	"runtime"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"kubeproxy/cmd/kube-proxy/internal/host"
	"kubeproxy/common/condition"
	"kubeproxy/common/explain"
	"kubeproxy/common/health"
	"kubeproxy/common/health/servicestate"
	"kubeproxy/common/metrics"
	"kubeproxy/common/service"
)

// newServers returns the servers of p, which run in group.
func (p *proxy) newServers(group *errgroup.Group) (*servers, error) {
	secure, err := p.secure()
	if err != nil {
		return nil, err
	}
	return &servers{
		group: group,
		tls:   secure,
		reportListen: func(name string, err error) {
			text := ""
			if err != nil {
				text = err.Error()
			}
			p.reports.Health.SetCondition(condition.Server.Of(name), text)
			p.reports.Events.ReportServer(name, err)
		},
		health: p.reports.Health.Handler(health.Observer{
			Answered: p.reports.Metrics.HealthAnswered,
			Checked: func(path string, f service.Family, healthy bool) {
				p.reports.Metrics.Checked(metrics.Check{Name: f.String(), Type: path[1:], Passed: healthy})
			},
		}),
		admin:          p.admin(),
		running:        map[string][]*runningServer{},
		maxConnections: maxConnections(host.FilesLimit()),
	}, nil
}

// secure returns the certificate for HTTPS, nil if the flags name none.
func (p *proxy) secure() (*tls.Config, error) {
	cert, key := p.options.CertFile, p.options.KeyFile
	switch {
	case cert == "" && key == "":
		return nil, nil
	case cert == "" || key == "":
		return nil, errors.New("--tls-cert-file and --tls-private-key-file: want both, or neither")
	}
	c, err := health.LoadCertificate(cert, key, func(err error) {
		text := ""
		if err != nil {
			text = err.Error() + "; the servers use the previous one"
		}
		p.reports.Health.SetCondition(condition.Certificate, text)
	})
	if err != nil {
		return nil, err
	}
	return c.Config(), nil
}

// admin returns the handlers of the metrics server except profiling.
func (p *proxy) admin() health.Admin {
	r, mode := p.reports, string(p.selected.Name)
	started := time.Now()
	return health.Admin{
		Mode:    mode,
		Metrics: r.Metrics.Handler(),
		SLIs:    r.Metrics.SLIs(),
		Services: r.Services.Handler(func() servicestate.ProxyInfo {
			return servicestate.ProxyInfo{
				Mode: mode, Node: p.node, Version: p.process.Build.GitVersion, Started: started.UTC(), Health: r.Health.Report(),
				Accelerated: byName(acceleratedMetrics(p.selected.Backends)),
			}
		}),
		Explain: (&explain.Server{Tracker: p.tracker, Trace: p.trace, Local: isLocal, Relays: p.selected.Relays, Pod: p.pod}).Handler(),
		Traffic: p.trafficHandler(),
		Config:  func() any { return p.active.config().KubeProxyConfiguration },
		Status: &health.Status{
			Started: started, Version: p.process.Build.GitVersion, GoVersion: runtime.Version(), More: p.active.status,
		},
		Flags:     func() map[string]string { return flagValues(p.options.FlagSet) },
		Verbosity: p.process.Logs.Verbosity,
		Exposed:   p.options.Exposed,
	}
}

// byName returns counters with the names of families, nil for none.
func byName(counters map[service.Family]uint64) map[string]uint64 {
	var all map[string]uint64
	for f, n := range counters {
		if all == nil {
			all = map[string]uint64{}
		}
		all[f.String()] = n
	}
	return all
}

// flagValues returns the value of every flag, given or not.
func flagValues(flags *pflag.FlagSet) map[string]string {
	all := map[string]string{}
	flags.VisitAll(func(f *pflag.Flag) { all[f.Name] = f.Value.String() })
	return all
}
