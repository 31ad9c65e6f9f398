// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/test/kit"
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
	kit.Must(t, fs.Parse(args))
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
	kit.Need(t, err == nil, "load: %v", err)
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
			want := kit.ReadFile(t, filepath.Join("testdata", "defaults-"+string(system)+".yaml"))
			kit.Same(t, "defaults (-want +got)", string(want), got)
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
	kit.Same(t, "configuration (-default +got)", written(mustLoad(t, Linux, "")), got)
}

func TestMinSyncPeriodZeroIsHonoured(t *testing.T) {
	c := mustLoad(t, Linux, "iptables: {minSyncPeriod: 0s}\n", "--proxy-mode=iptables")
	got := c.IPTables.MinSyncPeriod.Duration
	kit.Check(t, got == 0, "from file: %v, want 0s", got)
	c = mustLoad(t, Linux, "", "--iptables-min-sync-period=0")
	if got := c.NFTables.MinSyncPeriod.Duration; got != 0 {
		t.Errorf("from flag: %v, want 0s", got)
	}
}

func TestConntrackZeroIsNotNull(t *testing.T) {
	c := mustLoad(t, Linux, "conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s}\n")
	got := *c.Conntrack.MaxPerCore
	kit.Check(t, got == 0, "maxPerCore = %d, want 0", got)
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
			kit.Same(t, "healthz, metrics (-want +got)", []string{tt.healthz, tt.metrics}, got)
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
			kit.Check(t, got == tt.want, "NodePorts = %q, want %q", got, tt.want)
		})
	}
}

func TestNodeName(t *testing.T) {
	c := mustLoad(t, Linux, "hostnameOverride: ' Node-A '")
	got := c.NodeName("host")
	kit.Check(t, got == "node-a", "override: %q, want node-a", got)
	if got := mustLoad(t, Linux, "").NodeName(" HOST\n"); got != "host" {
		t.Errorf("host name: %q, want host", got)
	}
}

func TestNodeIP(t *testing.T) {
	for bind, want := range map[string]string{"": "invalid IP", "0.0.0.0": "invalid IP", "'::'": "invalid IP", "192.0.2.1": "192.0.2.1", "'::ffff:192.0.2.1'": "192.0.2.1"} {
		kit.Equal(t, mustLoad(t, Linux, "bindAddress: "+bind).NodeIP().String(), want, "bindAddress %s: NodeIP", bind)
	}
}

func TestIgnoreExternalIPs(t *testing.T) {
	for body, want := range map[string]bool{"": false, "featureGates: {AllowServiceExternalIPs: true}": false, "featureGates: {AllowServiceExternalIPs: false}": true} {
		kit.Equal(t, mustLoad(t, Linux, body).IgnoreExternalIPs(), want, "%q: IgnoreExternalIPs", body)
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
			kit.Must(t, os.WriteFile(file, []byte(first), 0o600))
			c, err := Load(&Flags{Modes: testModes, Config: file, StrictConfig: true}, tt.os)
			kit.Need(t, err == nil, "check what was written: %v", err)
			kit.Same(t, "second writing (-first +second)", first, written(c))
		})
	}
}

// TestLeadingZeros checks that numbers in addresses are decimal, as kube-proxy reads them.
func TestLeadingZeros(t *testing.T) {
	var c Config
	c.BindAddress, c.ClusterCIDR = "192.000.002.001", "010.244.000.000/16,fd00:0010::/048"
	c.NodePortAddresses = []string{"192.0.002.000/24"}
	want := "192.0.2.1 [10.244.0.0/16 fd00:10::/48] [192.0.2.0/24 ::/0]"
	got := fmt.Sprint(c.NodeIP(), c.ClusterCIDRs(), c.NodePorts().Prefixes)
	kit.Check(t, got == want, "got %s, want %s", got, want)
}

