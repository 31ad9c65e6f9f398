// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestEffectsAreComplete fails if a field of the type has no entry in effects.
func TestEffectsAreComplete(t *testing.T) {
	want := slices.Sorted(slices.Values(leafPaths()))
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(effects))); diff != "" {
		t.Errorf("effects (-settings +effects):\n%s", diff)
	}
}

var (
	inNFTables = in(NFTables)
	inIPVS     = Use{Mode: in(IPVS).Mode, APIServer: true}
)

var diffCases = map[string]struct {
	old, now string
	use      Use
	want     []Change
}{
	"the same": {"clusterCIDR: 10.0.0.0/8", "clusterCIDR: 10.0.0.0/8", inNFTables, nil},
	"the same, written otherwise": {
		"nodePortAddresses: []\nbindAddress: 0.0.0.0\nnftables: {syncPeriod: 60s}",
		"# a word\nnftables:\n  syncPeriod: 1m", inNFTables, nil,
	},
	"what can be taken in": {
		"nodePortAddresses: [primary]\nlogging: {verbosity: 2}",
		"nodePortAddresses: [192.0.2.0/24]\nlogging: {verbosity: 4}\nconntrack: {min: 7}", inNFTables,
		[]Change{
			{"logging.verbosity", "2", "4", Hot},
			{"nodePortAddresses", `["primary"]`, `["192.0.2.0/24"]`, Hot},
			{"conntrack.min", "131072", "7", Hot},
		},
	},
	"what cannot": {
		"", "hostnameOverride: b\nlogging: {format: json}\nnftables: {masqueradeBit: 3, masqueradeAll: true}", inNFTables,
		[]Change{
			{"logging.format", `"text"`, `"json"`, Restart},
			{"hostnameOverride", `""`, `"b"`, Restart},
			{"nftables.masqueradeBit", "14", "3", Restart},
			{"nftables.masqueradeAll", "false", "true", Hot},
		},
	},
	"a rule for invalid packets": {
		"", "conntrack: {tcpBeLiberal: true}", inNFTables, []Change{{"conntrack.tcpBeLiberal", "false", "true", Restart}},
	},
	"a rule for invalid packets of iptables": {
		"", "conntrack: {tcpBeLiberal: true}", in(IPTables), []Change{{"conntrack.tcpBeLiberal", "false", "true", Restart}},
	},
	"no rule for invalid packets": {
		"", "conntrack: {tcpBeLiberal: true}", inIPVS, []Change{{"conntrack.tcpBeLiberal", "false", "true", Hot}},
	},
	"of other modes and systems": {
		"mode: nftables", "mode: nftables\nipvs: {scheduler: sh}\niptables: {masqueradeBit: 3, syncPeriod: 9s}\nwinkernel: {networkName: n}\nwindowsRunAsService: true\nportRange: 1-2", inNFTables,
		[]Change{
			{"iptables.masqueradeBit", "14", "3", Unused},
			{"iptables.syncPeriod", `"30s"`, `"9s"`, Unused},
			{"ipvs.scheduler", `""`, `"sh"`, Unused},
			{"winkernel.networkName", `""`, `"n"`, Unused},
			{"portRange", `""`, `"1-2"`, Unused},
			{"windowsRunAsService", "false", "true", Unused},
		},
	},
	"of what no mode stood for": {
		"", "iptables: {masqueradeBit: 3, syncPeriod: 9s}", inNFTables,
		[]Change{
			{"iptables.masqueradeBit", "14", "3", Unused},
			{"iptables.syncPeriod", `"30s"`, `"9s"`, Unused},
			{"nftables.masqueradeBit", "14", "3", Restart},
			{"nftables.syncPeriod", `"30s"`, `"9s"`, Hot},
		},
	},
	"of the mode in force": {
		"mode: ipvs", "mode: ipvs\nipvs: {scheduler: sh, syncPeriod: 9s}\nnftables: {masqueradeBit: 3}", inIPVS,
		[]Change{
			{"ipvs.syncPeriod", `"30s"`, `"9s"`, Hot},
			{"ipvs.scheduler", `""`, `"sh"`, Restart},
			{"nftables.masqueradeBit", "14", "3", Unused},
		},
	},
	"another mode":        {"mode: nftables", "mode: iptables", inNFTables, []Change{{"mode", `"nftables"`, `"iptables"`, Restart}}},
	"the mode left open":  {"mode: nftables", "", inNFTables, []Change{{"mode", `"nftables"`, `""`, Restart}}},
	"the mode that it is": {"", "mode: nftables", inNFTables, []Change{{"mode", `""`, `"nftables"`, Unused}}},
	"API server":          {"", "clientConnection: {qps: 9}", inIPVS, []Change{{"clientConnection.qps", "5", "9", Restart}}},
	"API server not read": {"", "clientConnection: {qps: 9}", inNFTables, []Change{{"clientConnection.qps", "5", "9", Unused}}},
	"gates": {
		"featureGates: {AllowServiceExternalIPs: false, CPUManager: true}",
		"featureGates: {DryRun: false}", inNFTables,
		[]Change{
			{"featureGates[AllowServiceExternalIPs]", "false", "unset", Restart},
			{"featureGates[CPUManager]", "true", "unset", Unused},
			{"featureGates[DryRun]", "unset", "false", Unused},
		},
	},
	"the gate of ipvs, which may be": {
		"", "featureGates: {KubeProxyIPVS: false}", inNFTables,
		[]Change{{"featureGates[KubeProxyIPVS]", "unset", "false", Restart}},
	},
	"the gate of ipvs in another mode": {
		"mode: nftables", "mode: nftables\nfeatureGates: {KubeProxyIPVS: false}", inNFTables,
		[]Change{{"featureGates[KubeProxyIPVS]", "unset", "false", Unused}},
	},
	"a gate that is on anyway": {
		"", "featureGates: {AllowServiceExternalIPs: true}", inNFTables,
		[]Change{{"featureGates[AllowServiceExternalIPs]", "unset", "true", Unused}},
	},
}

