// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"k8s.io/client-go/rest"

	"kubeproxy/cmd/kube-proxy/internal/host"
	"kubeproxy/common/metrics"
	"kubeproxy/common/report"
	"kubeproxy/common/service"
	"kubeproxy/common/source"
	"kubeproxy/config"
)

// newReports returns what is reported of the backends of x. In o are the node, the
// build, the sources, the tracker, and the log.
func (s System) newReports(x *Selected, o report.Options) *report.Reports {
	c := x.Config
	var families []service.Family
	for _, b := range x.Backends {
		families = append(families, b.Family)
	}
	o.Mode, o.Families, o.Unavailable, o.Observe = string(x.Name), families, x.Unavailable, func(seen *metrics.Observation) {
		seen.Tracked = s.Tracked()
		x.observe(seen)
	}
	o.SyncPeriod, o.PodsFromNode, o.ProxyName, o.ExternalIPsIgnored = x.Section(c).SyncPeriod, c.DetectLocalMode == config.NodeCIDR, c.ProxyName, c.IgnoreExternalIPs()
	o.DeprecatedMode = x.Deprecated
	o.Features = featureMetrics(c)
	o.Processes, o.Listen, o.MaxConnections = s.Processes, listenOn, maxConnections(host.FilesLimit())
	r := report.New(o)
	r.ObserveDataplane(x.conditions)
	for _, b := range x.Backends {
		if b.RegisterMetrics != nil {
			b.RegisterMetrics(r.Metrics)
		}
	}
	return r
}

// apiOf returns the API server that a source reads, nil for none.
func apiOf(from source.Source) *rest.Config {
	if api, ok := from.(*apiSource); ok {
		return api.Config
	}
	return nil
}

// observe adds to seen what the backends count.
func (x *Selected) observe(seen *metrics.Observation) {
	seen.Packets, seen.Relay = packetMetrics(x.Backends), relayMetrics(x.Backends)
	seen.Localhost, seen.Traffic = localhostMetrics(x.Backends), x.named()
	seen.Accelerated, seen.Unrelayed = acceleratedMetrics(x.Backends), unrelayedMetrics(x.Backends)
}

func featureMetrics(c *config.Config) []metrics.Feature {
	var all []metrics.Feature
	for _, f := range c.Features() {
		all = append(all, metrics.Feature(f))
	}
	return all
}