func TestValidate(t *testing.T) {
	tests := map[string]struct {
		body string
		args []string
		want []string
	}{
		"mode of Windows":      {"", []string{"--proxy-mode=kernelspace"}, []string{`--proxy-mode: mode: "kernelspace" is no mode on linux: want iptables, ipvs, nftables, userspace or nothing`}},
		"masquerade bit":       {"iptables: {masqueradeBit: 32}\nnftables: {masqueradeBit: -1}", nil, []string{`f:3: iptables.masqueradeBit: 32 is out of range: want 0 to 31`, `f:4: nftables.masqueradeBit: -1 is out of range: want 0 to 31`}},
		"bad flag over file":   {"iptables: {masqueradeBit: 3}", []string{"--iptables-masquerade-bit=99", "--proxy-mode=iptables"}, []string{`--iptables-masquerade-bit: iptables.masqueradeBit: 99 is out of range: want 0 to 31`}},
		"oom score":            {"oomScoreAdj: 1001", nil, []string{`f:3: oomScoreAdj: 1001 is out of range: want -1000 to 1000`}},
		"media type":           {"clientConnection: {contentType: foo}", nil, []string{`f:3: clientConnection.contentType: "foo" is no media type of the API: want application/vnd.kubernetes.protobuf or application/json`}},
		"media type, misspelt": {"", []string{"--kube-api-content-type=application/jsn"}, []string{`--kube-api-content-type: clientConnection.contentType: "application/jsn" is no media type of the API; did you mean application/json? want application/vnd.kubernetes.protobuf or application/json`}},
		"burst":                {"clientConnection: {burst: -1}", nil, []string{`f:3: clientConnection.burst: -1 is too small: want 0 or more`}},
		"negative period":      {"configSyncPeriod: -1s", nil, []string{`f:3: configSyncPeriod: -1s is too short: want more than 0s`}},
		"zero period by flag":  {"", []string{"--config-sync-period=0"}, []string{`--config-sync-period: configSyncPeriod: 0s is too short: want more than 0s`}},
		"min over max":         {"ipvs: {syncPeriod: 1s, minSyncPeriod: 2s}", nil, []string{`f:3: ipvs.minSyncPeriod: 2s is more than ipvs.syncPeriod: want at most 1s`}},
		"default min over max": {"nftables: {syncPeriod: 500ms}", nil, []string{`nftables.minSyncPeriod: 1s is more than nftables.syncPeriod: want at most 500ms`}},
		"timeouts of IPVS": {"ipvs: {tcpTimeout: -1s, tcpFinTimeout: 596h31m24s, udpTimeout: 9000h}", nil, []string{
			`f:3: ipvs.tcpTimeout: -1s is out of range: want 0s to 596h31m23s`, `f:3: ipvs.tcpFinTimeout: 596h31m24s is out of range: want 0s to 596h31m23s`,
			`f:3: ipvs.udpTimeout: 9000h0m0s is out of range: want 0s to 596h31m23s`,
		}},
		"conntrack": {"conntrack: {maxPerCore: -1, min: -1, tcpEstablishedTimeout: -1s, tcpCloseWaitTimeout: -1s, udpTimeout: -1s, udpStreamTimeout: -1s}", nil, []string{
			`f:3: conntrack.maxPerCore: -1 is too small: want 0 or more`, `f:3: conntrack.min: -1 is too small: want 0 or more`,
			`f:3: conntrack.tcpEstablishedTimeout: -1s is negative: want 0s or more`, `f:3: conntrack.tcpCloseWaitTimeout: -1s is negative: want 0s or more`,
			`f:3: conntrack.udpTimeout: -1s is negative: want 0s or more`, `f:3: conntrack.udpStreamTimeout: -1s is negative: want 0s or more`,
		}},
		"bind address":        {"bindAddress: node", nil, []string{`f:3: bindAddress: "node" is no IP address: want one such as 192.0.2.1, or 0.0.0.0 or :: for the node's own`}},
		"health host name":    {"healthzBindAddress: localhost:1", nil, []string{`f:3: healthzBindAddress: "localhost:1" is no IP address with a port: want one such as 0.0.0.0:10256 or [::]:10256, port 0 for none`}},
		"metrics port":        {"metricsBindAddress: 127.0.0.1:65536", nil, []string{`f:3: metricsBindAddress: "127.0.0.1:65536" is no IP address with a port: want one such as 127.0.0.1:10249 or [::1]:10249, port 0 for none`}},
		"port flag":           {"", []string{"--healthz-port=70000"}, []string{`--healthz-port: healthzBindAddress: 70000 is no port: want 0 to 65535`}},
		"cluster CIDR":        {"", []string{"--cluster-cidr=10.0.0.0"}, []string{`--cluster-cidr: clusterCIDR: "10.0.0.0" is no prefix: want one such as 10.0.0.0/8 or fd00::/48`}},
		"two of one family":   {"clusterCIDR: 10.0.0.0/8,11.0.0.0/8", nil, []string{`f:3: clusterCIDR: "10.0.0.0/8,11.0.0.0/8" holds more than one prefix of a family: want one, or one IPv4 and one IPv6`}},
		"mapped CIDR":         {"clusterCIDR: '::ffff:10.0.0.0/104'", nil, []string{`f:3: clusterCIDR: "::ffff:10.0.0.0/104" is IPv4 inside IPv6: want the IPv4 form`}},
		"node ports":          {"nodePortAddresses: [eth0, 10.1.0.0/8, 10.0.0.0/8]", nil, []string{`f:3: nodePortAddresses: "eth0" is no prefix: want one such as 10.0.0.0/8 or fd00::/48, or one of the words primary, all, localhost; "10.0.0.0/8" is there twice: want it once`}},
		"exclude CIDRs":       {"ipvs: {excludeCIDRs: [10.0.0.0/8, x]}", nil, []string{`f:3: ipvs.excludeCIDRs[1]: "x" is no prefix: want one such as 10.0.0.0/8 or fd00::/48`}},
		"source VIP":          {"winkernel: {sourceVip: x}", nil, []string{`f:3: winkernel.sourceVip: "x" is no IP address: want one such as 192.0.2.1`}},
		"detect local":        {"detectLocalMode: NodeCidr", nil, []string{`f:3: detectLocalMode: "NodeCidr" is unknown; did you mean NodeCIDR? want ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix`}},
		"bridge":              {"detectLocalMode: BridgeInterface", nil, []string{`detectLocal.bridgeInterface: is empty: detectLocalMode BridgeInterface wants the name of a bridge, here or by --pod-bridge-interface`}},
		"prefix":              {"detectLocalMode: InterfaceNamePrefix", nil, []string{`detectLocal.interfaceNamePrefix: is empty: detectLocalMode InterfaceNamePrefix wants the beginning of interface names, here or by --pod-interface-name-prefix`}},
		"interface names":     {`detectLocal: {bridgeInterface: a/b, interfaceNamePrefix: "a\vb"}`, nil, []string{`f:3: detectLocal.bridgeInterface: "a/b" cannot name an interface: want at most 15 letters, no /, : or space`, `f:3: detectLocal.interfaceNamePrefix: "a\vb" cannot name an interface: want at most 15 letters, no /, : or space`}},
		"log format":          {"logging: {format: xml, flushFrequency: -1s}", nil, []string{`f:3: logging.format: "xml" is unknown: want text or json`, `f:3: logging.flushFrequency: -1s is negative: want 0s or more`}},
		"vmodule":             {"logging: {format: json, verbosity: 4000000000, vmodule: [{filePattern: 'a=b', verbosity: 4000000000}]}", nil, []string{`f:3: logging.verbosity: 4000000000 is too large: want 0 to 2147483647`, `f:3: logging.vmodule: works in format text only`, `f:3: logging.vmodule[0]: "a=b" is no file pattern: want a file's name without .go, * allowed, without = and comma`, `f:3: logging.vmodule[0]: 4000000000 is too large: want 0 to 2147483647`}},
		"hidden metrics":      {"showHiddenMetricsForVersion: next", nil, []string{`f:3: showHiddenMetricsForVersion: "next" is no minor version: want one such as 1.36`}},
		"port range":          {"portRange: 5-3", nil, []string{`f:3: portRange: "5-3" is no range of ports: want first-last, first+count or one port`}},
		"every error at once": {"oomScoreAdj: 5000\nmode: magic\n", []string{"--cluster-cidr=x"}, []string{`f:4: mode: "magic" is no mode on linux: want iptables, ipvs, nftables, userspace or nothing`, `--cluster-cidr: clusterCIDR: "x" is no prefix: want one such as 10.0.0.0/8 or fd00::/48`, `f:3: oomScoreAdj: 5000 is out of range: want -1000 to 1000`}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := load(t, Linux, tt.body, tt.args...)
			kit.Need(t, err != nil, "no error, want %q", tt.want)
			kit.Same(t, "errors (-want +got)", tt.want, strings.Split(err.Error(), "\n"))
		})
	}
}

