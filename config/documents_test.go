// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"kubeproxy/test/kit"
)

// TestFurtherDocuments checks what may stand around the configuration in a file of --config.
func TestFurtherDocuments(t *testing.T) {
	tests := map[string]struct{ data, warnings string }{
		"mark at the end":          {head + "mode: ipvs\n---\n", ""},
		"comment at the end":       {head + "mode: ipvs\n---\n# end\n\n--- # again\n", ""},
		"marks before":             {"# ours\n---\n---\n" + head + "mode: ipvs\n", ""},
		"directive":                {"%YAML 1.1\n---\n" + head + "mode: ipvs\n...\n", ""},
		"byte order mark":          {"\ufeff" + head + "mode: ipvs\n", ""},
		"UTF-16":                   {utf16Text(head + "mode: ipvs\n"), ""},
		"Windows lines":            {strings.ReplaceAll("---\n"+head+"mode: ipvs\n---\n", "\n", "\r\n"), ""},
		"a mark in text":           {head + "clusterCIDR: |\n  ---\n   \nmode: ipvs\nclusterCIDR: ''\n", "f:7: clusterCIDR: is set twice, first in line 3"},
		"others":                   {head + "mode: ipvs\n---\nkind: KubeletConfiguration\n---\na: 1\n---\nkind: KubeletConfiguration\n", "f:4: further documents are ignored: KubeletConfiguration, a document without kind"},
		"not YAML":                 {head + "mode: ipvs\n---\na: [\n", "f:4: further documents are ignored: a document without kind"},
		"a second one, of others":  {head + "mode: ipvs\n---\na: 1\n---\n" + head + "mode: iptables\n", "f:6: a second KubeProxyConfiguration begins: the first one counts"},
		"after the end, no mark":   {head + "mode: ipvs\n...\na: 1\n", "f:5: further documents are ignored: a document without kind"},
		"a document on the marker": {"--- {apiVersion: " + apiVersion + ", kind: " + kind + ", mode: ipvs}\n--- {a: 1}\n", "f:2: further documents are ignored: a document without kind"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			file, err := Parse("f", []byte(tt.data))
			kit.Must(t, err)
			kit.Check(t, file.Values.Mode == IPVS, "mode %q, want ipvs", file.Values.Mode)
			got := errorText(joined(file.Warnings))
			kit.Check(t, got == tt.warnings, "warnings %q, want %q", got, tt.warnings)
			// Documents for others do not make a file wrong.
			wrong := tt.warnings != "" && !strings.Contains(tt.warnings, "further")
			kit.Check(t, wrong == (file.Strict() != nil), "strictly: %v", file.Strict())
		})
	}
}

func utf16Text(s string) string {
	out := []byte{0xff, 0xfe}
	for _, u := range utf16.Encode([]rune(s)) {
		out = append(out, byte(u), byte(u>>8))
	}
	return string(out)
}

func indent(s, by string) string { return by + strings.ReplaceAll(strings.TrimSpace(s), "\n", "\n"+by) }

// configMap returns a ConfigMap with the data of kubeadm.
func configMap(config string) string {
	return "apiVersion: v1\ndata:\n  kubeconfig.conf: |-\n    kind: Config\n  config.conf: |-\n" + indent(config, "    ") +
		"\nkind: ConfigMap\nmetadata:\n  name: kube-proxy\n  namespace: kube-system\n"
}

