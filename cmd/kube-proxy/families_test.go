// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/klog/v2"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/config"
)

// TestFamilies checks that the proxy starts without the secondary family, and not without
// the primary one.
func TestFamilies(t *testing.T) {
	const four, six = service.IPv4, service.IPv6
	for situation, test := range map[string]struct {
		bind    string
		lacks   []service.Family
		want    []service.Family
		missing map[service.Family]string
		err     string
	}{
		"both":                      {"0.0.0.0", nil, []service.Family{four, six}, nil, ""},
		"no IPv6, IPv4 first":       {"0.0.0.0", []service.Family{six}, []service.Family{four}, map[service.Family]string{six: "no IPv6 here"}, ""},
		"no IPv6, an IPv4 address":  {"192.0.2.1", []service.Family{six}, []service.Family{four}, map[service.Family]string{six: "no IPv6 here"}, ""},
		"no IPv6, IPv4 inside IPv6": {"::ffff:192.0.2.1", []service.Family{six}, []service.Family{four}, map[service.Family]string{six: "no IPv6 here"}, ""},
		"no IPv6, IPv6 first":       {"::", []service.Family{six}, nil, nil, "IPv6 is the primary family by bindAddress :: and cannot be programmed: no IPv6 here"},
		"no IPv4, IPv6 first":       {"2001:db8::1", []service.Family{four}, []service.Family{six}, map[service.Family]string{four: "no IPv4 here"}, ""},
		"neither":                   {"0.0.0.0", []service.Family{four, six}, nil, nil, "IPv4 is the primary family by bindAddress 0.0.0.0 and cannot be programmed: no IPv4 here"},
	} {
		t.Run(situation, func(t *testing.T) {
			c := &config.Config{}
			c.BindAddress = test.bind
			got, missing, err := familiesOf(c, func(f service.Family) error {
				for _, l := range test.lacks {
					if l == f {
						return errors.New("no " + f.String() + " here")
					}
				}
				return nil
			})
			text := ""
			if err != nil {
				text = err.Error()
			}
			if text != test.err {
				t.Errorf("error %q, want %q", text, test.err)
			}
			if len(missing) == 0 {
				missing = nil
			}
			if diff := cmp.Diff(test.want, got) + cmp.Diff(test.missing, missing); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestUnknownPods checks that podCIDRs are required only of families that have Services.
func TestUnknownPods(t *testing.T) {
	c, err := config.Load(&config.Flags{}, config.Linux)
	if err != nil {
		t.Fatal(err)
	}
	c.DetectLocalMode = config.NodeCIDR
	var backends []*backend
	for _, f := range service.Families {
		backends = append(backends, &backend{mode: "nftables", family: f})
	}
	o := newStatusReporter(c, backends, "node-a", newSourceStatus(false), klog.Background())
	round := func(pods ...netip.Prefix) map[string]string {
		node := &service.Node{NodePorts: service.AnyAddress(), Pods: service.LocalPods{Prefixes: pods}}
		s := service.New(1, node, []*service.Port{{Name: service.PortName{Namespace: "shop", Name: "web"}, Family: service.IPv4}})
		for _, b := range backends {
			o.recordRound(b, s, reconcile.Result{FullSync: true})
		}
		return o.health.Report().Conditions
	}
	const want = "the Node node-a has no podCIDRs of IPv4, so clients that are no pods are not masqueraded: detectLocalMode NodeCIDR wants one"
	if diff := cmp.Diff(map[string]string{"pods-IPv4": want}, round(netip.MustParsePrefix("fd00::/64"))); diff != "" {
		t.Errorf("without (-want +got):\n%s", diff)
	}
	if got := round(netip.MustParsePrefix("10.244.1.0/24")); len(got) > 0 {
		t.Errorf("with: %v", got)
	}
	o.podsFromNode.Store(false)
	if got := round(); len(got) > 0 {
		t.Errorf("told otherwise: %v", got)
	}
}

// TestFamilyOutOfReach checks a round that finds that the node lacks a family. It matters
// only if the family has Services.
func TestFamilyOutOfReach(t *testing.T) {
	c, err := config.Load(&config.Flags{}, config.Linux)
	if err != nil {
		t.Fatal(err)
	}
	log, text := newLog(0)
	b := &backend{mode: "kernelspace", family: service.IPv6}
	o := newStatusReporter(c, []*backend{b}, "node-a", newSourceStatus(false), log)
	round := func(why string, ports ...*service.Port) string {
		s := service.New(1, &service.Node{NodePorts: service.AnyAddress()}, ports)
		o.recordRound(b, s, reconcile.Result{Unavailable: why})
		return o.health.Report().Conditions["family-IPv6"]
	}
	web := &service.Port{Name: service.PortName{Namespace: "shop", Name: "web"}, Family: service.IPv6}
	for i, got := range []string{round("no IPv6"), round("no IPv6", web), round("no IPv6", web), round("", web), round("no IPv6")} {
		if want := []string{"", "no IPv6", "no IPv6", "", ""}[i]; got != want {
			t.Errorf("round %d: condition %q, want %q", i, got, want)
		}
	}
	if diff := cmp.Diff([]string{`I "Warning: Services are not programmed for a family" family="IPv6" err="no IPv6"`}, messages(text)); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
}
