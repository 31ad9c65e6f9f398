// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink/nft"
)

func planOrError(t *testing.T, b *Backend, want *service.Snapshot) reconcile.Plan {
	t.Helper()
	p, err := b.Plan(context.Background(), want)
	if err != nil {
		t.Errorf("Plan: %v", err)
		return &plan{backend: b}
	}
	return p
}

// Changes by another process are reported and repaired, and then no longer found.
func TestDrift(t *testing.T) {
	const first = `services: 10.96.0.0 . tcp . 80 comment "shop/web-000" : goto cluster-2`
	for name, tt := range map[string]struct {
		script string
		want   []string
	}{
		"nothing of ours":  {"add table ip other", nil},
		"an element goes":  {"delete element ip kube-services services { 10.96.0.0 . tcp . 80 }", []string{"missing: " + first}},
		"a shared element": {"delete element ip kube-services cluster-ips { 10.96.0.0 }", []string{"missing: cluster-ips: 10.96.0.0"}},
		"an element comes": {"add element ip kube-services cluster-ips { 10.9.9.9 }", []string{"foreign: cluster-ips: 10.9.9.9"}},
		"an element leads elsewhere": {
			"delete element ip kube-services services { 10.96.0.0 . tcp . 80 }\n" +
				"add element ip kube-services services { 10.96.0.0 . tcp . 80 : drop }",
			[]string{"foreign: services: 10.96.0.0 . tcp . 80 : drop", "missing: " + first},
		},
		"an endpoint is replaced": {
			"delete element ip kube-services endpoints { 10.96.0.0 . tcp . 80 . 1 }\n" +
				"add element ip kube-services endpoints { 10.96.0.0 . tcp . 80 . 1 : 10.9.9.9 . 1 }",
			[]string{
				"foreign: endpoints: 10.96.0.0 . tcp . 80 . 1 : 10.9.9.9 . 1",
				"missing: endpoints: 10.96.0.0 . tcp . 80 . 1 : 10.244.1.2 . 8080",
			},
		},
		"a rule comes":       {"add rule ip kube-services refuse drop", []string{"foreign: rules of chain refuse", "missing: rules of chain refuse (2)"}},
		"a rule goes before": {"insert rule ip kube-services prerouting accept", []string{"foreign: rules of chain prerouting", "missing: rules of chain prerouting (1)"}},
		"a chain is flushed": {"flush chain ip kube-services pick-2", []string{"foreign: rules of chain pick-2", "missing: rules of chain pick-2 (1)"}},
		"a chain and a set come": {
			"add chain ip kube-services x\nadd set ip kube-services y { type ipv4_addr; }",
			[]string{"foreign: set y", "foreign: rules of chain x", "foreign: chain x"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			inNamespace(t, func() { checkDrift(t, tt.script, tt.want) })
		})
	}
}

// checkDrift changes a table with nft and script. The next plan must report and repair
// that.
func checkDrift(t *testing.T, script string, names []string) {
	t.Helper()
	b := newKernel(t, service.IPv4)
	defer b.driver.(*kernel).close()
	want := simple(2)
	if drift := planOrError(t, b, want).Outcome().Drift; drift != nil {
		t.Errorf("drift in a first round:\n%s", strings.Join(drift, "\n"))
	}
	apply(t, b, want)
	runNft(t, script, "-f", "-")
	if names != nil {
		wantChangesPlanned(t, want)
	}
	p := planOrError(t, b, want)
	if diff := cmp.Diff(names, p.Outcome().Drift); diff != "" {
		t.Errorf("drift (-want +got):\n%s", diff)
	}
	if err := p.Apply(context.Background()).Err; err != nil {
		t.Errorf("Apply: %v", err)
	}
	wantConverged(t, b, want)
}

// wantChangesPlanned checks that a new process finds something to do.
func wantChangesPlanned(t *testing.T, want *service.Snapshot) {
	t.Helper()
	b := newKernel(t, service.IPv4)
	defer b.driver.(*kernel).close()
	if planOrError(t, b, want).Empty() {
		t.Error("a new backend finds nothing to do")
	}
}

// wantConverged checks that neither b nor a backend that reads everything finds something
// to do.
func wantConverged(t *testing.T, b *Backend, want *service.Snapshot) {
	t.Helper()
	fresh := newKernel(t, b.family)
	defer fresh.driver.(*kernel).close()
	for who, b := range map[string]*Backend{"the same": b, "a new": fresh} {
		if p := planOrError(t, b, want); !p.Empty() || len(p.Outcome().Drift) > 0 {
			t.Errorf("%s backend finds %v:\n%s", who, p.Outcome().Drift, p.Changes())
		}
	}
}