// TestFind checks that the configuration in a file for others is found, and that errors have
// the lines of that file.
func TestFind(t *testing.T) {
	const kubeadm = "apiVersion: kubeadm.k8s.io/v1beta3\nkind: ClusterConfiguration\n---\n"
	const master = "kind: MasterConfiguration\nkubeProxy:\n  # ours\n  config:\n    bindAddress: ''\n    mode: magic\nfeatureGates: {A: true}\n"
	bad := head + "mode: magic\n"
	fromJSON := func(s string) string {
		data, err := yaml.YAMLToJSON([]byte(s))
		kit.Must(t, err)
		var v any
		kit.Must(t, json.Unmarshal(data, &v))
		data, err = json.MarshalIndent(v, "", "    ")
		kit.Must(t, err)
		return string(data)
	}
	const cm = `data["config.conf"] of ConfigMap kube-system/kube-proxy`
	tests := map[string]struct{ data, where, at string }{
		"itself":                       {bad, "", "f:3: mode"},
		"itself, first":                {bad + "---\n" + kubeadm, "", "f:3: mode"},
		"kubeadm":                      {kubeadm + bad, "the document at line 3", "f:6: mode"},
		"kubeadm, another behind":      {kubeadm + bad + "---\nkind: KubeletConfiguration\n", "the document at line 3", "f:6: mode"},
		"kubeadm, a broken one before": {kubeadm + "a: [\n---\n" + bad, "the document at line 5", "f:8: mode"},
		"not YAML":                     {kubeadm + head + "a: [\n", "the document at line 3", "f:6: not YAML"},
		"ConfigMap":                    {configMap(bad), cm, "f:8: mode"},
		"ConfigMap, documents":         {configMap("---\n" + bad + "---\na: 1\n"), cm, "f:9: mode"},
		"ConfigMap, not first":         {configMap("a: 1\n---\n" + bad), cm, "f:10: mode"},
		"ConfigMap, not YAML":          {configMap(head + "a: [\n"), cm, "f:8: not YAML"},
		"ConfigMap in JSON":            {fromJSON(configMap(bad)), cm, `f:4: data["config.conf"]:3: mode`},
		"ConfigMap, other key": {
			"kind: ConfigMap\nmetadata: {name: a}\ndata:\n  kube-proxy.yaml: \"" + strings.ReplaceAll(bad, "\n", `\n`) + "\"\n",
			`data["kube-proxy.yaml"] of ConfigMap a`, `f:4: data["kube-proxy.yaml"]:3: mode`,
		},
		"List": {
			"apiVersion: v1\nkind: List\nitems:\n- kind: Service\n-\n" + indent(configMap(bad), "  ") + "\n", cm, "f:13: mode",
		},
		"List in JSON":                 {fromJSON("kind: List\nitems:\n-\n" + indent(configMap(bad), "  ") + "\n"), cm, `f:6: data["config.conf"]:3: mode`},
		"of 1.8":                       {kubeadm + "apiVersion: componentconfig/v1alpha1\nkind: KubeProxyConfiguration\nmode: magic\n", "the document at line 3", "f:6: mode"},
		"of kubeadm 1.11":              {master, "kubeProxy.config of MasterConfiguration", "f:6: mode"},
		"of kubeadm 1.11, another one": {"a: 1\n---\n" + master, "kubeProxy.config of MasterConfiguration", "f:8: mode"},
		"of kubeadm 1.11, ConfigMap":   {configMap(master), cm, "f:11: mode"},
		"of kubeadm 1.11, JSON":        {fromJSON(configMap(master)), cm, `f:4: data["config.conf"]:6: mode`},
		"no kind":                      {"mode: magic\n", "", "f:1: apiVersion: is missing"},
		"empty":                        {"# nothing\n", "", "f: is empty"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			found, err := Find("f", []byte(tt.data))
			kit.Need(t, err == nil && len(found) == 1, "found %d, %v", len(found), err)
			kit.Equal(t, found[0].Where, tt.where, "where")
			_, err = LoadFrom(&Flags{Modes: testModes, Config: found[0].Name}, Linux, found[0].Data)
			kit.Check(t, strings.HasPrefix(errorText(err), tt.at), "error %q, want %q...", errorText(err), tt.at)
		})
	}
	if found, err := Find("f", []byte(configMap(bad)+"---\n"+configMap(bad))); err != nil || len(found) != 2 {
		t.Errorf("two ConfigMaps: %v, %v", found, err)
	}
	_, err := Find("f", []byte(kubeadm+"kind: Secret\n"))
	want := "f: has no KubeProxyConfiguration: it has ClusterConfiguration at line 1, Secret at line 3"
	kit.Check(t, errorText(err) == want, "nothing: %v, want %s", err, want)
}

// TestMergeKeys checks that a field of the mapping goes before merged ones, and a first
// source before a second one.
func TestMergeKeys(t *testing.T) {
	c := mustLoad(t, Linux, `iptables: &sync
  syncPeriod: 50s
  minSyncPeriod: 2s
ipvs: &other {<<: *sync, minSyncPeriod: 3s}
nftables:
  <<: [{syncPeriod: 7s}, *other]
featureGates: {<<: {WinDSR: true}, WinDSR: false}
`)
	got := fmt.Sprint(c.IPVS.SyncPeriod.Duration, c.IPVS.MinSyncPeriod.Duration, c.NFTables.SyncPeriod.Duration, c.NFTables.MinSyncPeriod.Duration, c.FeatureGates)
	want := "50s 3s 7s 3s map[WinDSR:false]"
	kit.Check(t, got == want, "%s, want %s", got, want)
}