func TestValid(t *testing.T) {
	tests := map[string]struct {
		os   OS
		body string
	}{
		"userspace":             {Linux, "mode: userspace"},
		"kernelspace":           {Windows, "mode: kernelspace"},
		"dual stack":            {Linux, "clusterCIDR: 'fd00::/48, 10.0.0.0/8'"},
		"zero min":              {Linux, "nftables: {minSyncPeriod: 0s, syncPeriod: 1ms}"},
		"port ranges":           {Linux, "portRange: 30000+2767"},
		"port range 0-0":        {Linux, "portRange: 0-0"},
		"any scheduler":         {Linux, "ipvs: {scheduler: mh}"},
		"edge of masquerade":    {Linux, "iptables: {masqueradeBit: 0}"},
		"unlimited queries":     {Linux, "clientConnection: {qps: -1}"},
		"removed fields":        {Linux, "udpIdleTimeout: 250ms\nresourceContainer: /kube-proxy\nconntrack: {max: 0}"},
		"node ports on Windows": {Windows, "nodePortAddresses: [primary]"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) { mustLoad(t, tt.os, tt.body) })
	}
}

func TestPortRange(t *testing.T) {
	type result struct {
		First, Last int
		OK          bool
	}
	tests := map[string]result{
		"": {0, 0, true}, "0": {0, 0, true}, "0-0": {0, 0, true}, "80": {80, 80, true}, "1-65535": {1, 65535, true},
		"1 - 2": {1, 2, true}, "100+50": {100, 150, true},
		"2-1": {2, 1, false}, "0-5": {0, 5, false}, "1-65536": {1, 65536, false}, "65535+1": {65535, 65536, false},
	}
	for s, want := range tests {
		first, last, ok := portRange(s)
		kit.Equal(t, (result{first, last, ok}), want, "portRange(%q)", s)
	}
	for _, s := range []string{"-", "a-b", "1-", "+1", "-5", "1-2-3", "1:2"} {
		_, _, ok := portRange(s)
		kit.Check(t, !ok, "portRange(%q) is accepted", s)
	}
}

