// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"

	"github.com/spf13/pflag"

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
