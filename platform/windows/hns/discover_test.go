// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/service"
)

func pod(network, a string) Endpoint {
	return Endpoint{ID: "pod-" + a, Name: "pod", Network: network, Addrs: []netip.Addr{addr(a)}}
}

func TestChooseNetwork(t *testing.T) {
	nat := Network{ID: "net-nat", Name: "nat", Kind: "NAT"}
	other := Network{ID: "net-other", Name: "other", Kind: L2Tunnel}
	external := Network{ID: "net-external", Name: "External", Kind: Overlay, Subnets: []netip.Prefix{prefix("192.168.255.0/30")}}
	flannel := Network{ID: "net-flannel", Name: "flannel.4096", Kind: Overlay, Subnets: []netip.Prefix{prefix("10.244.1.0/24")}}
	routed := flannel
	routed.Routes = []Route{{prefix("10.244.2.0/24"), addr("192.0.2.11")}}
	ranges := []netip.Prefix{prefix("fd00::/64"), prefix("10.244.1.0/24")}
	for name, tt := range map[string]struct {
		options Options
		listing Listing
		want    string // its name, or a part of the error
		waits   bool
		ranges  []netip.Prefix // podCIDRs of the Node
	}{
		"configured":                  {Options{NetworkName: "other", EnvName: "vxlan0"}, Listing{Networks: []Network{overlayN, other}}, "other", false, nil},
		"in the environment":          {Options{EnvName: "VXLAN0"}, Listing{Networks: []Network{overlayN, other}}, "vxlan0", false, nil},
		"configured, not there yet":   {Options{NetworkName: "cbr0"}, Listing{Networks: []Network{nat, overlayN}}, `network "cbr0", which --network-name or winkernel.networkName names; there is "nat" (NAT), "vxlan0" (Overlay)`, true, nil},
		"configured, of other type":   {Options{NetworkName: "nat"}, Listing{Networks: []Network{nat, overlayN}}, `is of type NAT: want Overlay, L2Bridge or L2Tunnel`, false, nil},
		"the only one":                {Options{}, Listing{Networks: []Network{nat, overlayN}}, "vxlan0", false, nil},
		"none":                        {Options{}, Listing{}, "there is no network at all", true, nil},
		"none that fits":              {Options{}, Listing{Networks: []Network{nat}}, `there is "nat" (NAT)`, true, nil},
		"where the pods are":          {Options{}, Listing{Networks: []Network{overlayN, other}, Endpoints: []Endpoint{pod("net-other", "10.0.0.1")}}, "other", false, nil},
		"pods in two":                 {Options{}, Listing{Networks: []Network{overlayN, other}, Endpoints: []Endpoint{pod("net-other", "10.0.0.1"), pod("net-overlay", "10.244.1.3")}}, "set --network-name to one of them", false, nil},
		"two without pods":            {Options{}, Listing{Networks: []Network{flannel, other}}, `"flannel.4096" (Overlay, 0 endpoints of pods), "other" (L2Tunnel, 0 endpoints of pods); set --network-name`, true, ranges[:1]},
		"podCIDR":                     {Options{}, Listing{Networks: []Network{external, flannel}}, "flannel.4096", false, ranges},
		"pods elsewhere than podCIDR": {Options{}, Listing{Networks: []Network{external, other, flannel}, Endpoints: []Endpoint{pod("net-other", "10.0.0.1")}}, "other", false, ranges},
		"podCIDR among pods in two":   {Options{}, Listing{Networks: []Network{external, flannel}, Endpoints: []Endpoint{pod("net-external", "192.168.255.2"), pod("net-flannel", "10.244.1.3")}}, "flannel.4096", false, ranges},
		"routes":                      {Options{}, Listing{Networks: []Network{external, routed}}, "flannel.4096", false, nil},
		"our own endpoint is no pod":  {Options{}, Listing{Networks: []Network{overlayN, other}, Endpoints: []Endpoint{{Name: sourceVIPName, Network: "net-overlay", Addrs: []netip.Addr{addr("10.244.1.2")}}, pod("net-other", "10.0.0.1")}}, "other", false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := ChooseNetwork(tt.listing, tt.options, tt.ranges)
			switch {
			case err == nil && (c.Network.Name != tt.want || len(c.Log) == 0):
				t.Errorf("network %q, log %q, want %q and a reason", c.Network.Name, c.Log, tt.want)
			case err != nil && (!strings.Contains(err.Error(), tt.want) || !strings.Contains(tt.want, " ")):
				t.Errorf("error %q, want %q in it, or the network of that name", err, tt.want)
			case errors.Is(err, ErrWaiting) != tt.waits:
				t.Errorf("waits: %v, want %v (%v)", !tt.waits, tt.waits, err)
			}
		})
	}
}

