// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/config"
	"kubeproxy/platform/modes"
)

// TestWhereSettingsComeFrom checks that the first log line names the origin of settings.
// A setting without a default comes from the file unless a flag gives it.
func TestWhereSettingsComeFrom(t *testing.T) {
	c := &config.Config{}
	c.HostnameOverride, c.ClusterCIDR = "node-a", "10.0.0.0/8"
	for situation, tt := range map[string]struct {
		file       string
		args       []string
		name, pods string
	}{
		"a file":   {"f.yaml", nil, "f.yaml", "f.yaml"},
		"flags":    {"", []string{"--hostname-override=node-a", "--cluster-cidr=10.0.0.0/8"}, "--hostname-override", "--cluster-cidr"},
		"one each": {"f.yaml", []string{"--cluster-cidr=10.0.0.0/8"}, "f.yaml", "--cluster-cidr"},
		"nothing":  {"", nil, "the default", "the default"},
	} {
		o := NewOptions(modes.All())
		o.FlagSet = pflag.NewFlagSet("", pflag.ContinueOnError)
		o.Flags.Register(o.FlagSet)
		if err := o.FlagSet.Parse(tt.args); err != nil {
			t.Fatal(err)
		}
		o.Flags.Config = tt.file
		if name, pods := o.nameOrigin(c), o.podsOrigin(c); name != tt.name || pods != tt.pods {
			t.Errorf("%s: %q, %q; want %q, %q", situation, name, pods, tt.name, tt.pods)
		}
	}
}

// TestWherePodsComeFrom checks which setting tells pods from others, and where it comes from.
func TestWherePodsComeFrom(t *testing.T) {
	const of = "f.yaml or the default"
	for _, tt := range []struct {
		mode       v1alpha1.LocalMode
		cidr       string
		args       []string
		text, from string
	}{
		{"", "", nil, "not distinguished, because no cluster CIDR is configured", of},
		{"", "10.0.0.0/8", nil, "sources in clusterCIDR 10.0.0.0/8", "f.yaml"},
		{config.ClusterCIDR, "10.0.0.0/8", []string{"--cluster-cidr=10.0.0.0/8", "--detect-local-mode=ClusterCIDR"}, "sources in clusterCIDR 10.0.0.0/8", "--cluster-cidr"},
		{config.NodeCIDR, "10.0.0.0/8", []string{"--cluster-cidr=10.0.0.0/8"}, "sources in the Node's podCIDRs", of},
		{config.NodeCIDR, "", []string{"--detect-local-mode=NodeCIDR"}, "sources in the Node's podCIDRs", "--detect-local-mode"},
	} {
		o, c := NewOptions(modes.All()), &config.Config{}
		c.DetectLocalMode, c.ClusterCIDR = tt.mode, tt.cidr
		o.FlagSet = pflag.NewFlagSet("", pflag.ContinueOnError)
		o.Flags.Register(o.FlagSet)
		if err := o.FlagSet.Parse(tt.args); err != nil {
			t.Fatal(err)
		}
		o.Flags.Config = "f.yaml"
		if text, from := podsText(c), o.podsOrigin(c); text != tt.text || from != tt.from {
			t.Errorf("%+v: %q, %q", tt, text, from)
		}
	}
}

// TestMaxConnections checks the bound where the limit of open files is low, high and unknown.
func TestMaxConnections(t *testing.T) {
	for _, tt := range []struct {
		files uint64
		known bool
		want  int
	}{{256, true, 16}, {2047, true, 127}, {2048, true, 128}, {1 << 20, true, 128}, {1<<64 - 1, true, 128}, {0, false, 128}} {
		if got := maxConnections(tt.files, tt.known); got != tt.want {
			t.Errorf("%+v: %d", tt, got)
		}
	}
}
