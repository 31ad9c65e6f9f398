// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace_test

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/test/generate"
	"kubeproxy/test/xtables"
)

// TestBypassChangesOneTable checks that only table nat changes. Connections would be
// lost if they bypassed the relay before another table allowed that.
func TestBypassChangesOneTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := generate.Cluster{T: t, Family: service.Family(rapid.IntRange(0, 1).Draw(t, "family"))}
		s := newRelayNode(w.Family, xtables.New(nil))
		defer s.Close()
		want := service.New(1, cluster(w).Node(), w.Ports())
		s.round(t, want)
		s.tables.Refuse = func(text string) error {
			if !strings.HasPrefix(text, "*nat\n") {
				return errInjected
			}
			return nil
		}
		if loss, err := s.HandOver(t.Context()); err != nil || loss != "" {
			t.Fatalf("HandOver = %q, %v", loss, err)
		}
	})
}

// TestBackFromBypass checks that the next process redirects to its own listeners again,
// and leaves nothing of the bypass.
func TestBackFromBypass(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := generate.Cluster{T: t, Family: service.Family(rapid.IntRange(0, 1).Draw(t, "family"))}
		ports := w.Ports()
		want := service.New(1, cluster(w).Node(), ports)
		s := newRelayNode(w.Family, xtables.New(nil))
		s.round(t, want)
		before := withoutPorts(s.tables.Text())
		if _, err := s.HandOver(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.Close()
		s = newRelayNode(w.Family, s.tables)
		defer s.Close()
		s.round(t, want)
		if now := withoutPorts(s.tables.Text()); now != before {
			t.Fatalf("the rules are now\n%s\nand were\n%s", now, before)
		}
	})
}

// withoutPorts removes the addresses of listeners.
func withoutPorts(rules string) string {
	lines := strings.Split(rules, "\n")
	for i, l := range lines {
		if before, _, found := strings.Cut(l, "--to-destination"); found {
			lines[i] = before
		}
	}
	return strings.Join(lines, "\n")
}

// TestBypassAsksForLess checks that the bypass needs neither random selection nor
// affinity where the kernel lacks a match for them.
func TestBypassAsksForLess(t *testing.T) {
	e := func(s string) service.Endpoint { return service.Endpoint{Addr: netip.MustParseAddrPort(s)} }
	want := service.New(1, &service.Node{NodePorts: service.AnyAddress()}, []*service.Port{{
		Name:      service.PortName{Namespace: "shop", Name: "web", Protocol: service.TCP},
		Frontends: []service.Frontend{{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80}},
		Cluster:   []service.Endpoint{e("10.244.1.1:80"), e("10.244.1.2:80")},
		Affinity:  60e9,
	}})
	c := route.Conn{Interface: "eth0", From: netip.MustParseAddr("192.0.2.1"), To: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: service.TCP}
	for name, tc := range map[string]struct {
		lacks   []string
		err     error
		loss    string
		targets int
	}{
		"all":                  {targets: 2},
		"no match recent":      {lacks: []string{"-m recent"}, loss: "session affinity, for which", targets: 2},
		"no match statistic":   {lacks: []string{"-m recent", "-m statistic"}, loss: "all endpoints but one", targets: 1},
		"no target MASQUERADE": {lacks: []string{"MASQUERADE"}, err: errInjected},
		"lock held":            {lacks: []string{"*nat"}, err: iptables.ErrBusy},
	} {
		t.Run(name, func(t *testing.T) {
			s := newRelayNode(service.IPv4, xtables.New(nil))
			defer s.Close()
			if _, err := s.HandOver(t.Context()); err == nil {
				t.Error("there was something to hand over before the first round")
			}
			p, err := s.Plan(t.Context(), want)
			if err == nil {
				err = p.Apply(t.Context()).Err
			}
			if err != nil {
				t.Fatal(err)
			}
			before, tries := s.tables.Text(), 0
			s.tables.Refuse = func(text string) error {
				tries++
				if slices.ContainsFunc(tc.lacks, func(m string) bool { return strings.Contains(text, m) }) {
					return errors.Join(errInjected, tc.err)
				}
				return nil
			}
			loss, err := s.HandOver(t.Context())
			if !errors.Is(err, tc.err) || !strings.Contains(loss, tc.loss) || (loss == "") != (tc.loss == "") {
				t.Fatalf("HandOver = %q, %v; want %q, %v", loss, err, tc.loss, tc.err)
			}
			if err != nil {
				if s.tables.Text() != before || errors.Is(err, iptables.ErrBusy) && tries != 1 {
					t.Errorf("after %d tries the rules are\n%s\nand were\n%s", tries, s.tables.Text(), before)
				}
				return
			}
			if got := s.tables.Trace(c, generate.IsNodeLocal); len(got.Targets) != tc.targets {
				t.Errorf("led to %v, want %d", got.Targets, tc.targets)
			}
		})
	}
}
