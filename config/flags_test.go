// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"k8s.io/kube-proxy/config/v1alpha1"
)

// documented has every flag that any documented proxy had, except help and version.
const documented = `
azure-container-registry-config bind-address cleanup cleanup-iptables cleanup-ipvs cluster-cidr config config-sync-period
conntrack-max-per-core conntrack-min conntrack-tcp-timeout-established conntrack-tcp-timeout-close-wait feature-gates
healthz-bind-address healthz-port hostname-override iptables-masquerade-bit iptables-min-sync-period iptables-sync-period
ipvs-exclude-cidrs ipvs-min-sync-period ipvs-sync-period ipvs-scheduler ipvs-strict-arp kube-api-burst kube-api-qps
kube-api-content-type kubeconfig master log-flush-frequency masquerade-all metrics-bind-address metrics-port nodeport-addresses
oom-score-adj profiling proxy-mode proxy-port-range udp-timeout write-config-to conntrack-max resource-container windows-service
source-vip network-name enable-dsr bind-address-hard-fail detect-local-mode ipvs-tcp-timeout ipvs-tcpfin-timeout
ipvs-udp-timeout show-hidden-metrics-for-version pod-bridge-interface pod-interface-name-prefix root-hnsendpoint-name
forward-healthcheck-vip iptables-localhost-nodeports conntrack-tcp-be-liberal conntrack-udp-timeout
conntrack-udp-timeout-stream init-only v vmodule logging-format log-json-info-buffer-size log-json-split-stream
log-text-info-buffer-size log-text-split-stream log-dir log-file logtostderr`

func TestEveryFlag(t *testing.T) {
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	new(Flags).Register(fs)
	for _, name := range strings.Fields(documented) {
		if fs.Lookup(name) == nil {
			t.Errorf("--%s is missing", name)
		}
	}
	fs.VisitAll(func(f *pflag.Flag) {
		if len(f.Annotations[GroupAnnotation]) != 1 {
			t.Errorf("--%s has no group", f.Name)
		}
		if shared := slices.Contains(strings.Fields(sharedFlags+" "+sharedSwitches), f.Name); f.Hidden != shared || f.Deprecated != "" {
			t.Errorf("--%s is hidden from help: %t, want %t", f.Name, f.Hidden, shared)
		}
	})
}

// Almost every field has a flag, and every flag has a field.
func TestEveryField(t *testing.T) {
	all := paths(reflect.TypeFor[v1alpha1.KubeProxyConfiguration](), "")
	flagged := map[string]bool{}
	for _, s := range settings {
		flagged[s.path], flagged[s.nftables] = true, true
		if !fieldAt(&v1alpha1.KubeProxyConfiguration{}, s.path).IsValid() {
			t.Errorf("--%s sets %s, which does not exist", s.flag, s.path)
		}
	}
	var without []string
	for _, p := range all {
		section := strings.Contains(strings.Join(all, "\n"), p+".")
		if !section && !flagged[p] {
			without = append(without, p)
		}
	}
	want := []string{"kind", "apiVersion", "clientConnection.acceptContentTypes"}
	if diff := cmp.Diff(want, without); diff != "" {
		t.Errorf("fields without flag (-want +got):\n%s", diff)
	}
}

func TestPrecedence(t *testing.T) {
	const body = "clusterCIDR: 10.0.0.0/8\nmode: nftables\nnftables: {syncPeriod: 10s}\nfeatureGates: {WinDSR: true, WinOverlay: true}\nenableProfiling: true\n"
	c := mustLoad(t, Linux, body, "--cluster-cidr=11.0.0.0/8", "--iptables-sync-period=20s", "--profiling=false",
		"--masquerade-all", "--proxy-mode=nftables", "--feature-gates=WinDSR=false", "--oom-score-adj=1")
	var got []string
	for _, o := range c.Overrides {
		got = append(got, o.String())
	}
	want := []string{
		`--profiling overrides enableProfiling of the configuration file: false, not true`,
		`--cluster-cidr overrides clusterCIDR of the configuration file: "11.0.0.0/8", not "10.0.0.0/8"`,
		`--iptables-sync-period overrides nftables.syncPeriod of the configuration file: "20s", not "10s"`,
		`--feature-gates overrides featureGates[WinDSR] of the configuration file: false, not true`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("overrides (-want +got):\n%s", diff)
	}
	if c.ClusterCIDR != "11.0.0.0/8" || c.EnableProfiling || !c.NFTables.MasqueradeAll || *c.OOMScoreAdj != 1 {
		t.Errorf("a flag lost against the file:\n%s", written(c))
	}
	if diff := cmp.Diff(map[string]bool{"WinDSR": false, "WinOverlay": true}, c.FeatureGates); diff != "" {
		t.Errorf("gates (-want +got):\n%s", diff)
	}
}

