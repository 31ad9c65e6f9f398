// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"net/netip"
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/platform/windows/hns"
)

// hnsScenarioOptions are the operator's options for Windows, and the assumed network.
type hnsScenarioOptions struct {
	Kind                hns.Kind // L2Bridge by default
	SourceVIP           string
	DSR                 bool
	ForwardHealthChecks bool
}

// writeKernelspace writes what a Windows node would hold.
func writeKernelspace(t *testing.T, want *service.Snapshot, c scenarioOptions) string {
	t.Helper()
	o := hns.Options{DSR: c.HNS.DSR, ForwardHealthChecks: c.HNS.ForwardHealthChecks, RootEndpoint: "cbr0", HealthzPort: 10256}
	if c.HNS.SourceVIP != "" {
		o.SourceVIP = netip.MustParseAddr(c.HNS.SourceVIP)
	}
	kind := hns.L2Bridge
	if c.HNS.Kind != "" {
		kind = c.HNS.Kind
	}
	all, _, err := hns.Render(want, hns.AssumedListing(kind, want, o), o)
	if err != nil {
		t.Fatalf("render: %v", err)
	}
	return all.String()
}
