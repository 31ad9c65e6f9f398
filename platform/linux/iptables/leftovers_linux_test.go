// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

// foreignText is what others, kubelet among them, have in the tables.
const foreignText = `*mangle
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-IPTABLES-HINT - [0:0]
COMMIT
*nat
:MINE - [0:0]
:KUBE-MARK-DROP - [0:0]
:KUBE-IP-MASQ - [0:0]
:KUBE-NP-DEFAULT - [0:0]
-A PREROUTING -p tcp -m tcp --dport 1 -j MINE
-A PREROUTING -j KUBE-NP-DEFAULT
-A POSTROUTING -j KUBE-IP-MASQ
-A KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000
-A MINE -j RETURN
COMMIT
*filter
:KUBE-FIREWALL - [0:0]
-A OUTPUT -j KUBE-FIREWALL
-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP
COMMIT
`

// upstreamText is what kube-proxy has in the tables: some of the chains of its modes
// iptables, ipvs and userspace.
const upstreamText = `*mangle
:KUBE-PROXY-CANARY - [0:0]
COMMIT
*nat
:KUBE-PROXY-CANARY - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-ERIFXISQEP7F7OF4 - [0:0]
:KUBE-SEP-D5T6TEDVCIBOHOXF - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-LOAD-BALANCER - [0:0]
:KUBE-PORTALS-HOST - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "handle ClusterIPs; NOTE: this must be before the NodePort rules" -j KUBE-PORTALS-HOST
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-SERVICES -j KUBE-SVC-ERIFXISQEP7F7OF4
-A KUBE-SVC-ERIFXISQEP7F7OF4 -m statistic --mode random --probability 0.5 -j KUBE-SEP-D5T6TEDVCIBOHOXF
-A KUBE-SEP-D5T6TEDVCIBOHOXF -j KUBE-MARK-MASQ
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
COMMIT
*filter
:KUBE-PROXY-CANARY - [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
COMMIT
`

// TestExtraneousObjectsAreDeleted finds the leftovers of kube-proxy and of this proxy,
// and removes them and nothing else. It repeats the removal.
func TestExtraneousObjectsAreDeleted(t *testing.T) {
	eachKernel(t, func(t *testing.T, b *Backend) {
		r := Leftovers{Variant: Legacy, Family: b.family}
		if strings.Contains(t.Name(), "/nft/") {
			r.Variant = NFT
		}
		other := Leftovers{Variant: Variants[0], Family: b.family}
		if other == r {
			other.Variant = Variants[1]
		}
		restore(t, b, foreignText)
		theirs := saved(t, b)
		wantFound(t, r, "")
		for _, tc := range []struct {
			name, find string
			install    func()
		}{
			{"kube-proxy", "chains of another service proxy: 14 (", func() { restore(t, b, upstreamText) }},
			{"this proxy", "chains of this proxy: ", func() { apply(t, b, simple(0)) }},
		} {
			tc.install()
			wantFound(t, r, tc.find)
			wantFound(t, other, "")
			for range 2 {
				if err := r.Remove(t.Context()); err != nil {
					t.Errorf("%s: Remove: %v", tc.name, err)
				}
			}
			wantFound(t, r, "")
			kit.Same(t, fmt.Sprintf("%s: what is left (-what others have +all)", tc.name), theirs, saved(t, b))
		}
		restore(t, b, "*nat\n:KUBE-MARK-MASQ - [0:0]\nCOMMIT\n")
		wantFound(t, r, "") // kubelet may have made it
	})
}

// TestLeftoversInUse checks that a chain in use is flushed and that the error names its
// user.
func TestLeftoversInUse(t *testing.T) {
	eachKernel(t, func(t *testing.T, b *Backend) {
		r := Leftovers{Variant: Legacy, Family: b.family}
		if strings.Contains(t.Name(), "/nft/") {
			r.Variant = NFT
		}
		restore(t, b, upstreamText+"*nat\n:MINE - [0:0]\n-A MINE -j KUBE-MARK-MASQ\n-A MINE -j KUBE-SERVICES\nCOMMIT\n")
		err := r.Remove(t.Context())
		if err == nil || !strings.Contains(err.Error(), "chain KUBE-SERVICES of table nat is in use: chain MINE") {
			t.Errorf("Remove = %v, want it to name the chains in use", err)
		}
		wantFound(t, r, "chains of another service proxy: 2 (KUBE-MARK-MASQ, KUBE-SERVICES)")
		t.Setenv("PATH", t.TempDir())
		wantFound(t, r, "chains of another service proxy: 2 (KUBE-MARK-MASQ, KUBE-SERVICES)")
		if err := r.Remove(t.Context()); err == nil || !strings.Contains(err.Error(), "the command "+r.String()+"-restore is missing") {
			t.Errorf("Remove without commands = %v", err)
		}
	})
}

// TestLeftoversOfLoopback disables route_localnet together with the rules that protect
// loopback addresses, unless another process had enabled it.
func TestLeftoversOfLoopback(t *testing.T) {
	eachKernel(t, func(t *testing.T, b *Backend) {
		if b.family == service.IPv6 {
			return
		}
		r := Leftovers{Variant: Legacy, Family: b.family}
		if strings.Contains(t.Name(), "/nft/") {
			r.Variant = NFT
		}
		for _, others := range []bool{false, true} {
			if others {
				kit.Must(t, b.driver.EnableRouteLocalnet())
			}
			b.options.LocalhostNodePorts, b.installed = true, nil
			apply(t, b, simple(1))
			if open, err := b.driver.RouteLocalnetEnabled(); !open || err != nil {
				t.Errorf("loopback addresses are open: %t, %v", open, err)
			}
			kit.Must(t, r.Remove(t.Context()))
			if open, err := b.driver.RouteLocalnetEnabled(); open != others || err != nil {
				t.Errorf("with the chains gone, loopback addresses are open: %t, %v; want %t", open, err, others)
			}
			b.localnetMarked = false // as in another process
		}
	})
}

func wantFound(t *testing.T, r Leftovers, want string) {
	t.Helper()
	got, err := r.Find(t.Context())
	kit.Check(t, err == nil && (want != "" || got == "") && strings.HasPrefix(got, want),
		"Find = %q, %v; want %q", got, err, want)
}

func restore(t *testing.T, b *Backend, text string) {
	t.Helper()
	kit.Must(t, b.driver.Restore(context.Background(), text))
}

// saved lists all rules of b's family and variant, without counters.
func saved(t *testing.T, b *Backend) string {
	t.Helper()
	out, err := exec.Command(b.driver.(*runner).path("-save")).Output()
	kit.Must(t, err)
	return regexp.MustCompile(`(?m)^#.*\n|\[\d+:\d+\]$`).ReplaceAllString(string(out), "")
}

// TestNodeVariant runs the command of the node.
func TestNodeVariant(t *testing.T) {
	for _, v := range Variants {
		t.Setenv("PATH", variantDir(t, string(v)))
		for _, f := range service.Families {
			if got, err := NodeVariant(f); got != v || err != nil {
				t.Errorf("%s: Usual = %q, %v", v, got, err)
			}
		}
	}
}
