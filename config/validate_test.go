// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

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
			if err == nil {
				t.Fatalf("no error, want %q", tt.want)
			}
			if diff := cmp.Diff(tt.want, strings.Split(err.Error(), "\n")); diff != "" {
				t.Errorf("errors (-want +got):\n%s", diff)
			}
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
		if got := (result{first, last, ok}); got != want {
			t.Errorf("portRange(%q) = %v, want %v", s, got, want)
		}
	}
	for _, s := range []string{"-", "a-b", "1-", "+1", "-5", "1-2-3", "1:2"} {
		if _, _, ok := portRange(s); ok {
			t.Errorf("portRange(%q) is accepted", s)
		}
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
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("notes (-want +got):\n%s", diff)
			}
		})
	}
}