func TestDiff(t *testing.T) {
	for situation, tc := range diffCases {
		t.Run(situation, func(t *testing.T) {
			got := Diff(mustLoad(t, Linux, tc.old), mustLoad(t, Linux, tc.now), tc.use)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("Diff (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDiffOnWindows(t *testing.T) {
	old := mustLoad(t, Windows, "")
	now := mustLoad(t, Windows, "winkernel: {sourceVip: 192.0.2.1}\nconntrack: {min: 7}\niptables: {syncPeriod: 9s}\nwindowsRunAsService: true")
	want := []Change{
		{"iptables.syncPeriod", `"30s"`, `"9s"`, Hot},
		{"winkernel.sourceVip", `""`, `"192.0.2.1"`, Restart},
		{"conntrack.min", "131072", "7", Unused},
		{"windowsRunAsService", "false", "true", Restart},
	}
	got := Diff(old, now, in(Kernelspace))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Diff (-want +got):\n%s", diff)
	}
	if text := got[1].String(); text != `winkernel.sourceVip: "" -> "192.0.2.1"` {
		t.Errorf("String = %s", text)
	}
}

// Flags still take precedence when the file is read again.
func TestLoadFromAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	flags := flagsOf(t, "--config="+path, "--cluster-cidr=10.0.0.0/8", "--feature-gates=DryRun=true")
	var loaded []*Config
	for _, body := range []string{"", "clusterCIDR: 10.1.0.0/16\nfeatureGates: {DryRun: false, CPUManager: true}"} {
		if err := os.WriteFile(path, []byte(head+body), 0o600); err != nil {
			t.Fatal(err)
		}
		data, err := flags.ReadFile()
		if err != nil {
			t.Fatal(err)
		}
		c, err := LoadFrom(flags, Linux, data)
		if err != nil {
			t.Fatal(err)
		}
		loaded = append(loaded, c)
	}
	want := []Change{{"featureGates[CPUManager]", "unset", "true", Unused}}
	if diff := cmp.Diff(want, Diff(loaded[0], loaded[1], inNFTables)); diff != "" {
		t.Errorf("Diff (-want +got):\n%s", diff)
	}
	if len(loaded[1].Overrides) != 2 {
		t.Errorf("overrides %v, want those of both flags", loaded[1].Overrides)
	}
}