// TestOldForms checks the forms of kube-proxy 1.7 to 1.9, and numbers as Helm writes them.
func TestOldForms(t *testing.T) {
	file, err := Parse("f", []byte("apiVersion: componentconfig/v1alpha1\nkind: KubeProxyConfiguration\nudpTimeoutMilliseconds: 2s\n"+
		"featureGates: 'KubeProxyIPVS=false, WinDSR=true'\nconntrack: {min: 1.048576e+06, maxPerCore: 10.0}\noomScoreAdj: -1e2\n"+
		"ipvs: {ExcludeCIDRs: [10.0.0.0/8]}\nclientConnection: {burst: 1e2}\nlogging: {verbosity: 4.0, flushFrequency: 5e9}\nmetadata: {name: config}\n"))
	if err != nil || file.Strict() != nil {
		t.Fatal(err, file.Strict())
	}
	c, err := complete(file, &Flags{Modes: testModes}, Linux, nil)
	kit.Must(t, err)
	got := fmt.Sprint(c.APIVersion, c.UDPIdleTimeout, c.FeatureGates, *c.Conntrack.Min, *c.Conntrack.MaxPerCore, *c.OOMScoreAdj,
		c.ClientConnection.Burst, c.Logging.Verbosity, c.Logging.FlushFrequency.Duration.Duration, c.IPVS.ExcludeCIDRs)
	want := apiVersion + "2s map[KubeProxyIPVS:false WinDSR:true] 1048576 10 -100 100 4 5s [10.0.0.0/8]"
	kit.Same(t, "values (-want +got)", want, got)
	for _, path := range []string{"apiVersion", "udpTimeoutMilliseconds", "featureGates", "metadata", "ipvs.excludeCIDRs"} {
		if n := strings.Count(notesText(c), ": "+path+": "); n != 1 {
			t.Errorf("%d notes on %s, want 1:\n%s", n, path, notesText(c))
		}
	}
}

