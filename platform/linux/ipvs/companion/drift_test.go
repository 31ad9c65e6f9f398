// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package companion

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipset"
	"kubeproxy/test/generate"
)

// tampering is a foreign change with the drift that is reported.
type tampering struct {
	tamper func(*node)
	later  bool     // found only by a full read
	want   []string // the first lines of drift
}

func tamperings() map[string]tampering {
	const external = "KUBE-VS-EXTERNAL"
	front := ipset.Entry{Addr: netip.MustParseAddr("203.0.0.1"), Protocol: service.TCP, Port: 80}
	take := func(n *node) { delete(n.sets.ByName[external].Members, front) }
	put := func(n *node) { n.sets.ByName[external].Members[extraElement(n.sets.ByName[external].Set)] = "" }
	missing := "missing: element 203.0.0.1,tcp:80 of ipset " + external
	foreign := "foreign: element 198.51.100.1,tcp:9999 of ipset " + external
	return map[string]tampering{
		"an element is gone":            {take, false, []string{missing}},
		"one is too much":               {put, false, []string{foreign}},
		"one takes another one's place": {func(n *node) { take(n); put(n) }, true, []string{missing, foreign}},
		"a set is swapped for another": {func(n *node) {
			n.sets.ByName[external].Altered = true
		}, false, []string{"missing: ipset " + external}},
		"a set is gone, with the rules": {func(n *node) {
			n.flush()
			delete(n.sets.ByName, "KUBE-VS-CLUSTER-IPS")
		}, false, []string{"missing: ipset KUBE-VS-CLUSTER-IPS", "missing: chain KUBE-VS-FRONT of table nat"}},
		"a rule is gone": {func(n *node) {
			n.tables.Tables["filter"]["INPUT"] = nil
			n.tables.Dirty = true
		}, false, []string{`missing: rule "-j KUBE-VS-INPUT" of chain INPUT of table filter`}},
	}
}

// TestDriftIsReportedAndRepaired makes foreign changes. The next sync, or the one that
// reads everything, finds, reports and repairs them.
func TestDriftIsReportedAndRepaired(t *testing.T) {
	for name, x := range tamperings() {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, service.IPv4)
			b, want := n.start(service.IPv4), snapshot(web(1), web(2))
			apply(t, b, want)
			before := n.sets.Text() + n.tables.Text()
			x.tamper(n)
			if x.later {
				if p := planOf(t, b, want); !p.Empty() {
					t.Errorf("all was read before the sync period was over:\n%s", p.Changes())
				}
				n.clock = n.clock.Add(resync)
			}
			n.clock = n.clock.Add(sizesInterval)
			p := apply(t, b, want)
			if diff := cmp.Diff(x.want, p.Outcome().Drift[:min(len(x.want), len(p.Outcome().Drift))]); diff != "" {
				t.Errorf("drift (-want +got):\n%s", diff)
			}
			if after := n.sets.Text() + n.tables.Text(); after != before {
				t.Errorf("(-before +after):\n%s", cmp.Diff(before, after))
			}
			n.clock = n.clock.Add(resync)
			if p := planOf(t, b, want); !p.Empty() || len(p.Outcome().Drift) > 0 {
				t.Errorf("after it was healed: %q\n%s", p.Outcome().Drift, p.Changes())
			}
		})
	}
}

// TestMuchDrift checks that a long drift report is truncated.
func TestMuchDrift(t *testing.T) {
	n := newNode(t, service.IPv4)
	var ports []*service.Port
	for i := range 30 {
		ports = append(ports, web(i))
	}
	b, want := n.start(service.IPv4), snapshot(ports...)
	apply(t, b, want)
	clear(n.sets.ByName["KUBE-VS-EXTERNAL"].Members)
	n.clock = n.clock.Add(sizesInterval)
	drift := planOf(t, b, want).Outcome().Drift
	if len(drift) != reconcile.MaxDrift+1 || drift[reconcile.MaxDrift] != "and 10 more" {
		t.Errorf("the drift is %q", drift)
	}
}

// TestChangesAreNoDrift checks that neither leftovers of an earlier process nor changes
// since the last sync are reported as drift.
func TestChangesAreNoDrift(t *testing.T) {
	n := newNode(t, service.IPv4)
	apply(t, n.start(service.IPv4), snapshot(web(1), web(2)))
	b := n.start(service.IPv4)
	if drift := apply(t, b, snapshot(web(1))).Outcome().Drift; len(drift) > 0 {
		t.Errorf("after a restart the drift is %q", drift)
	}
	n.clock = n.clock.Add(resync)
	if drift := apply(t, b, snapshot(web(3))).Outcome().Drift; len(drift) > 0 {
		t.Errorf("after a change the drift is %q", drift)
	}
}