func TestChooseSourceVIP(t *testing.T) {
	reserved := Endpoint{Name: sourceVIPName, Network: "net-overlay", Addrs: []netip.Addr{addr("10.244.1.7")}}
	elsewhere := Endpoint{Name: sourceVIPName, Network: "net-other", Addrs: []netip.Addr{addr("10.9.9.9")}}
	taken := pod("net-overlay", "10.244.1.9")
	taken.HasNamespace = true
	script := Endpoint{ID: "s", Name: "VIPEndpoint", Network: "net-overlay", HasNamespace: true, Addrs: []netip.Addr{addr("10.244.1.9")}}
	calico := Endpoint{ID: "c", Name: "Calico_ep", Network: "net-overlay", HasNamespace: true, Addrs: []netip.Addr{addr("10.244.1.66")}}
	remote := Endpoint{ID: "r", Network: "net-overlay", Remote: true, Addrs: []netip.Addr{addr("10.244.1.8")}}
	for name, tt := range map[string]struct {
		given     string
		endpoints []Endpoint
		want      string // address, or a part of the error
		reserve   bool
	}{
		"HNS chooses":             {"", []Endpoint{elsewhere}, "invalid IP", true},
		"ours is there":           {"", []Endpoint{elsewhere, reserved}, "10.244.1.7", false},
		"Calico's is there":       {"", []Endpoint{calico}, "10.244.1.66", false},
		"ours before Calico's":    {"", []Endpoint{reserved, calico}, "10.244.1.7", false},
		"given, Calico's":         {"10.244.1.66", []Endpoint{calico}, "10.244.1.66", false},
		"given, not Calico's":     {"10.244.1.9", []Endpoint{calico}, "10.244.1.9", true},
		"given, free":             {"10.244.1.9", nil, "10.244.1.9", true},
		"given, somebody made it": {"10.244.1.9", []Endpoint{pod("net-overlay", "10.244.1.9")}, "10.244.1.9", false},
		"given, a script made it": {"10.244.1.9", []Endpoint{script}, "10.244.1.9", false},
		"given, a pod has it":     {"10.244.1.9", []Endpoint{taken}, `taken by a pod, as endpoint pod-10.244.1.9, "pod"`, false},
		"outside":                 {"10.9.0.9", nil, "in no subnet of network", false},
		"IPv6":                    {"fd00::9", nil, "want an IPv4 address", false},
		"network address":         {"10.244.1.0", nil, "reserved in 10.244.1.0/24", false},
		"gateway":                 {"10.244.1.1", nil, "reserved in 10.244.1.0/24", false},
		"broadcast":               {"10.244.1.255", nil, "reserved in 10.244.1.0/24", false},
		"taken":                   {"10.244.1.8", []Endpoint{remote}, "taken by remote endpoint r", false},
	} {
		t.Run(name, func(t *testing.T) {
			given, _ := netip.ParseAddr(tt.given)
			got, reserve, err := ChooseSourceVIP(Listing{Endpoints: tt.endpoints}, overlayN, given)
			_, noAddr := netip.ParseAddr(tt.want)
			switch {
			case err != nil && noAddr == nil:
				t.Error(err)
			case err != nil && (!strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "--source-vip")):
				t.Errorf("error %q, want %q in it", err, tt.want)
			case err == nil && got.String() != tt.want, (reserve != nil) != tt.reserve:
				t.Errorf("%v, reserve %v, want %v, %v", got, reserve, tt.want, tt.reserve)
			}
		})
	}
}

