// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/netip"
	"os"
	"path/filepath"

	"kubeproxy/config"
	"kubeproxy/platform/windows/hns"
)

// hnsOptions translates what the configuration says about Windows.
func hnsOptions(c *config.Config) hns.Options {
	o := hns.Options{
		NetworkName:         c.Winkernel.NetworkName,
		EnvName:             os.Getenv("KUBE_NETWORK"),
		DSR:                 c.Winkernel.EnableDSR,
		ForwardHealthChecks: c.Winkernel.ForwardHealthCheckVip,
		RootEndpoint:        c.Winkernel.RootHnsEndpointName,
		IgnoreSourceRanges:  c.IgnoreSourceRanges,
	}
	// Both were checked when the configuration was read.
	o.SourceVIP, _ = netip.ParseAddr(c.Winkernel.SourceVip)
	if health, err := netip.ParseAddrPort(c.HealthzBindAddress); err == nil {
		o.HealthzPort = health.Port()
	}
	if metrics, err := netip.ParseAddrPort(c.MetricsBindAddress); err == nil {
		o.MetricsPort = metrics.Port()
	}
	return o
}

// hnsStateFile is where a node remembers what it made, in the folder where
// programs of the system keep their data.
func hnsStateFile() string {
	data := os.Getenv("ProgramData")
	if data == "" {
		data = `C:\ProgramData`
	}
	return filepath.Join(data, "kube-proxy", "hns-state.json")
}
