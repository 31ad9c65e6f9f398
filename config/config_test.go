// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"k8s.io/kube-proxy/config/v1alpha1"
)

const head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

// testModes are the modes that the tests of this package know.
var testModes = []Mode{
	{Name: IPTables, OS: Linux, Localhost: LocalhostRules, Settings: []string{"iptables.masqueradeBit", "iptables.localhostNodePorts", "iptables.syncPeriod", "conntrack.tcpBeLiberal"}},
	{Name: IPVS, OS: Linux, Localhost: LocalhostListeners, Settings: []string{"iptables.masqueradeBit", "ipvs.scheduler", "ipvs.strictARP", "ipvs.syncPeriod"}},
	{Name: NFTables, OS: Linux, Localhost: LocalhostListeners, Settings: []string{"nftables.masqueradeBit", "nftables.masqueradeAll", "nftables.syncPeriod", "conntrack.tcpBeLiberal"}},
	{Name: Userspace, OS: Linux, Localhost: LocalhostRules, Settings: []string{"iptables.localhostNodePorts", "portRange", udpIdlePath}},
	{Name: Kernelspace, OS: Windows, Settings: []string{"iptables.syncPeriod", "winkernel.sourceVip"}},
}

// in returns the use of a process in a mode with manifests.
func in(name v1alpha1.ProxyMode) Use {
	for _, m := range testModes {
		if m.Name == name {
			return Use{Mode: m}
		}
	}
	return Use{}
}

func flagsOf(t *testing.T, args ...string) *Flags {
	t.Helper()
	flags := &Flags{Modes: testModes}
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	flags.Register(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatalf("parse flags: %v", err)
	}
	return flags
}

// load parses args and loads body, a file without apiVersion and kind, for os.
func load(t *testing.T, os OS, body string, args ...string) (*Config, error) {
	t.Helper()
	flags := flagsOf(t, args...)
	file, err := Parse("f", []byte(head+body))
	if err != nil {
		return nil, err
	}
	return complete(file, flags, os, nil)
}

func mustLoad(t *testing.T, os OS, body string, args ...string) *Config {
	t.Helper()
	c, err := load(t, os, body, args...)
	if err != nil {
		t.Fatalf("load: %v", err)
	}
	return c
}

func written(c *Config) string {
	var b strings.Builder
	if err := c.Write(&b); err != nil {
		return err.Error()
	}
	return b.String()
}

func TestDefaults(t *testing.T) {
	for _, system := range []OS{Linux, Windows} {
		t.Run(string(system), func(t *testing.T) {
			got := written(mustLoad(t, system, ""))
			want, err := os.ReadFile(filepath.Join("testdata", "defaults-"+string(system)+".yaml"))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("defaults (-want +got):\n%s", diff)
			}
		})
	}
}

// Installers write every field. Most values are empty or 0, which means the defaults.
func TestEmptyMeansDefault(t *testing.T) {
	got := written(mustLoad(t, Linux, `
bindAddress: ""
clientConnection: {acceptContentTypes: "", burst: 0, contentType: "", kubeconfig: "", qps: 0}
configSyncPeriod: 0s
conntrack: {maxPerCore: null, min: null, tcpBeLiberal: false, tcpCloseWaitTimeout: null, tcpEstablishedTimeout: null, udpTimeout: 0s}
detectLocal: {bridgeInterface: "", interfaceNamePrefix: ""}
detectLocalMode: ""
healthzBindAddress: ""
iptables: {localhostNodePorts: null, masqueradeBit: null, syncPeriod: 0s}
ipvs: {excludeCIDRs: null, minSyncPeriod: 0s, syncPeriod: 0s}
logging: {flushFrequency: 0, options: {json: {infoBufferSize: "0"}}, verbosity: 0}
metricsBindAddress: ""
mode: ""
nodePortAddresses: null
oomScoreAdj: null
`))
	if diff := cmp.Diff(written(mustLoad(t, Linux, "")), got); diff != "" {
		t.Errorf("configuration (-default +got):\n%s", diff)
	}
}

func TestMinSyncPeriodZeroIsHonoured(t *testing.T) {
	c := mustLoad(t, Linux, "iptables: {minSyncPeriod: 0s}\n", "--proxy-mode=iptables")
	if got := c.IPTables.MinSyncPeriod.Duration; got != 0 {
		t.Errorf("from file: %v, want 0s", got)
	}
	c = mustLoad(t, Linux, "", "--iptables-min-sync-period=0")
	if got := c.NFTables.MinSyncPeriod.Duration; got != 0 {
		t.Errorf("from flag: %v, want 0s", got)
	}
}

func TestConntrackZeroIsNotNull(t *testing.T) {
	c := mustLoad(t, Linux, "conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s}\n")
	if got := *c.Conntrack.MaxPerCore; got != 0 {
		t.Errorf("maxPerCore = %d, want 0", got)
	}
	if got := c.Conntrack.TCPEstablishedTimeout.Duration; got != 0 {
		t.Errorf("tcpEstablishedTimeout = %v, want 0s", got)
	}
}