func TestNotes(t *testing.T) {
	tests := map[string]struct {
		os   OS
		body string
		args []string
		want []string
	}{
		"none for defaults":       {Linux, "logging: {options: {json: {infoBufferSize: '0'}, text: {infoBufferSize: 0}}}\noomScoreAdj: -999\n", nil, nil},
		"none for what is plain":  {Linux, "mode: nftables\nclusterCIDR: 10.0.0.0/8\nwinkernel: {sourceVip: ''}\n", nil, nil},
		"other system, Linux":     {Linux, "winkernel: {networkName: a}\nwindowsRunAsService: true", nil, []string{`f:3: winkernel.networkName: has no effect on linux`, `f:4: windowsRunAsService: has no effect on linux`}},
		"other system, Windows":   {Windows, "ipvs: {scheduler: rr}\nconntrack: {min: 5}", nil, []string{`f:3: ipvs.scheduler: has no effect on windows`, `f:4: conntrack.min: has no effect on windows`}},
		"node ports, Windows":     {Windows, "nodePortAddresses: [10.0.0.0/8, localhost]\n", nil, []string{`f:3: nodePortAddresses: applies on windows to health checks of Services only: NodePorts answer on every address of the node`}},
		"pods by interface":       {Windows, "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}\n", nil, []string{`f:3: detectLocalMode: BridgeInterface has no effect on windows; clusterCIDR has, if it is set`, `f:4: detectLocal.bridgeInterface: has no effect on windows`}},
		"pods by name":            {Windows, "detectLocalMode: InterfaceNamePrefix\n", nil, []string{`f:3: detectLocalMode: InterfaceNamePrefix has no effect on windows; clusterCIDR has, if it is set`}},
		"mode of Windows":         {Linux, "mode: kernelspace\n", nil, []string{`f:3: mode: kernelspace is a mode of windows; on linux the best mode that works is used, as if none were set`}},
		"mode of Linux":           {Windows, "mode: ipvs\n", nil, []string{`f:3: mode: ipvs is a mode of linux; on windows the best mode that works is used, as if none were set`}},
		"mode by flag":            {Windows, "mode: ipvs\n", []string{"--proxy-mode=kernelspace"}, nil},
		"removed fields":          {Linux, "udpIdleTimeout: 1s", nil, []string{`f:3: udpIdleTimeout: is not a field any more; it has an effect in mode userspace, like --udp-timeout, and elsewhere conntrack.udpTimeout has`}},
		"name of no Node":         {Linux, "hostnameOverride: node_a", nil, []string{`f:3: hostnameOverride: "node_a" is no name that a Node can have: want what kubectl get nodes shows, of lower-case letters, digits, - and .`}},
		"name of a Windows host":  {Windows, "hostnameOverride: ' NODE-A.corp '", nil, nil},
		"sync period of old":      {Linux, "configSyncPeriod: 1m", nil, []string{`f:3: configSyncPeriod: is ignored: the API server is watched, and its objects are not read again in between`}},
		"sync period by default":  {Linux, "configSyncPeriod: 15m", nil, nil},
		"without use":             {Linux, "portRange: 1-2\nshowHiddenMetricsForVersion: '1.36'", nil, []string{`f:4: showHiddenMetricsForVersion: is ignored: no metric is hidden`, `f:3: portRange: has an effect in mode userspace only`}},
		"gates":                   {Linux, "featureGates: {CPUManager: true, AllowServiceExternalIPs: false}", nil, []string{`f:3: featureGates[CPUManager]: is ignored: no gate of the proxy has that name`}},
		"localhost":               {Linux, "nodePortAddresses: [localhost]", nil, nil},
		"another loopback":        {Linux, "nodePortAddresses: [primary, 127.0.0.2/32, 127.0.0.1/32]", nil, []string{`f:3: nodePortAddresses: 127.0.0.2/32 has no effect: of loopback addresses, 127.0.0.1 alone answers NodePorts in this mode`}},
		"another, by rules":       {Linux, "nodePortAddresses: [127.0.0.2/32]\nmode: iptables", nil, []string{`f:3: nodePortAddresses: has no prefix of IPv6, so every IPv6 address of the node answers NodePorts`}},
		"of other modes":          {Linux, "mode: nftables\niptables: {localhostNodePorts: true}\nipvs: {strictARP: true, scheduler: ''}\n", nil, []string{`f:4: iptables.localhostNodePorts: has no effect in mode nftables, only in mode iptables or userspace`, `f:5: ipvs.strictARP: has no effect in mode nftables, only in mode ipvs`}},
		"of other modes, ipvs":    {Linux, "mode: ipvs\niptables: {masqueradeAll: true}\nnftables: {masqueradeAll: true}\nconntrack: {tcpBeLiberal: true}\nnodePortAddresses: [primary]\n", nil, []string{`f:5: nftables.masqueradeAll: has no effect in mode ipvs, only in mode nftables`, `f:6: conntrack.tcpBeLiberal: has no effect in mode ipvs, only in mode iptables or nftables`}},
		"of any mode":             {Linux, "ipvs: {strictARP: true}\niptables: {localhostNodePorts: true}\n", nil, nil},
		"localhost in iptables":   {Linux, "nodePortAddresses: [localhost]\nmode: iptables", nil, nil},
		"localhost, switched off": {Linux, "nodePortAddresses: [localhost]\nmode: iptables\niptables: {localhostNodePorts: false}", nil, []string{`f:3: nodePortAddresses: 127.0.0.0/8 has no effect: in mode iptables, iptables.localhostNodePorts keeps NodePorts from 127.0.0.0/8`}},
		"old flags":               {Linux, "", []string{"--udp-timeout=1s", "--logtostderr"}, []string{`--logtostderr: is deprecated: ignored, logs always go there`, `--udp-timeout: has an effect in mode userspace only, see --conntrack-udp-timeout`}},
		"log options":             {Linux, "", []string{"--log-json-split-stream"}, []string{`--log-json-split-stream: logging.options.json.splitStream: is ignored: logs are not buffered and go to standard error`}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, n := range mustLoad(t, tt.os, tt.body, tt.args...).Notes {
				got = append(got, n.String())
			}
			kit.Same(t, "notes (-want +got)", tt.want, got)
		})
	}
}

