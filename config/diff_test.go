// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/test/kit"
)

// TestEffectsAreComplete fails if nobody has decided what a change of a field does.
func TestEffectsAreComplete(t *testing.T) {
	unused := slices.DeleteFunc(leafPaths(), func(path string) bool {
		e, _ := effectOf(path)
		return e != Unused
	})
	want := []string{
		"kind", "apiVersion", // there is only one
		"logging.options.text.splitStream", "logging.options.text.infoBufferSize",
		"logging.options.json.splitStream", "logging.options.json.infoBufferSize",
		"showHiddenMetricsForVersion", // none is hidden
		"configSyncPeriod",            // the API server is watched
	}
	slices.Sort(unused)
	slices.Sort(want)
	kit.Same(t, "settings without effect (-want +got)", want, unused)
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
			kit.Same(t, "Diff (-want +got)", tc.want, got)
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
	kit.Same(t, "Diff (-want +got)", want, got)
	kit.Equal(t, got[1].String(), `winkernel.sourceVip: "" -> "192.0.2.1"`, "String")
}

// Flags still take precedence when the file is read again.
func TestLoadFromAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	flags := flagsOf(t, "--config="+path, "--cluster-cidr=10.0.0.0/8", "--feature-gates=DryRun=true")
	var loaded []*Config
	for _, body := range []string{"", "clusterCIDR: 10.1.0.0/16\nfeatureGates: {DryRun: false, CPUManager: true}"} {
		kit.Must(t, os.WriteFile(path, []byte(head+body), 0o600))
		data, err := flags.ReadFile()
		kit.Must(t, err)
		c, err := LoadFrom(flags, Linux, data)
		kit.Must(t, err)
		loaded = append(loaded, c)
	}
	want := []Change{{"featureGates[CPUManager]", "unset", "true", Unused}}
	kit.Same(t, "Diff (-want +got)", want, Diff(loaded[0], loaded[1], inNFTables))
	kit.Check(t, len(loaded[1].Overrides) == 2, "overrides %v, want those of both flags", loaded[1].Overrides)
}

// TestSwitches checks that a flag takes precedence over the field, and that a written
// configuration has the field only if it is not as usual.
func TestSwitches(t *testing.T) {
	for _, o := range ownSwitches {
		if o.path == "selectionSlots" {
			continue // a number, see TestSelectionSlots
		}
		other, usual := "true", "false"
		if !off(o.of(&Switches{})) {
			other, usual = usual, other
		}
		for name, tt := range map[string]struct {
			body string
			args []string
			want bool // as usual
		}{
			"neither":      {"", nil, true},
			"file":         {o.path + ": " + other + "\n", nil, false},
			"flag":         {"", []string{"--" + o.flag + "=" + other}, false},
			"flag as text": {"", []string{"--" + o.flag + "=" + other[:1]}, false},
			"both":         {o.path + ": " + other + "\n", []string{"--" + o.flag + "=" + usual}, true},
			"null":         {o.path + ": null\n", nil, true},
			"the same":     {o.path + ": " + other + "\n", []string{"--" + o.flag + "=" + other}, false},
		} {
			t.Run(o.flag+", "+name, func(t *testing.T) {
				c := mustLoad(t, Linux, tt.body, tt.args...)
				if is, overrides := o.usual(&c.Switches), len(c.Overrides); is != tt.want || (name == "both") != (overrides == 1) || len(c.Warnings) > 0 {
					t.Errorf("as usual: %v, want %v; overrides %v, warnings %v", is, tt.want, c.Overrides, c.Warnings)
				}
				text := written(c)
				file, err := Parse("again", []byte(text))
				kit.Check(t, err == nil && o.usual(&file.Switches) == tt.want && strings.Contains(text, o.path) != tt.want,
					"written: %v, %v, %v, want %v", err, file.Switches, text, tt.want)
			})
		}
		for _, c := range []*Config{mustLoad(t, Linux, o.path+": yes\n"), mustLoad(t, Linux, o.path+": "+other+"\n", "--"+o.flag+"="+cmp.Or(o.alone, "on"))} {
			kit.Check(t, !off(o.of(&c.Switches)), "%s: yes, or the flag alone, is off", o.path)
		}
		o.checkField(t, other)
	}
}

