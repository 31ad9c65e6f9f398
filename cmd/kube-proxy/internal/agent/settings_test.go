// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/config"
	"kubeproxy/platform/modes"
)

func TestTrackOptions(t *testing.T) {
	prefix := netip.MustParsePrefix
	tests := map[string]struct {
		change func(*config.Config)
		want   track.Options
	}{
		"defaults":           {func(*config.Config) {}, track.Options{NodePortsPrimary: true}},
		"masquerade all":     {func(c *config.Config) { c.NFTables.MasqueradeAll = true }, track.Options{NodePortsPrimary: true, MasqueradeAll: true}},
		"for iptables only":  {func(c *config.Config) { c.IPTables.MasqueradeAll = true }, track.Options{NodePortsPrimary: true}},
		"iptables":           {func(c *config.Config) { c.Mode, c.IPTables.MasqueradeAll = config.IPTables, true }, track.Options{NodePorts: service.AnyAddress(), MasqueradeAll: true}},
		"node IP":            {func(c *config.Config) { c.BindAddress = "192.0.2.1" }, track.Options{NodePortsPrimary: true, NodeIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}},
		"no external IPs":    {func(c *config.Config) { c.FeatureGates = map[string]bool{"AllowServiceExternalIPs": false} }, track.Options{NodePortsPrimary: true, IgnoreExternalIPs: true}},
		"node port prefixes": {func(c *config.Config) { c.NodePortAddresses = []string{"10.0.0.0/8"} }, track.Options{NodePorts: []netip.Prefix{prefix("10.0.0.0/8"), prefix("::/0")}}},
		"cluster CIDRs": {
			func(c *config.Config) { c.DetectLocalMode, c.ClusterCIDR = config.ClusterCIDR, "10.0.0.0/8,fd00::/48" },
			track.Options{NodePortsPrimary: true, Pods: service.LocalPods{Prefixes: []netip.Prefix{prefix("10.0.0.0/8"), prefix("fd00::/48")}}},
		},
		"node CIDRs": {func(c *config.Config) { c.DetectLocalMode = config.NodeCIDR }, track.Options{NodePortsPrimary: true, PodsFromNode: true}},
		"bridge": {
			func(c *config.Config) {
				c.DetectLocalMode, c.DetectLocal.BridgeInterface = config.BridgeInterface, "cni0"
			},
			track.Options{NodePortsPrimary: true, Pods: service.LocalPods{Interface: "cni0"}},
		},
		"interface prefix": {
			func(c *config.Config) {
				c.DetectLocalMode, c.DetectLocal.InterfaceNamePrefix = config.InterfaceNamePrefix, "veth"
			},
			track.Options{NodePortsPrimary: true, Pods: service.LocalPods{InterfacePrefix: "veth"}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := &config.Config{OS: config.Linux}
			c.BindAddress = "0.0.0.0"
			tt.change(c)
			tt.want.NodeName = "n"
			ips := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
			prefixes := cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
			if diff := cmp.Diff(tt.want, TrackOptions(modes.All().Of(c), c, "n"), ips, prefixes); diff != "" {
				t.Errorf("options (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSyncPeriods(t *testing.T) {
	c := &config.Config{OS: config.Linux}
	of := func(d time.Duration) metav1.Duration { return metav1.Duration{Duration: d} }
	c.NFTables.MinSyncPeriod, c.NFTables.SyncPeriod = of(1), of(2)
	c.IPVS.MinSyncPeriod, c.IPVS.SyncPeriod = of(3), of(4)
	c.IPTables.MinSyncPeriod, c.IPTables.SyncPeriod = of(5), of(6)
	for name, want := range map[v1alpha1.ProxyMode][2]time.Duration{"": {1, 2}, "nftables": {1, 2}, "ipvs": {3, 4}, "iptables": {5, 6}, "userspace": {5, 6}, "kernelspace": {5, 6}} {
		if c.Mode, c.OS = name, config.Linux; name == config.Kernelspace {
			c.OS = config.Windows
		}
		if s := modes.All().Of(c).Section(c); s.MinSyncPeriod != want[0] || s.SyncPeriod != want[1] {
			t.Errorf("mode %q: %v, %v, want %v", name, s.MinSyncPeriod, s.SyncPeriod, want)
		}
	}
}
