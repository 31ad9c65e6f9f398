// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

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
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("notes (-want +got):\n%s", diff)
			}
		})
	}
}

// TestFeatures checks that Features returns the state in effect, not the configured one.
func TestFeatures(t *testing.T) {
	const body = "featureGates: {AllowServiceExternalIPs: false, NFTablesProxyMode: false, AllAlpha: true}"
	off := []string{"AllowServiceExternalIPs"}
	all := mustLoad(t, Linux, body).Features()
	if len(all) != len(features) || !slices.IsSortedFunc(all, func(a, b Feature) int { return strings.Compare(a.Name, b.Name) }) {
		t.Errorf("%v, want all by name", all)
	}
	for _, f := range all {
		if want := !slices.Contains(off, f.Name); f.Enabled != want {
			t.Errorf("%s is %t, want %t", f.Name, f.Enabled, want)
		}
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
			if got := notesText(c); got != from(want.note) {
				t.Errorf("notes %q, want %q", got, from(want.note))
			}
			if got := errorText(joined(c.Warnings)); got != from(want.warning) {
				t.Errorf("warnings %q, want %q", got, from(want.warning))
			}
			_, err := load(t, Linux, source.body, append(source.args, "--strict-config")...)
			if got := errorText(err); got != from(want.strict) {
				t.Errorf("strictly %q, want %q", got, from(want.strict))
			}
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
		if usage := fs.Lookup("feature-gates").Usage; !strings.Contains(usage, f.Name) {
			t.Errorf("%s is not in %q", f.Name, usage)
		}
	}
}

// TestIPVSGate checks that a mode disabled by its gate is rejected.
func TestIPVSGate(t *testing.T) {
	_, err := Load(flagsOf(t, "--proxy-mode=ipvs", "--feature-gates=KubeProxyIPVS=false"), Linux)
	const want = "--proxy-mode: mode: ipvs is switched off by featureGates[KubeProxyIPVS]: want another mode, or the gate on"
	if err == nil || err.Error() != want {
		t.Errorf("Load = %v, want %s", err, want)
	}
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
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("notes (-want +got):\n%s", diff)
			}
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
		if got := c.HealthzBindAddress + " " + c.MetricsBindAddress; got != want[bind] {
			t.Errorf("%s: %s, want %s", bind, got, want[bind])
		}
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
		if got := errorText(joined(mustLoad(t, Linux, "", args...).Warnings)); got != warning {
			t.Errorf("%s: warnings %q, want %q", addrs, got, warning)
		}
		if _, err := load(t, Linux, "", append(args, "--bind-address-hard-fail")...); errorText(err) != hard {
			t.Errorf("%s: %v, want %s", addrs, err, hard)
		}
	}
}

// TestOldHealthPort checks the flags of units for kube-proxy 1.2 to 1.6, whose one server
// has the port that metrics have today.
func TestOldHealthPort(t *testing.T) {
	c := mustLoad(t, Linux, "", "--healthz-bind-address=127.0.0.1", "--healthz-port=10249")
	if c.HealthzBindAddress != "127.0.0.1:10249" || len(c.Warnings) != 1 {
		t.Errorf("%s, warnings %v", c.HealthzBindAddress, c.Warnings)
	}
}