// The sync flags belong to iptables by name. In mode nftables they set its periods too. In
// other modes they do not.
func TestSyncFlagsByMode(t *testing.T) {
	tests := map[string]struct {
		os   OS
		args []string
		want string
	}{
		"default":     {Linux, nil, "9s 9s"},
		"nftables":    {Linux, []string{"--proxy-mode=nftables"}, "9s 9s"},
		"iptables":    {Linux, []string{"--proxy-mode=iptables"}, "9s 30s"},
		"kernelspace": {Windows, nil, "9s 30s"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := mustLoad(t, tt.os, "", append(tt.args, "--iptables-sync-period=9s")...)
			if got := c.IPTables.SyncPeriod.Duration.String() + " " + c.NFTables.SyncPeriod.Duration.String(); got != tt.want {
				t.Errorf("iptables, nftables = %s, want %s", got, tt.want)
			}
		})
	}
}

func TestBadFlagValues(t *testing.T) {
	for _, arg := range []string{
		"--udp-timeout=soon", "--feature-gates=WinDSR", "--feature-gates==true=x",
		"--v=x", "--vmodule=a", "--log-json-info-buffer-size=much", "--cleanup=perhaps", "--ipvs-sync-period=30",
	} {
		fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
		new(Flags).Register(fs)
		if err := fs.Parse([]string{arg}); err == nil {
			t.Errorf("%s is accepted", arg)
		}
	}
}

func TestOldSpellings(t *testing.T) {
	f := &Flags{Modes: testModes}
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	f.Register(fs)
	args := []string{
		"--cleanup-iptables", "--cleanup-ipvs", "--proxy-port-range=0-0", "--conntrack-max=0", "--resource-container=/x",
		"--azure-container-registry-config=", "--feature-gates=A=true", "--feature-gates=B=false",
	}
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	if !f.Cleanup {
		t.Error("--cleanup-iptables does not clean up")
	}
	if diff := cmp.Diff(map[string]bool{"A": true, "B": false}, f.values.FeatureGates); diff != "" {
		t.Errorf("gates (-want +got):\n%s", diff)
	}
}

// TestSharedFlags checks the flags that kube-proxy had from cAdvisor and cloud providers.
func TestSharedFlags(t *testing.T) {
	args := []string{"--google-json-key=", "--housekeeping-interval=10s", "--docker_only", "--event-storage-age-limit=default=0", "--enable-load-reader=false"}
	flags := &Flags{Modes: testModes}
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	fs.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
	flags.Register(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	c, err := complete(&File{}, flags, Linux, nil)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(notesText(c), ": is deprecated: ignored, never concerned the proxy"); n != len(args) {
		t.Errorf("%d notes, want %d:\n%s", n, len(args), notesText(c))
	}
}

// TestGatesOverride checks that a gate of a flag which says the same as the file is no
// override.
func TestGatesOverride(t *testing.T) {
	for flag, want := range map[string]int{"WinDSR=true": 0, "WinDSR=false": 1, "WinOverlay=false": 0} {
		if c := mustLoad(t, Linux, "featureGates: {WinDSR: true}\n", "--feature-gates="+flag); len(c.Overrides) != want {
			t.Errorf("%s: %v, want %d", flag, c.Overrides, want)
		}
	}
}

// TestPortOverride checks that a port which says the same as the file is no override.
func TestPortOverride(t *testing.T) {
	for flag, want := range map[string]string{
		"--metrics-port=10249": "",
		"--metrics-port=7":     `--metrics-port overrides metricsBindAddress of the configuration file: "127.0.0.1:7", not "127.0.0.1:10249"`,
		"--healthz-port=7":     "", // the file does not set it
	} {
		var got string
		for _, o := range mustLoad(t, Linux, "metricsBindAddress: 127.0.0.1:10249\n", flag).Overrides {
			got += o.String()
		}
		if got != want {
			t.Errorf("%s: overrides %q, want %q", flag, got, want)
		}
	}
}