// TestIgnoreSourceRanges checks that the flag has effect on Windows, and causes a note on
// Linux.
func TestIgnoreSourceRanges(t *testing.T) {
	const arg = "--ignore-source-ranges"
	for _, system := range []OS{Linux, Windows} {
		if c := mustLoad(t, system, ""); c.IgnoreSourceRanges {
			t.Errorf("%s: source ranges are ignored by default", system)
		}
		c := mustLoad(t, system, "", arg)
		noted := slices.ContainsFunc(c.Notes, func(n Note) bool { return n.Origin == arg })
		kit.Check(t, c.IgnoreSourceRanges && noted == (system == Linux),
			"%s: %t, notes %v", system, c.IgnoreSourceRanges, c.Notes)
	}
}

// TestUDPIdleTimeout checks that a flag takes precedence over the file, and the file over
// the default.
func TestUDPIdleTimeout(t *testing.T) {
	for name, tt := range map[string]struct {
		body string
		args []string
		want time.Duration
		note string
	}{
		"neither":         {"mode: userspace\n", nil, 250 * time.Millisecond, ""},
		"file":            {"mode: userspace\nudpIdleTimeout: 3s\n", nil, 3 * time.Second, "is not a field any more"},
		"flag":            {"mode: userspace\n", []string{"--udp-timeout=2s"}, 2 * time.Second, ""},
		"both":            {"mode: userspace\nudpIdleTimeout: 3s\n", []string{"--udp-timeout=2s"}, 2 * time.Second, "is not a field any more"},
		"in another mode": {"mode: nftables\n", []string{"--udp-timeout=2s"}, 2 * time.Second, "has an effect in mode userspace only"},
	} {
		t.Run(name, func(t *testing.T) {
			c := mustLoad(t, Linux, tt.body, tt.args...)
			note := ""
			for _, n := range c.Notes {
				note += n.String()
			}
			kit.Check(t, c.UDPIdleTimeout == tt.want && strings.Contains(note, tt.note) && (tt.note != "" || !strings.Contains(note, "udp")),
				"%s, %q; want %s, %q", c.UDPIdleTimeout, note, tt.want, tt.note)
			kit.Check(t, (name == "both") == (len(c.Overrides) == 1), "%d overrides", len(c.Overrides))
		})
	}
	old, now := mustLoad(t, Linux, "mode: userspace\n"), mustLoad(t, Linux, "mode: userspace\n", "--udp-timeout=2s", "--proxy-port-range=5000-5003")
	c := Diff(old, now, in(Userspace))
	kit.Check(t, len(c) == 2 && c[0].Effect == Restart && c[1].Effect == Restart && c[1].String() == "udpIdleTimeout: 250ms -> 2s", "Diff = %v", c)
	first, last := now.Listeners()
	kit.Check(t, first == 5000 && last == 5003, "Listeners = %d, %d", first, last)
}

