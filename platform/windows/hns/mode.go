// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"fmt"
	"net/netip"
	"os"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
)

// Mode describes mode kernelspace.
func Mode() mode.Descriptor {
	return mode.Descriptor{
		Mode: config.Mode{
			Name: config.Kernelspace, OS: config.Windows,
			Settings: []string{
				"iptables.syncPeriod", "iptables.minSyncPeriod", "winkernel.networkName", "winkernel.sourceVip", "winkernel.enableDSR",
				"winkernel.rootHnsEndpointName", "winkernel.forwardHealthCheckVip",
			},
		},
		DefaultRank:     1,
		ListedEndpoints: true,
		Needs:           "a network of Host Networking Service",
		Leaves:          "load balancers and remote endpoints of Host Networking Service",
		Section:         sectionOf,
		Render:          render,
		Limits:          assumedLimits,
		Differences:     assumedDifferences,
		System:          system(),
	}
}

// sectionOf takes the periods from section iptables, as kube-proxy does.
func sectionOf(c *config.Config) mode.Section {
	s := &c.IPTables
	return mode.Section{MinSyncPeriod: s.MinSyncPeriod.Duration, SyncPeriod: s.SyncPeriod.Duration, MasqueradeAll: s.MasqueradeAll}
}

// OptionsOf translates section winkernel of the configuration.
func OptionsOf(c *config.Config) Options {
	o := Options{
		NetworkName:         c.Winkernel.NetworkName,
		EnvName:             os.Getenv("KUBE_NETWORK"),
		DSR:                 c.Winkernel.EnableDSR,
		ForwardHealthChecks: c.Winkernel.ForwardHealthCheckVip,
		RootEndpoint:        c.Winkernel.RootHnsEndpointName,
		IgnoreSourceRanges:  c.IgnoreSourceRanges,
	}
	// The configuration was validated when it was read.
	o.SourceVIP, _ = service.ParseAddr(c.Winkernel.SourceVip)
	if health, err := netip.ParseAddrPort(c.HealthzBindAddress); err == nil {
		o.HealthzPort = health.Port()
	}
	if metrics, err := netip.ParseAddrPort(c.MetricsBindAddress); err == nil {
		o.MetricsPort = metrics.Port()
	}
	return o
}

// assumedLimits assumes what render does. It returns what a round says of what HNS cannot do.
func assumedLimits(want *service.Snapshot, f service.Family, r mode.Rendering) (reconcile.Outcome, error) {
	o, kind := assumed(r.Config)
	p, err := planOffline(want, f, AssumedListing(kind, want, o), o)
	if err != nil {
		return reconcile.Outcome{}, err
	}
	return p.Outcome(), nil
}

// assumedDifferences assumes what render does.
func assumedDifferences(want *service.Snapshot, c route.Conn, r mode.Rendering) ([]string, error) {
	o, kind := assumed(r.Config)
	return Differences(want, c, AssumedListing(kind, want, o), o)
}

// assumed returns the options and the type of network of a node of which nothing else is known.
func assumed(c *config.Config) (Options, Kind) {
	o := OptionsOf(c)
	o.NetworkName, o.EnvName = "", ""
	if o.SourceVIP.IsValid() {
		return o, Overlay
	}
	return o, L2Bridge
}

// render prints what a node would hold, and what would change if its HNS is known.
func render(want *service.Snapshot, r mode.Rendering) (reconcile.Objects, any, error) {
	o := OptionsOf(r.Config)
	if r.State == "" {
		o, kind := assumed(r.Config)
		r.Note(fmt.Sprintf("nothing is known of the node's HNS, so the network is assumed to be of type %s; use --hns-state FILE", kind))
		return Render(want, AssumedListing(kind, want, o), o)
	}
	text, err := os.ReadFile(r.State)
	if err != nil {
		return nil, nil, fmt.Errorf("--hns-state: %w", err)
	}
	l, err := ReadState(text)
	if err != nil {
		return nil, nil, fmt.Errorf("--hns-state: %s: %w", r.State, err)
	}
	return Render(want, l, o)
}
