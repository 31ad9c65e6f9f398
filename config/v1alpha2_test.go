// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

// load2 is load for a file with apiVersion v1alpha2.
func load2(t *testing.T, body string) (*Config, error) {
	t.Helper()
	f := &Flags{Modes: testModes, Config: "f"}
	f.Register(pflag.NewFlagSet("test", pflag.ContinueOnError))
	f.Config = "f"
	return LoadFrom(f, Linux, []byte("apiVersion: "+apiVersion2+"\nkind: KubeProxyConfiguration\n"+body))
}

func TestVersion2(t *testing.T) {
	c, err := load2(t, `mode: nftables
syncPeriod: 20s
minSyncPeriod: 0s
nodeIPOverride: [192.0.2.1, "2001:db8::1"]
ipFamilyPolicy: PreferDualStack
configHardFail: true
linux: {oomScoreAdj: -5, masqueradeAll: true, conntrack: {min: 7}}
windows: {runAsService: false}
detectLocal: {clusterCIDRs: [10.0.0.0/8, "fd00::/48"]}
iptables: {masqueradeBit: 3}
ipvs: {masqueradeBit: 9, strictARP: true}
enableContentionProfiling: true
leaderElection: {leaderElect: true, leaseDuration: 5s}
`)
	if err != nil {
		t.Fatal(err)
	}
	type values struct {
		Sync, Sync4, Min  time.Duration
		Node, CIDR        string
		OOM, Track, Bit   int32
		All, All4, Strict bool
		Local, Hard       bool
	}
	want := values{20 * time.Second, 20 * time.Second, 0, "192.0.2.1", "10.0.0.0/8,fd00::/48", -5, 7, 3, true, true, true, false, true}
	got := values{
		c.NFTables.SyncPeriod.Duration, c.IPVS.SyncPeriod.Duration, c.NFTables.MinSyncPeriod.Duration, c.BindAddress, c.ClusterCIDR,
		*c.OOMScoreAdj, *c.Conntrack.Min, *c.IPTables.MasqueradeBit, c.NFTables.MasqueradeAll, c.IPTables.MasqueradeAll, c.IPVS.StrictARP,
		*c.IPTables.LocalhostNodePorts, c.BindAddressHardFail,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("values (-want +got):\n%s", diff)
	}
	for _, path := range []string{"nodeIPOverride", "ipFamilyPolicy", "enableContentionProfiling", "leaderElection"} {
		if n := strings.Count(notesText(c), ": "+path+": "); n != 1 {
			t.Errorf("%d notes on %s, want 1:\n%s", n, path, notesText(c))
		}
	}
	if c, err := load2(t, "mode: ipvs\nipvs: {masqueradeBit: 9}\n"); err != nil || *c.IPTables.MasqueradeBit != 9 {
		t.Errorf("mode ipvs: %v, want its own bit", err)
	}
}

// Messages about a value name the field as the file has it.
func TestVersion2Names(t *testing.T) {
	c, err := load2(t, "windows: {runAsService: true}\nnodePortAddresses: [primary]\n")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := notesText(c), "f:3: windows.runAsService: has no effect on linux"; got != want {
		t.Errorf("notes %q, want %q", got, want)
	}
	for body, want := range map[string]string{
		"nodeIPOverride: [a]":                     "f:3: nodeIPOverride: ",
		"linux: {conntrack: {min: -1}}":           "f:3: linux.conntrack.min: ",
		"detectLocal: {clusterCIDRs: [10.0.0.0]}": "f:3: detectLocal.clusterCIDRs: ",
	} {
		if _, err := load2(t, body); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %s...", body, err, want)
		}
	}
}

func notesText(c *Config) string {
	var all []string
	for _, n := range c.Notes {
		all = append(all, n.String())
	}
	return strings.Join(all, "\n")
}

func TestVersion2Mistakes(t *testing.T) {
	tests := map[string]struct{ body, want string }{
		"moved":         {"oomScoreAdj: 1\niptables: {syncPeriod: 1s}", "f:3: oomScoreAdj: is no field of v1alpha2: want linux.oomScoreAdj\nf:4: iptables.syncPeriod: is no field of v1alpha2: want syncPeriod"},
		"dropped":       {"portRange: 1-2\nclusterCIDR: ''\nbindAddress: ''", "f:3: portRange: is no field of v1alpha2: only mode userspace uses it: want --proxy-port-range\nf:4: clusterCIDR: is no field of v1alpha2: want detectLocal.clusterCIDRs\nf:5: bindAddress: is no field of v1alpha2: want nodeIPOverride"},
		"unknown":       {"linux: {oomScorAdj: 1}\nstrictARP: true", "f:3: linux.oomScorAdj: unknown field; did you mean linux.oomScoreAdj?\nf:4: strictARP: unknown field; did you mean ipvs.strictARP?"},
		"of wrong type": {"linux: {conntrack: {min: x}}\nsyncPeriod: 5", "f:3: linux.conntrack.min: is \"x\": want a whole number that fits into 32 bits\nf:4: syncPeriod: is \"5\": want a duration such as 30s or 1h30m"},
		"no section":    {"linux: 5", "f:3: linux: is \"5\": want a mapping"},
		"policy":        {"ipFamilyPolicy: Dual", "f:3: ipFamilyPolicy: \"Dual\" is unknown: want SingleStack, PreferDualStack or RequireDualStack"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := load2(t, tt.body)
			if err == nil {
				t.Fatalf("no error, want %s", tt.want)
			}
			if diff := cmp.Diff(tt.want, err.Error()); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
	if c, err := load2(t, "configHardFail: false\nportRange: 1-2\n"); err != nil || len(c.Warnings) != 1 {
		t.Errorf("without configHardFail: %v", err)
	}
	_, err := Parse("f", []byte("apiVersion: kubeproxy.config.k8s.io/v1beta1\nkind: KubeProxyConfiguration\n"))
	const want = `f:1: apiVersion: is "kubeproxy.config.k8s.io/v1beta1", which is not known here: want kubeproxy.config.k8s.io/v1alpha1, or kubeproxy.config.k8s.io/v1alpha2 as far as it is settled`
	if err == nil || err.Error() != want {
		t.Errorf("another version: %v, want %s", err, want)
	}
}