// TestInherit checks that settings of section iptables apply to mode nftables, if the
// file is from a time when no mode meant iptables.
func TestInherit(t *testing.T) {
	const said = "iptables: {masqueradeAll: true, masqueradeBit: 12, minSyncPeriod: 5s, syncPeriod: 10s}\n"
	// kubeadm writes all fields.
	const empty = "nftables: {masqueradeAll: false, masqueradeBit: null, minSyncPeriod: 0s, syncPeriod: 0s}\n"
	const note = "f:3: iptables.%s: applies to mode nftables, too, because neither mode nor nftables.%[1]s is set"
	all := []string{"masqueradeAll", "masqueradeBit", "minSyncPeriod", "syncPeriod"}
	notes := func(format string, names ...string) (lines []string) {
		for _, n := range names {
			lines = append(lines, fmt.Sprintf(format, n))
		}
		return lines
	}
	for name, tt := range map[string]struct {
		os    OS
		body  string
		args  string
		want  string
		notes []string
	}{
		"no mode":            {Linux, said, "", "true 12 5s 10s", notes(note, all...)},
		"kubeadm's file":     {Linux, said + empty, "", "true 12 5s 10s", notes(note, all...)},
		"nothing said":       {Linux, "iptables: {minSyncPeriod: 0s, syncPeriod: 0s}\n" + empty, "", "false 14 0s 30s", nil},
		"one of the periods": {Linux, "iptables: {minSyncPeriod: 3s}", "", "false 14 3s 30s", notes(note, "minSyncPeriod")},
		"periods of its own": {Linux, said + "nftables: {syncPeriod: 2s}", "", "true 12 1s 2s", notes(note, all[:2]...)},
		"a flag":             {Linux, said, "--iptables-masquerade-bit=9", "true 9 5s 10s", notes(note, "masqueradeAll", "minSyncPeriod", "syncPeriod")},
		"mode nftables":      {Linux, said, "--proxy-mode=nftables", "false 14 1s 30s", notes("f:3: iptables.%s: has no effect in mode nftables: set nftables.%[1]s", all...)},
		"mode iptables":      {Linux, "nftables: {masqueradeBit: 9}", "--proxy-mode=iptables", "false 9 1s 30s", []string{"f:3: nftables.masqueradeBit: has no effect in mode iptables: set iptables.masqueradeBit"}},
		"another mode":       {Linux, said, "--proxy-mode=ipvs", "false 14 1s 30s", []string{"f:3: iptables.syncPeriod: has no effect in mode ipvs, only in mode iptables"}},
		"another system":     {Windows, said, "", "false 14 1s 30s", nil},
	} {
		t.Run(name, func(t *testing.T) {
			c := mustLoad(t, tt.os, tt.body, strings.Fields(tt.args)...)
			n := c.NFTables
			kit.Equal(t, fmt.Sprint(n.MasqueradeAll, *n.MasqueradeBit, n.MinSyncPeriod.Duration, n.SyncPeriod.Duration), tt.want, "nftables has")
			var got []string
			for _, n := range c.Notes {
				if strings.Contains(n.Text, "mode") && !strings.Contains(n.Path, "ddresses") {
					got = append(got, n.String())
				}
			}
			kit.Same(t, "notes (-want +got)", tt.notes, got)
		})
	}
}

// TestFeatureNotes checks for each gate whether its configured value has an effect.
func TestFeatureNotes(t *testing.T) {
	const forAll = "featureGates[%]: switches nothing: the proxy has no gate of that stage that can be switched"
	tests := map[string]struct {
		gate string
		want string // with % for the gate's name, empty for no note
	}{
		"can be switched off":             {"AllowServiceExternalIPs=false", ""},
		"can be switched on":              {"KubeProxyIPVS=true", ""},
		"on, and is":                      {"NFTablesProxyMode=true", ""},
		"off, and cannot":                 {"NFTablesProxyMode=false", "featureGates[%]: is ignored: % is always on"},
		"off, in MultiCIDR":               {"MultiCIDRServiceAllocator=false", "featureGates[%]: is ignored: % is always on"},
		"off, in topology":                {"PreferSameTrafficDistribution=false", "featureGates[%]: is ignored: % is always on"},
		"off, for Windows":                {"WinDSR=false", "featureGates[%]: is ignored: % is always on: winkernel.enableDSR decides"},
		"off, for overlays":               {"WinOverlay=false", "featureGates[%]: is ignored: % is always on"},
		"off, and always on":              {"KubeProxyNFTablesLocalhostNodePorts=false", "featureGates[%]: is ignored: % is always on: 127.0.0.1 and ::1 answer NodePorts where nodePortAddresses has localhost"},
		"all alpha":                       {"AllAlpha=true", forAll},
		"all beta":                        {"AllBeta=true", forAll},
		"of an old version":               {"SCTPSupport=true", "featureGates[%]: is ignored: the gate does not concern the proxy or has become permanent"},
		"of an old version, switched off": {"EndpointSlice=false", "featureGates[%]: is ignored: the gate does not concern the proxy or has become permanent"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var want []string
			gate, _, _ := strings.Cut(tt.gate, "=")
			if tt.want != "" {
				want = []string{"--feature-gates: " + strings.ReplaceAll(tt.want, "%", gate)}
			}
			var got []string
			for _, n := range mustLoad(t, Linux, "", "--feature-gates="+tt.gate).Notes {
				got = append(got, n.String())
			}
			kit.Same(t, "notes (-want +got)", want, got)
		})
	}
}

// TestFeatures checks that Features returns the state in effect, not the configured one.
func TestFeatures(t *testing.T) {
	const body = "featureGates: {AllowServiceExternalIPs: false, NFTablesProxyMode: false, AllAlpha: true}"
	off := []string{"AllowServiceExternalIPs"}
	all := mustLoad(t, Linux, body).Features()
	kit.Check(t, len(all) == len(features) && slices.IsSortedFunc(all, func(a, b Feature) int { return strings.Compare(a.Name, b.Name) }),
		"%v, want all by name", all)
	for _, f := range all {
		want := !slices.Contains(off, f.Name)
		kit.Check(t, f.Enabled == want, "%s is %t, want %t", f.Name, f.Enabled, want)
	}
}