// An error of discover includes the remedy. It fails the sync, not the start.
func TestDiscoverProblems(t *testing.T) {
	for name, tt := range map[string]struct {
		version Version
		node    *service.Node
		mac     error
		want    string
	}{
		"old HNS":         {Version{9, 1}, theNode, nil, "HNS 9.1 has no remote subnets: want Windows Server 2019"},
		"nameless node":   {v13, &service.Node{NodePorts: service.AnyAddress()}, nil, "waiting for the node's IPv4 address"},
		"no such address": {v13, theNode, errors.New("no network interface"), "find the hardware address for overlay network"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestNode(t, tt.version, overlayN)
			b.backend.hostMAC = func(netip.Addr) (string, error) { return "", tt.mac }
			_, err := b.backend.Plan(t.Context(), service.New(1, tt.node, nil))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Plan = %v, want %q", err, tt.want)
			}
		})
	}
}

// The proxy waits for a network that the network plugin has not created yet.
func TestNetworkComesLater(t *testing.T) {
	b := newTestNode(t, v13, overlayN)
	b.hns.networks = nil
	want := snapshot(1, clusterIP("web", "10.96.0.10", "10.244.2.11:80@b"))
	if _, err := b.backend.Plan(t.Context(), want); !errors.Is(err, ErrWaiting) {
		t.Fatalf("Plan = %v, want ErrWaiting", err)
	}
	b.hns.networks = []Network{overlayN}
	b.converge(want)
}

// An overlay that sends from another address than the Node's is named.
func TestNetworkOnAnotherAdapter(t *testing.T) {
	for provider, want := range map[netip.Addr]bool{{}: false, nodeA: false, addr("192.0.2.99"): true} {
		b := newTestNode(t, v13, overlayN)
		b.hns.networks[0].Provider = provider
		b.plan(snapshot(1))
		if got := strings.Contains(strings.Join(b.notes, "\n"), `Network "vxlan0" sends from 192.0.2.99`); got != want {
			t.Errorf("%s: notes %q", provider, b.notes)
		}
	}
}

func TestHostMAC(t *testing.T) {
	if _, err := hostMAC(addr("203.0.113.77")); err == nil || !strings.Contains(err.Error(), "--bind-address") {
		t.Errorf("hostMAC of an address that no interface has = %v", err)
	}
}

// The network plugin makes the network again, under another ID. A Service that gets an
// endpoint then does not wait for a resync to find that.
func TestNetworkMadeAgain(t *testing.T) {
	for name, before := range map[string][]string{"a new pod": {"10.244.1.11:80"}, "after it was missing": {"10.244.1.11:80", "10.244.1.12:80"}} {
		t.Run(name, func(t *testing.T) {
			b := newTestNode(t, v13, bridgeN)
			b.pods("10.244.1.11")
			_, err := b.round(snapshot(1, clusterIP("web", "10.96.0.10", before...)))
			if len(before) == 1 && err != nil {
				t.Fatal(err)
			}
			b.hns.networks[0].ID = "net-again"
			clear(b.hns.endpoints)
			b.pods("10.244.1.11", "10.244.1.12")
			b.converge(snapshot(2, clusterIP("web", "10.96.0.10", "10.244.1.11:80", "10.244.1.12:80")))
			if diff := cmp.Diff([]string{"tcp 10.96.0.10:80 [10.244.1.11 10.244.1.12]"}, b.balancerTexts()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