func TestAddresses(t *testing.T) {
	tests := map[string]struct {
		body             string
		args             []string
		healthz, metrics string
	}{
		"nothing":                         {"", nil, "0.0.0.0:10256", "127.0.0.1:10249"},
		"IPv6 node":                       {"bindAddress: '::'", nil, "[::]:10256", "[::1]:10249"},
		"file without port":               {"healthzBindAddress: 192.0.2.1", nil, "192.0.2.1:10256", "127.0.0.1:10249"},
		"IPv6 without port":               {"healthzBindAddress: fd00::1\nmetricsBindAddress: '[fd00::2]'", nil, "[fd00::1]:10256", "[fd00::2]:10249"},
		"port flag":                       {"", []string{"--healthz-port=1", "--metrics-port=2"}, "0.0.0.0:1", "127.0.0.1:2"},
		"port flag, address flag":         {"", []string{"--healthz-port=1", "--healthz-bind-address=::1"}, "[::1]:1", "127.0.0.1:10249"},
		"port flag goes before file":      {"healthzBindAddress: 192.0.2.1:7", []string{"--healthz-port=1"}, "192.0.2.1:1", "127.0.0.1:10249"},
		"port of address flag goes first": {"", []string{"--healthz-port=1", "--healthz-bind-address=192.0.2.1:9"}, "192.0.2.1:9", "127.0.0.1:10249"},
		"port flag 0 disables":            {"", []string{"--healthz-port=0", "--healthz-bind-address=192.0.2.1:9"}, "192.0.2.1:0", "127.0.0.1:10249"},
		"file disables":                   {"metricsBindAddress: 0.0.0.0:0", nil, "0.0.0.0:10256", "0.0.0.0:0"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := mustLoad(t, Linux, tt.body, tt.args...)
			got := []string{c.HealthzBindAddress, c.MetricsBindAddress}
			if diff := cmp.Diff([]string{tt.healthz, tt.metrics}, got); diff != "" {
				t.Errorf("healthz, metrics (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNodePorts(t *testing.T) {
	tests := map[string]struct {
		os   OS
		body string
		want string
	}{
		"nftables by default":       {Linux, "", "[] primary"},
		"iptables":                  {Linux, "mode: iptables", "[0.0.0.0/0 ::/0] "},
		"ipvs":                      {Linux, "mode: ipvs", "[0.0.0.0/0 ::/0] "},
		"kernelspace":               {Windows, "", "[0.0.0.0/0 ::/0] "},
		"prefixes, host bits":       {Linux, "nodePortAddresses: [fd00::/64, 10.1.2.3/8]", "[10.0.0.0/8 fd00::/64] "},
		"prefix of one family":      {Linux, "nodePortAddresses: [10.0.0.0/8]", "[10.0.0.0/8 ::/0] "},
		"prefix and primary":        {Linux, "nodePortAddresses: [primary, 10.0.0.0/8]", "[10.0.0.0/8] primary"},
		"all":                       {Linux, "nodePortAddresses: [all]", "[0.0.0.0/0 ::/0] "},
		"localhost":                 {Linux, "nodePortAddresses: [localhost]", "[127.0.0.0/8 ::1/128] "},
		"empty list is like absent": {Linux, "nodePortAddresses: []", "[] primary"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := mustLoad(t, tt.os, tt.body).NodePorts()
			var all []string
			for _, p := range r.Prefixes {
				all = append(all, p.String())
			}
			got := "[" + strings.Join(all, " ") + "] "
			if r.Primary {
				got += "primary"
			}
			if got != tt.want {
				t.Errorf("NodePorts = %q, want %q", got, tt.want)
			}
		})
	}
}

func TestNodeName(t *testing.T) {
	c := mustLoad(t, Linux, "hostnameOverride: ' Node-A '")
	if got := c.NodeName("host"); got != "node-a" {
		t.Errorf("override: %q, want node-a", got)
	}
	if got := mustLoad(t, Linux, "").NodeName(" HOST\n"); got != "host" {
		t.Errorf("host name: %q, want host", got)
	}
}

func TestNodeIP(t *testing.T) {
	for bind, want := range map[string]string{"": "invalid IP", "0.0.0.0": "invalid IP", "'::'": "invalid IP", "192.0.2.1": "192.0.2.1", "'::ffff:192.0.2.1'": "192.0.2.1"} {
		if got := mustLoad(t, Linux, "bindAddress: "+bind).NodeIP().String(); got != want {
			t.Errorf("bindAddress %s: NodeIP = %s, want %s", bind, got, want)
		}
	}
}

func TestIgnoreExternalIPs(t *testing.T) {
	for body, want := range map[string]bool{"": false, "featureGates: {AllowServiceExternalIPs: true}": false, "featureGates: {AllowServiceExternalIPs: false}": true} {
		if got := mustLoad(t, Linux, body).IgnoreExternalIPs(); got != want {
			t.Errorf("%q: IgnoreExternalIPs = %v, want %v", body, got, want)
		}
	}
}

func TestRoundTrip(t *testing.T) {
	tests := map[string]struct {
		os   OS
		args []string
	}{
		"linux":   {Linux, nil},
		"windows": {Windows, nil},
		"changed": {Linux, []string{
			"--iptables-min-sync-period=0", "--healthz-port=0", "--cluster-cidr=10.0.0.0/8,fd00::/48", "--bind-address=::",
			"--nodeport-addresses=primary,10.0.0.0/8", "--feature-gates=AllowServiceExternalIPs=false", "--vmodule=a*=3", "-v=4",
			"--conntrack-max-per-core=0", "--log-text-info-buffer-size=64Ki", "--log-flush-frequency=1s", "--kube-api-qps=2.5",
			"--hostname-override=NODE", "--detect-local-mode=NodeCIDR", "--oom-score-adj=5",
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			first := written(mustLoad(t, tt.os, "", tt.args...))
			file := filepath.Join(t.TempDir(), "config.yaml")
			if err := os.WriteFile(file, []byte(first), 0o600); err != nil {
				t.Fatal(err)
			}
			c, err := Load(&Flags{Modes: testModes, Config: file, StrictConfig: true}, tt.os)
			if err != nil {
				t.Fatalf("check what was written: %v", err)
			}
			if diff := cmp.Diff(first, written(c)); diff != "" {
				t.Errorf("second writing (-first +second):\n%s", diff)
			}
		})
	}
}