// TestUnknownGates checks gates of other programs, and names like those of gates that act.
func TestUnknownGates(t *testing.T) {
	const near = "featureGates[KubeProxyIPV]: unknown feature gate; did you mean KubeProxyIPVS?"
	other := func(name string) string {
		return "featureGates[" + name + "]: is ignored: no gate of the proxy has that name"
	}
	for gate, want := range map[string]struct{ note, warning, strict string }{
		"SidecarContainers":  {note: other("SidecarContainers"), strict: "featureGates[SidecarContainers]: unknown feature gate"},
		"NFTablesNetlink":    {note: other("NFTablesNetlink"), strict: "featureGates[NFTablesNetlink]: unknown feature gate"},
		"KubeProxyIPV":       {warning: near, strict: near},
		"EndpointSliceProxy": {note: other("EndpointSliceProxy"), strict: "featureGates[EndpointSliceProxy]: unknown feature gate"},
		"KubeProxyIPVS":      {},
		"ServiceTopology":    {note: "featureGates[ServiceTopology]: is ignored: the gate does not concern the proxy or has become permanent"},
	} {
		for origin, source := range map[string]struct {
			body string
			args []string
		}{
			"f:3: ":             {body: "featureGates: {" + gate + ": true}\n"},
			"--feature-gates: ": {args: []string{"--feature-gates=" + gate + "=true"}},
		} {
			from := func(text string) string {
				if text == "" {
					return ""
				}
				return origin + text
			}
			c := mustLoad(t, Linux, source.body, source.args...)
			kit.Equal(t, notesText(c), from(want.note), "notes")
			kit.Equal(t, errorText(joined(c.Warnings)), from(want.warning), "warnings")
			_, err := load(t, Linux, source.body, append(source.args, "--strict-config")...)
			kit.Equal(t, errorText(err), from(want.strict), "strictly")
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

func joined(all []*FieldError) error {
	var errs []error
	for _, e := range all {
		errs = append(errs, e)
	}
	return errors.Join(errs...)
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestFeatureHelp checks that the help text has every gate of the proxy.
func TestFeatureHelp(t *testing.T) {
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	new(Flags).Register(fs)
	for _, f := range features {
		usage := fs.Lookup("feature-gates").Usage
		kit.Check(t, strings.Contains(usage, f.Name), "%s is not in %q", f.Name, usage)
	}
}

// TestIPVSGate checks that a mode disabled by its gate is rejected.
func TestIPVSGate(t *testing.T) {
	_, err := Load(flagsOf(t, "--proxy-mode=ipvs", "--feature-gates=KubeProxyIPVS=false"), Linux)
	const want = "--proxy-mode: mode: ipvs is switched off by featureGates[KubeProxyIPVS]: want another mode, or the gate on"
	kit.Check(t, err != nil && err.Error() == want, "Load = %v, want %s", err, want)
}

// TestFamilyNotes checks notes about settings that omit a family.
func TestFamilyNotes(t *testing.T) {
	tests := map[string]struct {
		os   OS
		args string
		want []string
	}{
		"both families of NodePorts": {Linux, "--nodeport-addresses=10.0.0.0/8,fd00::/48", nil},
		"one family of NodePorts":    {Linux, "--nodeport-addresses=10.0.0.0/8", []string{"--nodeport-addresses: nodePortAddresses: has no prefix of IPv6, so every IPv6 address of the node answers NodePorts"}},
		"a word covers the other":    {Linux, "--nodeport-addresses=10.0.0.0/8,primary", nil},
		"unset NodePorts, iptables":  {Linux, "--proxy-mode=iptables", []string{`nodePortAddresses: is not set: every address of the node answers NodePorts; "primary" restricts that to the node's own`}},
		"pods of the primary family": {Linux, "--cluster-cidr=10.0.0.0/8", nil},
		"pods of the other family":   {Linux, "--cluster-cidr=fd00::/48", []string{"--cluster-cidr: clusterCIDR: has no prefix of the primary family IPv4, so pods of that family cannot be distinguished from other clients"}},
		"pods by node range":         {Linux, "--cluster-cidr=fd00::/48 --detect-local-mode=NodeCIDR", nil},
		"an address of listeners": {Linux, "--proxy-mode=userspace --bind-address=192.0.2.1 --nodeport-addresses=primary", []string{
			"--bind-address: bindAddress: 192.0.2.1 is the node's address; listeners of mode userspace are there only with --proxy-port-range, else at an address that only packets to Services reach"}},
		"an address and a range of listeners": {Linux, "--proxy-mode=userspace --bind-address=192.0.2.1 --proxy-port-range=4000-4999 --nodeport-addresses=primary", nil},
		"listeners on a loopback address": {Linux, "--proxy-mode=userspace --bind-address=127.0.0.1 --proxy-port-range=4000-4999 --nodeport-addresses=primary", []string{
			"--bind-address: bindAddress: 127.0.0.1 is no address to which packets from elsewhere can be led: listeners of mode userspace are at one that only packets to Services reach"}},
		"IPv6 first": {Linux, "--bind-address=:: --cluster-cidr=fd00::/48", nil},
		"IPv6 first, IPv4 servers": {Linux, "--bind-address=:: --healthz-bind-address=0.0.0.0 --metrics-bind-address=127.0.0.1", []string{
			"--healthz-bind-address: healthzBindAddress: 0.0.0.0:10256 answers IPv4 only, while the primary family is IPv6"}},
		"IPv4 first, IPv6 servers": {Linux, "--healthz-bind-address=[::] --metrics-bind-address=[2001:db8::1]:10249", []string{
			"--metrics-bind-address: metricsBindAddress: [2001:db8::1]:10249 answers IPv6 only, while the primary family is IPv4"}},
		"no server at all":           {Linux, "--metrics-bind-address=[2001:db8::1]:0", nil},
		"an empty address":           {Linux, "--healthz-bind-address=", []string{"--healthz-bind-address: healthzBindAddress: is empty, which stands for the default; port 0 stands for no server"}},
		"the other server, empty":    {Linux, "--metrics-bind-address=", []string{"--metrics-bind-address: metricsBindAddress: is empty, which stands for the default; port 0 stands for no server"}},
		"another setting, empty":     {Linux, "--hostname-override=", nil},
		"an exclude of another mode": {Linux, "--proxy-mode=nftables --ipvs-exclude-cidrs=fd00::/48", nil},
		"an exclude of both":         {Linux, "--proxy-mode=ipvs --nodeport-addresses=primary --ipvs-exclude-cidrs=fd00::/48,10.0.0.0/8", nil},
		"a foreign exclude":          {Linux, "--proxy-mode=ipvs --nodeport-addresses=primary --ipvs-exclude-cidrs=fd00::/48", []string{"--ipvs-exclude-cidrs: ipvs.excludeCIDRs: has no prefix of the primary family IPv4"}},
		"a foreign sourceVip":        {Windows, "--source-vip=fd00::1", []string{"--source-vip: winkernel.sourceVip: is not of the primary family IPv4"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, n := range mustLoad(t, tt.os, "", strings.Fields(tt.args)...).Notes {
				got = append(got, n.String())
			}
			kit.Same(t, "notes (-want +got)", tt.want, got)
		})
	}
}

// TestIPv6Defaults checks that the servers use the family of the bind address.
func TestIPv6Defaults(t *testing.T) {
	want := map[string]string{
		"0.0.0.0": "0.0.0.0:10256 127.0.0.1:10249", "192.0.2.1": "0.0.0.0:10256 127.0.0.1:10249",
		"::": "[::]:10256 [::1]:10249", "2001:db8::1": "[::]:10256 [::1]:10249",
	}
	for _, bind := range slices.Sorted(maps.Keys(want)) {
		c := mustLoad(t, Linux, "", "--bind-address="+bind)
		kit.Equal(t, c.HealthzBindAddress+" "+c.MetricsBindAddress, want[bind], "%s", bind)
	}
}

// TestServersDiffer checks that two servers on one address are warned of, and rejected
// where an address that is taken is to end the process.
func TestServersDiffer(t *testing.T) {
	for addrs, ok := range map[string]bool{
		"127.0.0.1:7777 127.0.0.1:7777": false, "0.0.0.0:7777 127.0.0.1:7777": false, "127.0.0.1:7777 0.0.0.0:7777": false,
		"[::]:7777 127.0.0.1:7777": false, "127.0.0.1:7777 [::]:7777": false,
		"127.0.0.1:7777 127.0.0.1:7778": true, "127.0.0.1:7777 127.0.0.2:7777": true, "0.0.0.0:7777 [::1]:7777": true, "0.0.0.0:0 0.0.0.0:0": true,
	} {
		health, metrics, _ := strings.Cut(addrs, " ")
		args := []string{"--healthz-bind-address=" + health, "--metrics-bind-address=" + metrics}
		taken := "--metrics-bind-address: metricsBindAddress: " + metrics + " is taken by healthzBindAddress " + health
		warning, hard := taken+", so metrics are not served: want another port", taken+": want another port"
		if ok {
			warning, hard = "", ""
		}
		got := errorText(joined(mustLoad(t, Linux, "", args...).Warnings))
		kit.Check(t, got == warning, "%s: warnings %q, want %q", addrs, got, warning)
		_, err := load(t, Linux, "", append(args, "--bind-address-hard-fail")...)
		kit.Check(t, errorText(err) == hard, "%s: %v, want %s", addrs, err, hard)
	}
}

// TestOldHealthPort checks the flags of units for kube-proxy 1.2 to 1.6, whose one server
// has the port that metrics have today.
func TestOldHealthPort(t *testing.T) {
	c := mustLoad(t, Linux, "", "--healthz-bind-address=127.0.0.1", "--healthz-port=10249")
	kit.Check(t, c.HealthzBindAddress == "127.0.0.1:10249" && len(c.Warnings) == 1,
		"%s, warnings %v", c.HealthzBindAddress, c.Warnings)
}