// A flushed ruleset is restored and reported in a bounded number of lines.
func TestDriftOfEverything(t *testing.T) {
	inNamespace(t, func() {
		b := newKernel(t, service.IPv4)
		defer b.driver.(*kernel).close()
		want := simple(100)
		apply(t, b, want)
		runNft(t, "", "flush", "ruleset")
		p := planOrError(t, b, want)
		drift := p.Outcome().Drift
		if len(drift) != reconcile.MaxDrift+1 || drift[0] != "missing: table kube-services" || !strings.HasPrefix(drift[reconcile.MaxDrift], "and ") {
			t.Errorf("drift:\n%s", strings.Join(drift, "\n"))
		}
		if err := p.Apply(context.Background()).Err; err != nil {
			t.Errorf("Apply: %v", err)
		}
		wantConverged(t, b, want)
	})
}

// A plan that is not applied repairs nothing, so the next one does.
func TestDriftOutlivesAPlan(t *testing.T) {
	inNamespace(t, func() {
		b := newKernel(t, service.IPv4)
		defer b.driver.(*kernel).close()
		want := simple(2)
		apply(t, b, want)
		runNft(t, "", "flush", "chain", "ip", TableName, dispatchChain)
		planOrError(t, b, want)
		apply(t, b, want)
		wantConverged(t, b, want)
	})
}

// affinityClients adds clients to the map of a port number, as rules would. It returns
// the addresses in it afterwards.
func affinityClients(t *testing.T, f service.Family, port int, add string) []string {
	t.Helper()
	p := sticky(f).Port(f, service.PortName{Namespace: "shop", Name: "cart", Protocol: service.TCP})
	name := clientSet(p, clusterList, uint16(port)).name
	if add != "" {
		runNft(t, "", "add", "element", nft.FamilyName(f), TableName, name, "{ "+add+" }")
	}
	var clients []string
	listing := runNft(t, "", "list", "map", nft.FamilyName(f), TableName, name)
	for _, word := range strings.Fields(listing) {
		if a, err := parseAddr(word); err == nil {
			clients = append(clients, a)
		}
	}
	return clients
}

// parseAddr returns the word of a listing if it is an address.
func parseAddr(word string) (string, error) {
	word = strings.Trim(word, ",{}")
	if strings.Count(word, ".") != 3 && strings.Count(word, ":") < 2 {
		return "", fmt.Errorf("%q is no address", word)
	}
	return word, nil
}

// Clients of a removed endpoint are deleted, all others are kept.
func TestPruneClients(t *testing.T) {
	for _, f := range service.Families {
		for name, restart := range map[string]bool{"at once": false, "after a restart": true} {
			t.Run(f.String()+" "+name, func(t *testing.T) {
				inNamespace(t, func() { checkPrune(t, f, restart) })
			})
		}
	}
}

func checkPrune(t *testing.T, f service.Family, restart bool) {
	b := newKernel(t, f)
	apply(t, b, sticky(f, 2, 3, 4))
	even := []string{"192.0.2.1 : 10.244.1.2, 192.0.2.2 : 10.244.1.4, 192.0.2.3 : 10.244.1.2", "2001:db8::1 : fd00:10:244:1::2, 2001:db8::2 : fd00:10:244:1::4, 2001:db8::3 : fd00:10:244:1::2"}[f]
	odd := []string{"192.0.2.4 : 10.244.1.3", "2001:db8::4 : fd00:10:244:1::3"}[f]
	if n := len(affinityClients(t, f, 8080, even)) + len(affinityClients(t, f, 8081, odd)); n != 8 {
		t.Errorf("%d addresses of clients and endpoints were added, want 8", n)
	}
	if restart {
		b.driver.(*kernel).close()
		b = newKernel(t, f)
	}
	defer b.driver.(*kernel).close()
	after := sticky(f, 3, 4)
	apply(t, b, after)
	want := [][]string{
		{"192.0.2.2", "10.244.1.4", "192.0.2.4", "10.244.1.3"},
		{"2001:db8::2", "fd00:10:244:1::4", "2001:db8::4", "fd00:10:244:1::3"},
	}[f]
	if diff := cmp.Diff(want, append(affinityClients(t, f, 8080, ""), affinityClients(t, f, 8081, "")...)); diff != "" {
		t.Errorf("remembered (-want +got):\n%s", diff)
	}
	wantConverged(t, b, after)
}
