// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"k8s.io/client-go/rest"

	"kubeproxy/common/metrics"
	"kubeproxy/common/report"
	"kubeproxy/common/service"
	"kubeproxy/common/source"
	"kubeproxy/config"
)

// newReports returns what is reported of the backends of x. In o are the node, the
// sources, the tracker, and the log.
func newReports(x *selectedMode, o report.Options) *report.Reports {
	c := x.config
	var families []service.Family
	for _, b := range x.backends {
		families = append(families, b.family)
	}
	_, resync := syncPeriods(c)
	o.Mode, o.Families, o.Unavailable, o.Observe = x.mode(), families, x.unavailable, x.observe
	o.SyncPeriod, o.PodsFromNode, o.ProxyName, o.ExternalIPsIgnored = resync, c.DetectLocalMode == config.NodeCIDR, c.ProxyName, c.IgnoreExternalIPs()
	o.Build, o.Features = buildMetric(), featureMetrics(c)
	o.Processes, o.Listen, o.MaxConnections = otherProxies, listenOn, maxConnections()
	r := report.New(o)
	for _, b := range x.backends {
		if b.conditions != nil {
			r.ObserveDataplane(b.conditions)
		}
		if b.registerMetrics != nil {
			b.registerMetrics(r.Metrics)
		}
	}
	return r
}

// apiOf returns the API server that a source reads, nil for none.
func apiOf(from source.Source) *rest.Config {
	if api, ok := from.(*source.APIServer); ok {
		return api.Config
	}
	return nil
}

// observe adds to seen what the kernel and the backends count.
func (x *selectedMode) observe(seen *metrics.Observation) {
	seen.Tracked = trackedConnections()
	seen.Packets, seen.Relay = packetMetrics(x.backends), relayMetrics(x.backends)
	seen.Localhost = localhostMetrics(x.backends)
}

// mode returns the name of the mode.
func (x *selectedMode) mode() string { return x.backends[0].mode }

func featureMetrics(c *config.Config) []metrics.Feature {
	var all []metrics.Feature
	for _, f := range c.Features() {
		all = append(all, metrics.Feature(f))
	}
	return all
}

func buildMetric() metrics.Build {
	b := buildInfo()
	return metrics.Build{
		GitVersion: b.Version, GitCommit: b.Revision, GitTreeState: b.treeState(), BuildDate: b.Time,
		GoVersion: b.Go, Compiler: b.Compiler, Platform: b.Platform,
	}
}