// TestMigrate checks that what is printed is accepted strictly, and has what was set.
func TestMigrate(t *testing.T) {
	tests := map[string]struct{ data, want, left string }{
		"old": {
			"# ours\napiVersion: componentconfig/v1alpha1\nkind: KubeProxyConfiguration\nudpTimeoutMilliseconds: 2s\nfeatureGates: KubeProxyIPVS=false,A=true\nmode: '' # best\n",
			"# ours\n" + head + "featureGates:\n  KubeProxyIPVS: false\nmode: '' # best\n",
			"f:4: udpTimeoutMilliseconds: " + udpIdleText + "\nf:5: featureGates[A]: has no effect here",
		},
		"no gates left":    {head + "featureGates: {A: true, WinDSR: false}\n", head, "f:3: featureGates[A]: has no effect here\nf:3: featureGates[WinDSR]: has no effect here"},
		"text of no gates": {head + "featureGates: ''\n", head, ""},
		"gates that act":   {head + "featureGates: {KubeProxyIPVS: true}\n", head + "featureGates: {KubeProxyIPVS: true}\n", ""},
		"mistakes": {
			head + "iptables: {masqueradBit: 3, syncPeriod: 9s}\nmode: ipvs\nmode: nftables\n", head + "iptables: {syncPeriod: 9s}\nmode: nftables\n",
			"f:3: iptables.masqueradBit: unknown field\nf:4: mode: is set again in line 5, which counts",
		},
		"aliases": {
			head + "conntrack: {max: &n 5, min: *n}\nnftables: {<<: &p {a: 1, syncPeriod: 9s}}\nipvs: *p\n",
			head + "conntrack: {min: 5}\nnftables: {syncPeriod: 9s}\nipvs: {syncPeriod: 9s}\n",
			"f:3: conntrack.max: is ignored: set conntrack.maxPerCore and conntrack.min\nf:4: nftables.a: unknown field\nf:4: ipvs.a: unknown field",
		},
		"case, of 1.11":   {head + "ipvs: {ExcludeCIDRs: [], a: 1}\n", head + "ipvs: {excludeCIDRs: []}\n", "f:3: ipvs.a: unknown field"},
		"no timeout":      {head + "udpIdleTimeout: 0s\n", head, "f:3: udpIdleTimeout: " + udpIdleText},
		"documents":       {"---\n" + head + "mode: ipvs\n---\na: 1\n", "---\n" + head + "mode: ipvs\n", ""},
		"kubeadm":         {"kind: ClusterConfiguration\n---\n" + head + "mode: ipvs\n---\na: 1\n", "---\n" + head + "mode: ipvs\n", ""},
		"ConfigMap":       {configMap(head + "mode: ipvs # a\n"), head + "mode: ipvs # a\n", ""},
		"ConfigMap, gate": {configMap(head + "featureGates: {A: true}\nmode: ipvs\n"), head + "mode: ipvs\n", "f:8: featureGates[A]: has no effect here"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			found, err := Find("f", []byte(tt.data))
			kit.Must(t, err)
			out, left, err := Migrate(found[0], testModes, Linux)
			kit.Must(t, err)
			kit.Same(t, "printed (-want +got)", tt.want, string(out))
			kit.Same(t, "left out (-want +got)", tt.left, notesText(&Config{Notes: left}))
			_, err = LoadFrom(&Flags{Modes: testModes, Config: "f", StrictConfig: true}, Linux, out)
			kit.Check(t, err == nil, "a strict start: %v", err)
		})
	}
	_, _, err := Migrate(Found{Name: "f", Data: []byte("\n" + head + "mode: magic\nfeatureGates: {A: true}\n")}, testModes, Linux)
	want := `the result could not be used on linux: f:4: mode: "magic" is no mode`
	kit.Check(t, strings.HasPrefix(errorText(err), want), "a value that is wrong: %v, want %s...", err, want)
}

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
			kit.Need(t, err != nil, "no error, want %s", tt.want)
			kit.Same(t, "error (-want +got)", tt.want, err.Error())
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
	kit.Same(t, "warnings (-want +got)", want, got)
	if *c.OOMScoreAdj != 2 || *c.IPTables.MasqueradeBit != 4 || !c.FeatureGates["WinDSR"] {
		t.Errorf("oomScoreAdj %d, masqueradeBit %d, %v, want what is said last", *c.OOMScoreAdj, *c.IPTables.MasqueradeBit, c.FeatureGates)
	}
	_, err := LoadFrom(&Flags{Modes: testModes, Config: "f", StrictConfig: true}, Linux, []byte(head+body))
	kit.Check(t, err != nil && err.Error() == strings.Join(want, "\n"), "strictly: %v, want all of them", err)
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
			kit.Must(t, err)
			kit.Check(t, f.Values.HostnameOverride == "10" && f.Values.EnableProfiling,
				"hostnameOverride %q, enableProfiling %v, want 10 and true", f.Values.HostnameOverride, f.Values.EnableProfiling)
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
			kit.Need(t, err == nil, "parse what was written: %v\n%s", err, first)
			c, err = complete(again, &Flags{Modes: testModes}, os, nil)
			kit.Need(t, err == nil, "check what was written: %v\n%s", err, first)
			diff := cmp.Diff(first, written(c))
			kit.Need(t, diff == "", "second writing (-first +second):\n%s", diff)
		}
	})
}

// TestEverythingAtOnce checks that errors of form and of value are reported together, and
// a field that cannot be decoded only once.
func TestEverythingAtOnce(t *testing.T) {
	path := t.TempDir() + "/c.yaml"
	body := head + "mode: magic\niptable: {}\niptables: {masqueradeBit: 33}\nconntrack: {maxPerCore: x}\n"
	kit.Must(t, os.WriteFile(path, []byte(body), 0o600))
	_, err := Load(&Flags{Modes: testModes, Config: path, StrictConfig: true}, Linux)
	kit.Need(t, err != nil, "Check = nil")
	for _, want := range []string{"mode: ", "iptable: ", "iptables.masqueradeBit: ", "conntrack.maxPerCore: "} {
		n := strings.Count(err.Error(), ": "+want)
		kit.Check(t, n == 1, "%d errors about %q, want 1:\n%v", n, want, err)
	}
}
