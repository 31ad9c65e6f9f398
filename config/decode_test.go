// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// bomb has aliases that stand for more values than memory has room for.
var bomb = "a: &a [1,1,1,1,1,1,1,1,1,1]\nb: [" + strings.Repeat("*a,", 1000) + "]\n"

func TestParseErrors(t *testing.T) {
	tests := map[string]struct{ data, want string }{
		"empty":         {"", `f: is empty: want apiVersion: kubeproxy.config.k8s.io/v1alpha1 and kind: KubeProxyConfiguration`},
		"no mapping":    {"- a\n", `f:1: is a list: want a mapping with apiVersion: kubeproxy.config.k8s.io/v1alpha1 and kind: KubeProxyConfiguration`},
		"not YAML":      {head + "a: [\n", `f:3: not YAML: did not find expected node content`},
		"two documents": {head + "---\n" + head, `f:3: a second KubeProxyConfiguration begins: the first one counts`},
		"other kind": {"apiVersion: v1\nkind: ConfigMap\ndata: {}\n", `f:1: apiVersion: is "v1": want kubeproxy.config.k8s.io/v1alpha1
f:2: kind: is "ConfigMap": want KubeProxyConfiguration`},
		"no kind":                   {"apiVersion: kubeproxy.config.k8s.io/v1alpha1\n", `f:1: kind: is missing: want KubeProxyConfiguration`},
		"unknown field":             {head + "iptables:\n  masqueradBit: 3\n", `f:4: iptables.masqueradBit: unknown field; did you mean iptables.masqueradeBit?`},
		"wrong case":                {head + "bindaddress: ''\n", `f:3: bindaddress: unknown field; did you mean bindAddress?`},
		"wrong section, of several": {head + "masqueradeBi: 1\n", `f:3: masqueradeBi: unknown field; did you mean iptables.masqueradeBit?`},
		"wrong section":             {head + "strictARP: true\n", `f:3: strictARP: unknown field; did you mean ipvs.strictARP?`},
		"unlike any":                {head + "xyzzy: true\n", `f:3: xyzzy: unknown field`},
		"duplicate":                 {head + "mode: iptables\nbindAddress: ''\nmode: ipvs\n", `f:5: mode: is set twice, first in line 3`},
		"duplicate gate":            {head + "featureGates: {A: true, A: false}\n", `f:3: featureGates[A]: is set twice, first in line 3`},
		"merge key":                 {head + "nftables: {<<: 5}\n", `f:3: the merge key (<<) has "5": want mappings`},
		"merge key, of a list":      {head + "nftables: {<<: [{}, 5]}\n", `f:3: the merge key (<<) has "5": want mappings`},
		"alias of itself":           {head + "iptables: &a {b: *a}\n", `f:3: the aliases (*name) stand for more than 10000 values: write them out`},
		"aliases of aliases":        {head + bomb, `f:4: the aliases (*name) stand for more than 10000 values: write them out`},
		"other version":             {"apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\n", `f:1: apiVersion: is "kubeproxy.config.k8s.io/v1alpha2", which is not known here: want kubeproxy.config.k8s.io/v1alpha1`},
		"gates, not of a form":      {head + "featureGates: A\n", `f:3: featureGates: "A" has no value: want A=true or A=false`},
		"float, too large":          {head + "oomScoreAdj: 5e9\n", `f:3: oomScoreAdj: is "5e9": want a whole number that fits into 32 bits`},
		"float, negative":           {head + "logging: {verbosity: -1.0}\n", `f:3: logging.verbosity: is "-1.0": want a whole number, 0 or more`},
		"in a file for others":      {"a: 1\n---\n" + head, "f: has a KubeProxyConfiguration for others to read, the document at line 2: kube-proxy config migrate prints it alone"},
		"list for text":             {head + "mode: [iptables]\n", `f:3: mode: is a list: want text`},
		"text for section":          {head + "iptables: yes\n", `f:3: iptables: is "yes": want a mapping`},
		"text for bool":             {head + "enableProfiling: maybe\n", `f:3: enableProfiling: is "maybe": want true or false`},
		"text for number":           {head + "oomScoreAdj: '5'\n", `f:3: oomScoreAdj: is "5": want a whole number that fits into 32 bits`},
		"fraction":                  {head + "oomScoreAdj: 5.5\n", `f:3: oomScoreAdj: is "5.5": want a whole number that fits into 32 bits`},
		"too large":                 {head + "oomScoreAdj: 5000000000\n", `f:3: oomScoreAdj: is "5000000000": want a whole number that fits into 32 bits`},
		"not a number":              {head + "clientConnection: {qps: .nan}\n", `f:3: clientConnection.qps: is ".nan": want a number`},
		"duration without unit":     {head + "configSyncPeriod: 30\n", `f:3: configSyncPeriod: is "30": want a duration such as 30s or 1h30m`},
		"map for list":              {head + "nodePortAddresses: {}\n", `f:3: nodePortAddresses: is a mapping: want a list`},
		"removed, of wrong type":    {head + "udpIdleTimeout: soon\n", `f:3: udpIdleTimeout: is "soon": want a duration such as 30s or 1h30m`},
		"all at once":               {head + "a: 1\noomScoreAdj: x\n", "f:3: a: unknown field\nf:4: oomScoreAdj: is \"x\": want a whole number that fits into 32 bits"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			file, err := Parse("f", []byte(tt.data))
			if file != nil {
				err = file.Strict()
			}
			if err == nil {
				t.Fatalf("no error, want %s", tt.want)
			}
			if diff := cmp.Diff(tt.want, err.Error()); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
}

// TestLenient checks that mistakes which kube-proxy tolerates are warnings.
func TestLenient(t *testing.T) {
	const body = "oomScoreAdj: 1\niptables:\n  masqueradBit: 3\n  masqueradeBit: 4\noomScoreAdj: 2\nfeatureGates: {WinDSR: false, WinDSR: true}\nclientConnection: {qps: -1}\n"
	c := mustLoad(t, Linux, body)
	want := []string{
		"f:5: iptables.masqueradBit: unknown field; did you mean iptables.masqueradeBit?", "f:7: oomScoreAdj: is set twice, first in line 3",
		"f:8: featureGates[WinDSR]: is set twice, first in line 8",
		"f:9: clientConnection.qps: -1 is negative, so requests to the API server are not limited: want a number above 0, or 0 for the default",
	}
	var got []string
	for _, w := range c.Warnings {
		got = append(got, w.Error())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
	if *c.OOMScoreAdj != 2 || *c.IPTables.MasqueradeBit != 4 || !c.FeatureGates["WinDSR"] {
		t.Errorf("oomScoreAdj %d, masqueradeBit %d, %v, want what is said last", *c.OOMScoreAdj, *c.IPTables.MasqueradeBit, c.FeatureGates)
	}
	_, err := LoadFrom(&Flags{Modes: testModes, Config: "f", StrictConfig: true}, Linux, []byte(head+body))
	if err == nil || err.Error() != strings.Join(want, "\n") {
		t.Errorf("strictly: %v, want all of them", err)
	}
}

func TestParseForms(t *testing.T) {
	tests := map[string]string{
		"JSON":           `{"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "hostnameOverride": "10", "enableProfiling": true}`,
		"number as text": head + "hostnameOverride: 10\nenableProfiling: true\n",
		"old bool":       head + "hostnameOverride: '10'\nenableProfiling: yes\n",
		"anchor":         head + "hostnameOverride: &x 10\nshowHiddenMetricsForVersion: ''\nenableProfiling: true\n",
		"document marks": "---\n" + head + "hostnameOverride: '10'\nenableProfiling: true\n...\n",
	}
	for name, data := range tests {
		t.Run(name, func(t *testing.T) {
			f, err := Parse("f", []byte(data))
			if err != nil {
				t.Fatal(err)
			}
			if f.Values.HostnameOverride != "10" || !f.Values.EnableProfiling {
				t.Errorf("hostnameOverride %q, enableProfiling %v, want 10 and true", f.Values.HostnameOverride, f.Values.EnableProfiling)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(head + "iptables:\n  minSyncPeriod: 0s\nlogging: {vmodule: [{filePattern: a, verbosity: 3}]}\n"))
	f.Add([]byte(head + "conntrack: {max: 5, min: 3}\nclusterCIDR: 10.0.0.0/8,fd00::/48\nfeatureGates: {WinDSR: true}\n"))
	f.Add([]byte(head + "iptables: &a {syncPeriod: 9s}\nnftables: {<<: [*a, {minSyncPeriod: 0s}]}\n---\n...\na: *b\n"))
	f.Add([]byte(`{"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "portRange": "1+2"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Parse("f", data)
		if err != nil {
			return
		}
		for _, os := range []OS{Linux, Windows} {
			c, err := complete(file, &Flags{Modes: testModes}, os, nil)
			if err != nil {
				continue
			}
			c.NodePorts()
			first := written(c)
			again, err := Parse("f", []byte(first))
			if err != nil {
				t.Fatalf("parse what was written: %v\n%s", err, first)
			}
			c, err = complete(again, &Flags{Modes: testModes}, os, nil)
			if err != nil {
				t.Fatalf("check what was written: %v\n%s", err, first)
			}
			if diff := cmp.Diff(first, written(c)); diff != "" {
				t.Fatalf("second writing (-first +second):\n%s", diff)
			}
		}
	})
}

// TestEverythingAtOnce checks that errors of form and of value are reported together, and
// a field that cannot be decoded only once.
func TestEverythingAtOnce(t *testing.T) {
	path := t.TempDir() + "/c.yaml"
	body := head + "mode: magic\niptable: {}\niptables: {masqueradeBit: 33}\nconntrack: {maxPerCore: x}\n"
	if err := os.WriteFile(path, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Load(&Flags{Modes: testModes, Config: path, StrictConfig: true}, Linux)
	if err == nil {
		t.Fatal("Check = nil")
	}
	for _, want := range []string{"mode: ", "iptable: ", "iptables.masqueradeBit: ", "conntrack.maxPerCore: "} {
		if n := strings.Count(err.Error(), ": "+want); n != 1 {
			t.Errorf("%d errors about %q, want 1:\n%v", n, want, err)
		}
	}
}