// checkField checks how the field is refused, compared and misspelt. other is not its default.
func (o *ownSwitch) checkField(t *testing.T, other string) {
	t.Helper()
	if _, err := load(t, Linux, o.path+": 7\n"); err == nil || !strings.Contains(err.Error(), o.path) {
		t.Errorf("%s: 7 gives %v", o.path, err)
	}
	now, was := mustLoad(t, Linux, o.path+": "+other+"\n"), mustLoad(t, Linux, "")
	want := Change{o.path, o.of(&was.Switches).String(), o.of(&now.Switches).String(), o.effect}
	c := Diff(was, now, in(NFTables))
	kit.Check(t, len(c) == 1 && c[0] == want && o.effect != Unused, "Diff = %v, want %v", c, want)
	windows := mustLoad(t, Windows, o.path+": true\n")
	n := windows.Notes
	kit.Check(t, len(n) == 1 && strings.Contains(n[0].Text, o.windows), "notes %v, want that %s", n, o.windows)
	if n := slices.Concat(mustLoad(t, Windows, "").Notes, mustLoad(t, Windows, o.path+": false\n").Notes); len(n) != 0 {
		t.Errorf("notes %v, want none", n)
	}
	file, err := Parse("f", []byte(head+o.path[:len(o.path)-2]+": true\n"))
	kit.Check(t, err == nil && len(file.Warnings) == 1 && strings.Contains(file.Warnings[0].Text, o.path),
		"%v, %v: want the name that was meant", err, file.Warnings)
}

// TestSelectionSlots reads the size of tables, from a flag and from a file.
func TestSelectionSlots(t *testing.T) {
	for text, want := range map[string]uint16{"101": 101, "1009": 1009, "65535": 65535} {
		file, flag := mustLoad(t, Linux, "selectionSlots: "+text+"\n"), mustLoad(t, Linux, "", "--selection-slots="+text)
		again, err := Parse("again", []byte(written(file)))
		kit.Check(t, file.SelectionSlots.Number() == want && flag.SelectionSlots.Number() == want && err == nil && again.SelectionSlots.Number() == want,
			"%s: file %s, flag %s, written %s, %v", text, &file.SelectionSlots, &flag.SelectionSlots, &again.SelectionSlots, err)
	}
	for _, text := range []string{"100", "65536", "-1", "many", "2.5", `"1009"`} {
		_, err := load(t, Linux, "selectionSlots: "+text+"\n")
		kit.Check(t, err != nil && strings.Contains(err.Error(), "selectionSlots") && strings.Contains(err.Error(), "want a whole number from 101 to 65535"),
			"%s: %v", text, err)
	}
	c := Diff(mustLoad(t, Linux, ""), mustLoad(t, Linux, "selectionSlots: 2039\n"), in(NFTables))
	kit.Check(t, len(c) == 1 && c[0].String() == "selectionSlots: 1009 -> 2039" && c[0].Effect == Hot, "a change is %v", c)
}

// TestSilentEndpoints reads what becomes of silent endpoints, from a flag and from a file.
func TestSilentEndpoints(t *testing.T) {
	for text, want := range map[string]SilentEndpoints{
		"on": SilentLeftOut, "true": SilentLeftOut, `"on"`: SilentLeftOut, "Observe": SilentObserved, "off": SilentIgnored, "no": SilentIgnored, "false": SilentIgnored,
	} {
		file := mustLoad(t, Linux, "silentEndpoints: "+text+"\n")
		flag := mustLoad(t, Linux, "", "--silent-endpoints="+strings.Trim(text, `"`))
		again, err := Parse("again", []byte(written(file)))
		kit.Check(t, file.SilentEndpoints == want && flag.SilentEndpoints == want && err == nil && again.SilentEndpoints == want,
			"%s: file %q, flag %q, written %q, %v; want %q", text, file.SilentEndpoints, flag.SilentEndpoints, again.SilentEndpoints, err, want)
	}
	for _, text := range []string{"ignore", "7", "[on]", `""`} {
		_, err := load(t, Linux, "silentEndpoints: "+text+"\n")
		kit.Check(t, err != nil && strings.Contains(err.Error(), "silentEndpoints") && strings.Contains(err.Error(), "want on, observe or off"),
			"%s: %v", text, err)
	}
	c := Diff(mustLoad(t, Linux, ""), mustLoad(t, Linux, "silentEndpoints: observe\n"), in(NFTables))
	kit.Check(t, len(c) == 1 && c[0].String() == "silentEndpoints: on -> observe" && c[0].Effect == Hot, "Diff = %v", c)
}