// TestPartialSnapshotTakesNothingAway checks that, while something could not be read,
// leftovers of an earlier process stay, what this process made is removed with its
// Service, and nothing is reported as drift.
func TestPartialSnapshotTakesNothingAway(t *testing.T) {
	n := newNode(t, service.IPv4)
	apply(t, n.start(service.IPv4), snapshot(web(1), web(2)))
	b, node := n.start(service.IPv4), &service.Node{NodePorts: service.AnyAddress(), Addrs: []netip.Addr{generate.NodeAddr[0]}}
	for i, x := range []struct {
		ports   []*service.Port
		partial bool
		want    string
	}{
		{[]*service.Port{web(2), web(3)}, true, "203.0.0.1,tcp:80 203.0.0.2,tcp:80 203.0.0.3,tcp:80"},
		{[]*service.Port{web(2)}, true, "203.0.0.1,tcp:80 203.0.0.2,tcp:80"},
		{[]*service.Port{web(2)}, true, "203.0.0.1,tcp:80 203.0.0.2,tcp:80"},
		{[]*service.Port{web(2), web(4)}, false, "203.0.0.2,tcp:80 203.0.0.4,tcp:80"},
	} {
		s := service.New(uint64(i), node, x.ports)
		s.Incomplete = x.partial
		p := apply(t, b, s)
		if got := strings.Join(n.held(externalSet), " "); got != x.want || len(p.Outcome().Drift) > 0 {
			t.Errorf("the addresses are %s, want %s; the drift is %q", got, x.want, p.Outcome().Drift)
		}
		if x.partial && len(x.ports) == 2 {
			n.clock = n.clock.Add(resync) // the next sync reads everything, not as part of the last one
		}
	}
}

// TestCleanup removes what is ours, and nothing else.
func TestCleanup(t *testing.T) {
	n := newNode(t, service.IPv4)
	others := []ipset.Set{
		{Name: "KUBE-CLUSTER-IP", Type: ipset.HashIPPort}, {Name: "KUBE-VS-MINE", Type: ipset.HashIP},
		{Name: "KUBE-VS6-DROPPED", Type: ipset.HashIPPort, Family: service.IPv6},
	}
	for _, s := range others {
		if err := n.sets.Create(s); err != nil {
			t.Fatal(err)
		}
	}
	n.tables.Tables["filter"]["MINE"] = []string{"-j ACCEPT"}
	before := n.sets.Text()
	b, want := n.start(service.IPv4), snapshot(web(1), withoutEndpoints(2))
	for range 2 { // it restarts after the first one
		if drift := apply(t, b, want).Outcome().Drift; len(drift) > 0 {
			t.Errorf("the drift is %q", drift)
		}
		if err := b.Cleanup(t.Context()); err != nil {
			t.Fatal(err)
		}
		if after := n.sets.Text(); after != strings.NewReplacer("KUBE-VS-VIRTUAL-SERVERS:\n", "", "KUBE-VS-NODE-IPS:\n", "").Replace(before) {
			t.Errorf("the sets are\n%s\nand were\n%s", after, before)
		}
		if text := n.tables.Text(); strings.Contains(text, "KUBE-") || !strings.Contains(text, "-A MINE -j ACCEPT") {
			t.Errorf("the tables are\n%s", text)
		}
		if err := errors.Join(n.sets.Create(VirtualServerSet(service.IPv4)), n.sets.Create(NodeIPSet(service.IPv4))); err != nil {
			t.Fatal(err)
		}
	}
}

// TestForeignSet checks that a foreign set with the name of one of ours is reported, and
// stays.
func TestForeignSet(t *testing.T) {
	n := newNode(t, service.IPv4)
	theirs := ipset.Set{Name: "KUBE-VS-DROPPED", Type: ipset.HashIP}
	if err := n.sets.Create(theirs); err != nil {
		t.Fatal(err)
	}
	b := n.start(service.IPv4)
	if _, err := b.Plan(t.Context(), snapshot(web(1))); err == nil || !strings.Contains(err.Error(), theirs.Name) {
		t.Errorf("Plan = %v, want what is wrong with %s", err, theirs.Name)
	}
	if err := b.Cleanup(t.Context()); err != nil {
		t.Fatal(err)
	}
	if h := n.sets.ByName[theirs.Name]; h == nil || h.Set != theirs || len(n.sets.ByName) != 1 {
		t.Errorf("there is %s", n.sets.Text())
	}
}

// TestCleanupReportsSetInUse checks that a set that a foreign rule refers to stays, and
// is reported.
func TestCleanupReportsSetInUse(t *testing.T) {
	n := newNode(t, service.IPv4)
	b := n.start(service.IPv4)
	apply(t, b, snapshot(web(1)))
	n.tables.Tables["filter"]["MINE"] = []string{"-m set --match-set KUBE-VS-DROPPED dst,dst -j DROP"}
	n.tables.Dirty = true
	err := b.Cleanup(t.Context())
	if err == nil || !strings.Contains(err.Error(), "KUBE-VS-DROPPED") || len(n.sets.ByName) != 1 {
		t.Errorf("Cleanup = %v, and there is %s", err, slices.Collect(strings.SplitSeq(n.sets.Text(), "\n")))
	}
}
