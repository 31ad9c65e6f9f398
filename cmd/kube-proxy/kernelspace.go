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

// hnsOptions translates the Windows section of the configuration.
func hnsOptions(c *config.Config) hns.Options {
	o := hns.Options{
		NetworkName:         c.Winkernel.NetworkName,
		EnvName:             os.Getenv("KUBE_NETWORK"),
		DSR:                 c.Winkernel.EnableDSR,
		ForwardHealthChecks: c.Winkernel.ForwardHealthCheckVip,
		RootEndpoint:        c.Winkernel.RootHnsEndpointName,
		IgnoreSourceRanges:  c.IgnoreSourceRanges,
	}
	// The configuration was validated when it was read.
	o.SourceVIP, _ = netip.ParseAddr(c.Winkernel.SourceVip)
	if health, err := netip.ParseAddrPort(c.HealthzBindAddress); err == nil {
		o.HealthzPort = health.Port()
	}
	if metrics, err := netip.ParseAddrPort(c.MetricsBindAddress); err == nil {
		o.MetricsPort = metrics.Port()
	}
	return o
}

// hnsStateFile returns the file in which a node records its HNS objects. It is in the
// folder for data of system programs.
func hnsStateFile() string {
	data := os.Getenv("ProgramData")
	if data == "" {
		data = `C:\ProgramData`
	}
	return filepath.Join(data, "kube-proxy", "hns-state.json")
}