// TestAcceleration reads whose sockets are accelerated, from a flag and from a file.
func TestAcceleration(t *testing.T) {
	for text, want := range map[string]Acceleration{
		"node": AccelerateNode, "all": AccelerateAll, "true": AccelerateAll, "on": AccelerateAll, "false": AccelerateNone, "off": AccelerateNone, "Node": AccelerateNode,
		`"true"`: AccelerateAll,
	} {
		file := mustLoad(t, Linux, "socketAcceleration: "+text+"\n")
		flag := mustLoad(t, Linux, "", "--socket-acceleration="+strings.Trim(text, `"`))
		kit.Check(t, file.SocketAcceleration == want && flag.SocketAcceleration == want,
			"%s: file %q, flag %q, want %q", text, file.SocketAcceleration, flag.SocketAcceleration, want)
		again, err := Parse("again", []byte(written(file)))
		kit.Check(t, err == nil && again.SocketAcceleration == want, "%s, written: %q, %v", text, again.SocketAcceleration, err)
	}
	for _, text := range []string{"pods", "7", "[node]", `""`} {
		_, err := load(t, Linux, "socketAcceleration: "+text+"\n")
		kit.Check(t, err != nil && strings.Contains(err.Error(), "socketAcceleration") && strings.Contains(err.Error(), "want node, all, true for all, or false"),
			"%s: %v", text, err)
	}
	node, all := mustLoad(t, Linux, "", "--socket-acceleration=node"), mustLoad(t, Linux, "socketAcceleration: true\n")
	c := Diff(node, all, in(NFTables))
	kit.Check(t, len(c) == 1 && c[0].String() == "socketAcceleration: node -> all" && c[0].Effect == Restart, "Diff = %v", c)
	both := mustLoad(t, Linux, "socketAcceleration: all\n", "--socket-acceleration=node")
	kit.Check(t, len(both.Overrides) == 1 && both.SocketAcceleration == AccelerateNode,
		"%q, %v", both.SocketAcceleration, both.Overrides)
}

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
		kit.Check(t, fs.Lookup(name) != nil, "--%s is missing", name)
	}
	fs.VisitAll(func(f *pflag.Flag) {
		kit.Check(t, len(f.Annotations[GroupAnnotation]) == 1, "--%s has no group", f.Name)
		shared := slices.Contains(strings.Fields(sharedFlags+" "+sharedSwitches), f.Name)
		kit.Check(t, f.Hidden == shared && f.Deprecated == "", "--%s is hidden from help: %t, want %t", f.Name, f.Hidden, shared)
	})
}

// Almost every field has a flag, and every flag has a field.
func TestEveryField(t *testing.T) {
	all := paths(reflect.TypeFor[v1alpha1.KubeProxyConfiguration](), "")
	flagged := map[string]bool{}
	for _, s := range settings {
		flagged[s.path], flagged[s.nftables] = true, true
		kit.Check(t, fieldAt(&v1alpha1.KubeProxyConfiguration{}, s.path).IsValid(),
			"--%s sets %s, which does not exist", s.flag, s.path)
	}
	var without []string
	for _, p := range all {
		section := strings.Contains(strings.Join(all, "\n"), p+".")
		if !section && !flagged[p] {
			without = append(without, p)
		}
	}
	want := []string{"kind", "apiVersion", "clientConnection.acceptContentTypes"}
	kit.Same(t, "fields without flag (-want +got)", want, without)
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
	kit.Same(t, "overrides (-want +got)", want, got)
	if c.ClusterCIDR != "11.0.0.0/8" || c.EnableProfiling || !c.NFTables.MasqueradeAll || *c.OOMScoreAdj != 1 {
		t.Errorf("a flag lost against the file:\n%s", written(c))
	}
	kit.Same(t, "gates (-want +got)", map[string]bool{"WinDSR": false, "WinOverlay": true}, c.FeatureGates)
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
			got := c.IPTables.SyncPeriod.Duration.String() + " " + c.NFTables.SyncPeriod.Duration.String()
			kit.Check(t, got == tt.want, "iptables, nftables = %s, want %s", got, tt.want)
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
		err := fs.Parse([]string{arg})
		kit.Check(t, err != nil, "%s is accepted", arg)
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
	kit.Must(t, fs.Parse(args))
	kit.Check(t, f.Cleanup, "--cleanup-iptables does not clean up")
	kit.Same(t, "gates (-want +got)", map[string]bool{"A": true, "B": false}, f.values.FeatureGates)
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
	kit.Must(t, fs.Parse(args))
	c, err := complete(&File{}, flags, Linux, nil)
	kit.Must(t, err)
	if n := strings.Count(notesText(c), ": is deprecated: ignored, never concerned the proxy"); n != len(args) {
		t.Errorf("%d notes, want %d:\n%s", n, len(args), notesText(c))
	}
}

// TestGatesOverride checks that a gate of a flag which says the same as the file is no
// override.
func TestGatesOverride(t *testing.T) {
	for flag, want := range map[string]int{"WinDSR=true": 0, "WinDSR=false": 1, "WinOverlay=false": 0} {
		c := mustLoad(t, Linux, "featureGates: {WinDSR: true}\n", "--feature-gates="+flag)
		kit.Check(t, len(c.Overrides) == want, "%s: %v, want %d", flag, c.Overrides, want)
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
		kit.Check(t, got == want, "%s: overrides %q, want %q", flag, got, want)
	}
}
