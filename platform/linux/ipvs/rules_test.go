// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipset"
	"kubeproxy/test/generate"
	"kubeproxy/test/kit"
)

// comment returns the comment of the only element of a set.
func (n *rulesNode) comment(t *testing.T, set string) string {
	t.Helper()
	h := n.sets.ByName[setName(service.IPv4, set)]
	kit.Need(t, len(h.Members) == 1, "%s has the elements %v, want one", set, h.Members)
	for _, comment := range h.Members {
		return comment
	}
	return ""
}

// TestCommentFollowsAddress checks that the comments of elements name a Service that
// needs them: after an address has passed to another Service, after one of two Services
// that share it has left, and after a restart. The element stays meanwhile.
func TestCommentFollowsAddress(t *testing.T) {
	first, second, sharing := shopWeb(1), shopWeb(2), shopWeb(3)
	second.Frontends = slices.Clone(first.Frontends)
	sharing.Frontends = slices.Clone(first.Frontends)
	sharing.Frontends[0].Port, sharing.Frontends[1].Port = 8080, 8080
	moves := snapshot(second)
	for name, x := range map[string]struct {
		from, next *service.Snapshot
		set, want  string
	}{
		"passes on":           {snapshot(first), moves, externalSet, "shop/web-2"},
		"passes on, all":      {snapshot(first), moves, clusterIPSet, "shop/web-2"},
		"shared, first left":  {snapshot(first, sharing), snapshot(sharing), clusterIPSet, "shop/web-3"},
		"shared, second left": {snapshot(first, sharing), snapshot(first), clusterIPSet, "shop/web-1"},
	} {
		for _, restart := range []bool{false, true} {
			n := newRulesNode(t, service.IPv4)
			b := n.start(service.IPv4)
			applyRules(t, b, x.from)
			if restart {
				b = n.start(service.IPv4)
			}
			n.sets.Refuse = func(step, set string) error {
				kit.Check(t, step != "del" || set != setName(service.IPv4, x.set),
					"%s, restart %t: an element of %s was deleted", name, restart, set)
				return nil
			}
			drift := applyRules(t, b, x.next).Outcome().Drift
			kit.Check(t, len(drift) == 0, "%s, restart %t: drift that nobody made: %q", name, restart, drift)
			kit.Equal(t, n.comment(t, x.set), x.want, "%s, restart %t: the comment", name, restart)
			if p := generate.Plan(t, b, x.next); !p.Empty() {
				t.Errorf("%s, restart %t: still to do:\n%s", name, restart, p.Changes())
			}
		}
	}
}

// TestForeignCommentIsDrift checks that a comment that another process changed is
// reported and set again.
func TestForeignCommentIsDrift(t *testing.T) {
	n := newRulesNode(t, service.IPv4)
	b, s := n.start(service.IPv4), snapshot(shopWeb(1))
	applyRules(t, b, s)
	external := n.sets.ByName[setName(service.IPv4, externalSet)].Members
	for e := range external {
		external[e] = "mine"
	}
	n.clock = n.clock.Add(resync)
	drift := applyRules(t, b, s).Outcome().Drift
	kit.Check(t, len(drift) == 1 && drift[0] == "altered: element 203.0.0.1,tcp:80 of ipset KUBE-VS-EXTERNAL", "the drift is %q", drift)
	kit.Equal(t, n.comment(t, externalSet), "shop/web-1", "the comment")
}

// TestChangeCostsWhatItChanges counts the requests for a change of one Service among
// 1,000.
func TestChangeCostsWhatItChanges(t *testing.T) {
	n := newRulesNode(t, service.IPv4)
	var ports []*service.Port
	for i := range 1000 {
		ports = append(ports, shopWeb(i))
	}
	b, s := n.start(service.IPv4), snapshot(ports...)
	applyRules(t, b, s)
	more := *ports[7]
	more.Cluster = append(more.Cluster[:1:1], service.Endpoint{Addr: ports[7].Cluster[0].Addr, Remote: true})
	local := *ports[7]
	local.External, local.Local = service.PolicyLocal, ports[7].Cluster
	for _, x := range []struct {
		name     string
		change   service.Change
		steps    map[string]int
		restores int
	}{
		{"an endpoint comes", service.Change{Old: ports[7], New: &more}, nil, 0},
		{"its endpoints go", service.Change{Old: &more, New: withoutEndpoints(7)}, map[string]int{"add": 2, "del": 1}, 0},
		{"they come back", service.Change{Old: withoutEndpoints(7), New: ports[7]}, map[string]int{"add": 1, "del": 2}, 0},
		{"it becomes local", service.Change{Old: ports[7], New: &local}, map[string]int{"add": 2, "del": 1}, 1},
		{"it goes", service.Change{Old: &local}, map[string]int{"del": 5}, 1},
		{"it comes", service.Change{New: ports[7]}, map[string]int{"add": 4}, 0},
	} {
		s = s.With(s.Generation+1, s.Node, []service.Change{x.change})
		steps := maps.Clone(x.steps)
		restores := n.tables.Restores
		clear(n.sets.Steps)
		applyRules(t, b, s)
		kit.Check(t, n.sets.Steps["heads"] <= 0 || x.steps != nil, "%s: all sets of the node were asked for", x.name)
		delete(n.sets.Steps, "heads") // its cost depends on the number of sets
		if steps == nil {
			steps = map[string]int{}
		}
		kit.Same(t, fmt.Sprintf("%s: steps (-want +got)", x.name), steps, n.sets.Steps)
		got := n.tables.Restores - restores
		kit.Check(t, got == x.restores, "%s: tables were written %d times, want %d", x.name, got, x.restores)
	}
}

// TestSetsAreReadOnceInASyncPeriod checks that all sets are read once per sync period.
func TestSetsAreReadOnceInASyncPeriod(t *testing.T) {
	n := newRulesNode(t, service.IPv4)
	b, want := n.start(service.IPv4), snapshot(shopWeb(1))
	applyRules(t, b, want)
	for range 5 {
		clear(n.sets.Steps)
		if generate.Plan(t, b, want); n.sets.Steps["list"] > 0 {
			t.Errorf("%d sets were read", n.sets.Steps["list"])
		}
	}
	n.clock = n.clock.Add(resync)
	if generate.Plan(t, b, want); n.sets.Steps["list"] != len(setNames) {
		t.Errorf("%d sets were read, want %d", n.sets.Steps["list"], len(setNames))
	}
}

// tampering is a foreign change with the drift that is reported.
type rulesTampering struct {
	tamper func(*rulesNode)
	later  bool     // found only by a full read
	want   []string // the first lines of drift
}

func rulesTamperings() map[string]rulesTampering {
	const external = "KUBE-VS-EXTERNAL"
	front := ipset.Entry{Addr: netip.MustParseAddr("203.0.0.1"), Protocol: service.TCP, Port: 80}
	take := func(n *rulesNode) { delete(n.sets.ByName[external].Members, front) }
	put := func(n *rulesNode) { n.sets.ByName[external].Members[extraElement(n.sets.ByName[external].Set)] = "" }
	missing := "missing: element 203.0.0.1,tcp:80 of ipset " + external
	foreign := "foreign: element 198.51.100.1,tcp:9999 of ipset " + external
	return map[string]rulesTampering{
		"an element is gone":            {take, false, []string{missing}},
		"one is too much":               {put, false, []string{foreign}},
		"one takes another one's place": {func(n *rulesNode) { take(n); put(n) }, true, []string{missing, foreign}},
		"a set is swapped for another": {func(n *rulesNode) {
			n.sets.ByName[external].Altered = true
		}, false, []string{"missing: ipset " + external}},
		"a set is gone, with the rules": {func(n *rulesNode) {
			n.flush()
			delete(n.sets.ByName, "KUBE-VS-CLUSTER-IPS")
		}, false, []string{"missing: ipset KUBE-VS-CLUSTER-IPS", "missing: chain KUBE-VS-FRONT of table nat"}},
		"a rule is gone": {func(n *rulesNode) {
			n.tables.Tables["filter"]["INPUT"] = nil
			n.tables.Dirty = true
		}, false, []string{`missing: rule "-j KUBE-VS-INPUT" of chain INPUT of table filter`}},
	}
}

// TestDriftIsReportedAndRepaired makes foreign changes. The next sync, or the one that
// reads everything, finds, reports and repairs them.
func TestDriftIsReportedAndRepaired(t *testing.T) {
	for name, x := range rulesTamperings() {
		t.Run(name, func(t *testing.T) {
			n := newRulesNode(t, service.IPv4)
			b, want := n.start(service.IPv4), snapshot(shopWeb(1), shopWeb(2))
			applyRules(t, b, want)
			before := n.sets.Text() + n.tables.Text()
			x.tamper(n)
			if x.later {
				if p := generate.Plan(t, b, want); !p.Empty() {
					t.Errorf("all was read before the sync period was over:\n%s", p.Changes())
				}
				n.clock = n.clock.Add(resync)
			}
			n.clock = n.clock.Add(sizesInterval)
			p := applyRules(t, b, want)
			kit.Same(t, "drift (-want +got)", x.want, p.Outcome().Drift[:min(len(x.want), len(p.Outcome().Drift))])
			if after := n.sets.Text() + n.tables.Text(); after != before {
				t.Errorf("(-before +after):\n%s", cmp.Diff(before, after))
			}
			n.clock = n.clock.Add(resync)
			if p := generate.Plan(t, b, want); !p.Empty() || len(p.Outcome().Drift) > 0 {
				t.Errorf("after it was healed: %q\n%s", p.Outcome().Drift, p.Changes())
			}
		})
	}
}

// TestMuchDrift checks that a long drift report is truncated.
func TestMuchDrift(t *testing.T) {
	n := newRulesNode(t, service.IPv4)
	var ports []*service.Port
	for i := range 30 {
		ports = append(ports, shopWeb(i))
	}
	b, want := n.start(service.IPv4), snapshot(ports...)
	applyRules(t, b, want)
	clear(n.sets.ByName["KUBE-VS-EXTERNAL"].Members)
	n.clock = n.clock.Add(sizesInterval)
	drift := generate.Plan(t, b, want).Outcome().Drift
	kit.Check(t, len(drift) == reconcile.MaxDrift+1 && drift[reconcile.MaxDrift] == "and 10 more",
		"the drift is %q", drift)
}

// TestChangesAreNoDrift checks that neither leftovers of an earlier process nor changes
// since the last sync are reported as drift.
func TestChangesAreNoDrift(t *testing.T) {
	n := newRulesNode(t, service.IPv4)
	applyRules(t, n.start(service.IPv4), snapshot(shopWeb(1), shopWeb(2)))
	b := n.start(service.IPv4)
	drift := applyRules(t, b, snapshot(shopWeb(1))).Outcome().Drift
	kit.Check(t, len(drift) == 0, "after a restart the drift is %q", drift)
	n.clock = n.clock.Add(resync)
	if drift := applyRules(t, b, snapshot(shopWeb(3))).Outcome().Drift; len(drift) > 0 {
		t.Errorf("after a change the drift is %q", drift)
	}
}

// TestPartialSnapshotTakesNoRulesAway checks that, while something could not be read,
// leftovers of an earlier process stay, what this process made is removed with its
// Service, and nothing is reported as drift.
func TestPartialSnapshotTakesNoRulesAway(t *testing.T) {
	n := newRulesNode(t, service.IPv4)
	applyRules(t, n.start(service.IPv4), snapshot(shopWeb(1), shopWeb(2)))
	b, node := n.start(service.IPv4), &service.Node{NodePorts: service.AnyAddress(), Addrs: []netip.Addr{generate.NodeAddr[0]}}
	for i, x := range []struct {
		ports   []*service.Port
		partial bool
		want    string
	}{
		{[]*service.Port{shopWeb(2), shopWeb(3)}, true, "203.0.0.1,tcp:80 203.0.0.2,tcp:80 203.0.0.3,tcp:80"},
		{[]*service.Port{shopWeb(2)}, true, "203.0.0.1,tcp:80 203.0.0.2,tcp:80"},
		{[]*service.Port{shopWeb(2)}, true, "203.0.0.1,tcp:80 203.0.0.2,tcp:80"},
		{[]*service.Port{shopWeb(2), shopWeb(4)}, false, "203.0.0.2,tcp:80 203.0.0.4,tcp:80"},
	} {
		s := service.New(uint64(i), node, x.ports)
		s.Incomplete = x.partial
		p := applyRules(t, b, s)
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
	n := newRulesNode(t, service.IPv4)
	others := []ipset.Set{
		{Name: "KUBE-CLUSTER-IP", Type: ipset.HashIPPort}, {Name: "KUBE-VS-MINE", Type: ipset.HashIP},
		{Name: "KUBE-VS6-DROPPED", Type: ipset.HashIPPort, Family: service.IPv6},
	}
	for _, s := range others {
		kit.Must(t, n.sets.Create(s))
	}
	n.tables.Tables["filter"]["MINE"] = []string{"-j ACCEPT"}
	before := n.sets.Text()
	b, want := n.start(service.IPv4), snapshot(shopWeb(1), withoutEndpoints(2))
	for range 2 { // it restarts after the first one
		drift := applyRules(t, b, want).Outcome().Drift
		kit.Check(t, len(drift) == 0, "the drift is %q", drift)
		kit.Must(t, b.Cleanup(t.Context()))
		if after := n.sets.Text(); after != strings.NewReplacer("KUBE-VS-VIRTUAL-SERVERS:\n", "", "KUBE-VS-NODE-IPS:\n", "").Replace(before) {
			t.Errorf("the sets are\n%s\nand were\n%s", after, before)
		}
		text := n.tables.Text()
		kit.Check(t, !strings.Contains(text, "KUBE-") && strings.Contains(text, "-A MINE -j ACCEPT"), "the tables are\n%s", text)
		kit.Must(t, errors.Join(n.sets.Create(setOf(service.IPv4, virtualServerSet)), n.sets.Create(setOf(service.IPv4, nodeIPSet))))
	}
}

// TestForeignSet checks that a foreign set with the name of one of ours is reported, and
// stays.
func TestForeignSet(t *testing.T) {
	n := newRulesNode(t, service.IPv4)
	theirs := ipset.Set{Name: "KUBE-VS-DROPPED", Type: ipset.HashIP}
	kit.Must(t, n.sets.Create(theirs))
	b := n.start(service.IPv4)
	_, err := b.Plan(t.Context(), snapshot(shopWeb(1)))
	kit.Check(t, err != nil && strings.Contains(err.Error(), theirs.Name), "Plan = %v, want what is wrong with %s", err, theirs.Name)
	kit.Must(t, b.Cleanup(t.Context()))
	if h := n.sets.ByName[theirs.Name]; h == nil || h.Set != theirs || len(n.sets.ByName) != 1 {
		t.Errorf("there is %s", n.sets.Text())
	}
}

// TestCleanupReportsSetInUse checks that a set that a foreign rule refers to stays, and
// is reported.
func TestCleanupReportsSetInUse(t *testing.T) {
	n := newRulesNode(t, service.IPv4)
	b := n.start(service.IPv4)
	applyRules(t, b, snapshot(shopWeb(1)))
	n.tables.Tables["filter"]["MINE"] = []string{"-m set --match-set KUBE-VS-DROPPED dst,dst -j DROP"}
	n.tables.Dirty = true
	err := b.Cleanup(t.Context())
	if err == nil || !strings.Contains(err.Error(), "KUBE-VS-DROPPED") || len(n.sets.ByName) != 1 {
		t.Errorf("Cleanup = %v, and there is %s", err, slices.Collect(strings.SplitSeq(n.sets.Text(), "\n")))
	}
}

// steps changes from into next and returns the steps that are executed. The step with
// the number fail fails.
func steps(t *testing.T, from, next *service.Port, fail int) []string {
	t.Helper()
	n := newRulesNode(t, service.IPv4)
	b, s := n.start(service.IPv4), snapshot(from)
	applyRules(t, b, s)
	var all []string
	tries := 0
	step := func(text string) error {
		if tries++; tries == fail+1 {
			return errInjected
		}
		all = append(all, text)
		return nil
	}
	p := generate.Plan(t, b, s.With(2, s.Node, []service.Change{{Old: from, New: next}}))
	n.sets.Refuse = func(what, set string) error {
		if what == "heads" {
			return nil
		}
		return step(what + " " + strings.TrimPrefix(set, "KUBE-VS-"))
	}
	n.tables.Refuse = func(text string) error { return step("chains of " + strings.Fields(text)[0]) }
	err := p.Apply(t.Context()).Err
	kit.Check(t, (err != nil) == (fail >= 0) && (err == nil || errors.Is(err, errInjected)), "step %d fails: Apply = %v", fail, err)
	return all
}

// restricted returns p with these sources, or without sources if there are none.
func restricted(p *service.Port, sources ...string) *service.Port {
	q := *p
	q.Frontends = slices.Clone(p.Frontends)
	q.Frontends[1].Sources = []netip.Prefix{}
	for _, s := range sources {
		q.Frontends[1].Sources = append(q.Frontends[1].Sources, netip.MustParsePrefix(s))
	}
	return &q
}

// TestOrderOfSteps checks that each change executes its steps in an order in which the
// result is right after each, and that a failed step is the last one.
func TestOrderOfSteps(t *testing.T) {
	shared, local := shopWeb(1), *shopWeb(1)
	local.External, local.Local = service.PolicyLocal, local.Cluster
	for name, x := range map[string]struct {
		from, next *service.Port
		want       string
	}{
		"policy Local begins when all is there for it": {
			shared, &local, "chains of *nat, add INTERNAL-REDIRECT, add LOCAL, del EXTERNAL",
		},
		"and ends before anything goes": {
			&local, shared, "add EXTERNAL, del LOCAL, chains of *nat, del INTERNAL-REDIRECT",
		},
		"who may come is known before others may not": {
			shared, restricted(shared, "192.0.2.0/24"), "add SOURCES, add RESTRICTED",
		},
		"who may no longer come is out before others are in": {
			restricted(withoutEndpoints(1), "192.0.2.0/24", "198.51.100.0/24"), restricted(shared, "192.0.2.0/24"),
			"add EXTERNAL, del SOURCES, del REFUSED, del REFUSED",
		},
		"and all are in before it is forgotten who might": {
			restricted(shared, "192.0.2.0/24"), shared, "del RESTRICTED, del SOURCES",
		},
	} {
		t.Run(name, func(t *testing.T) {
			all := steps(t, x.from, x.next, -1)
			kit.Same(t, "(-want +got)", x.want, strings.Join(all, ", "))
			for fail := range all {
				if strings.HasPrefix(all[fail], "chains") { // they are tried again
					continue
				}
				done := steps(t, x.from, x.next, fail)
				kit.Check(t, slices.Equal(done, all[:fail]), "step %d of %q fails, and these are done: %q", fail, all, done)
			}
		})
	}
}

// TestRefusedChainsKeepTheirSets checks that the set elements of a Service stay if its
// chains are refused, and that those of others change.
func TestRefusedChainsKeepTheirSets(t *testing.T) {
	n := newRulesNode(t, service.IPv4)
	b := n.start(service.IPv4)
	var old, next []*service.Port
	for i := range 2 {
		p, q := shopWeb(i), shopWeb(i)
		q.External, q.Local = service.PolicyLocal, q.Cluster
		old, next = append(old, p), append(next, q)
	}
	applyRules(t, b, snapshot(old...))
	n.tables.Refuse = func(text string) error {
		if strings.Contains(text, "web-1") {
			return errInjected
		}
		return nil
	}
	for range 2 { // the second one reads the sets
		err := generate.Plan(t, b, snapshot(next...)).Apply(t.Context()).Err
		failed := reconcile.PortErrors(err)
		kit.Check(t, len(failed) == 1 && failed[0].Name.Name == "web-1", "Apply = %v, want a failure of web-1", err)
		for set, want := range map[string][]string{
			externalSet: {"203.0.0.1,tcp:80"}, localSet: {"203.0.0.0,tcp:80"}, internalRedirectSet: {"203.0.0.0,tcp:80"},
		} {
			kit.Same(t, fmt.Sprintf("%s (-want +got)", set), want, n.held(set))
		}
	}
	n.tables.Refuse = nil
	applyRules(t, b, snapshot(next...))
	got := n.held(localSet)
	kit.Check(t, len(got) == 2 && len(n.held(externalSet)) == 0, "then policy Local is for %q", got)
}

// TestNodePortGivesWay checks that a node address that is an external address of a
// Service redirects to the ClusterIP of that Service, not to that of a Service with a
// NodePort with the same port number.
func TestNodePortGivesWay(t *testing.T) {
	first, second := shopWeb(1), shopWeb(2)
	for _, p := range []*service.Port{first, second} {
		p.External, p.Local = service.PolicyLocal, p.Cluster
	}
	first.Frontends[1] = service.Frontend{Kind: service.NodePort, Port: 30080}
	second.Frontends[1] = service.Frontend{Kind: service.ExternalIP, Addr: generate.NodeAddr[0], Port: 30080}
	n := newRulesNode(t, service.IPv4)
	b, s := n.start(service.IPv4), snapshot(first, second)
	for _, x := range []struct {
		goes *service.Port
		want string
	}{{nil, "10.96.0.2:80"}, {second, "10.96.0.1:80"}} {
		if x.goes != nil {
			s = s.With(2, s.Node, []service.Change{{Old: x.goes}})
		}
		applyRules(t, b, s)
		rules := n.tables.Tables["nat"]["KUBE-VS-TARGETS"]
		kit.Check(t, len(rules) == 1 && strings.HasSuffix(rules[0], " "+x.want),
			"it leads to %q, want %s", rules, x.want)
	}
}

// TestSharedElementStays checks that an element of two ports of a Service stays while
// one of them needs it.
func TestSharedElementStays(t *testing.T) {
	n := newRulesNode(t, service.IPv4)
	one, two := shopWeb(1), shopWeb(1)
	two.Name.Port = "admin"
	two.Frontends = []service.Frontend{{Addr: one.Frontends[0].Addr, Port: 8080}}
	b, s := n.start(service.IPv4), snapshot(one, two)
	applyRules(t, b, s)
	for _, x := range []struct {
		goes *service.Port
		want string
	}{{two, "10.96.0.1 203.0.0.1"}, {one, ""}} {
		s = s.With(s.Generation+1, s.Node, []service.Change{{Old: x.goes}})
		applyRules(t, b, s)
		got := strings.Join(n.held(virtualIPSet), " ")
		kit.Check(t, got == x.want, "the addresses are %q, want %q", got, x.want)
	}
}

// TestSetGoesAsItIsRead destroys a set between two requests about it.
func TestSetGoesAsItIsRead(t *testing.T) {
	n := newRulesNode(t, service.IPv4)
	want := snapshot(shopWeb(1))
	applyRules(t, n.start(service.IPv4), want)
	before := n.sets.Text()
	n.sets.Refuse = func(step, set string) error {
		if step == "list" && set == "KUBE-VS-EXTERNAL" {
			n.flush()
			delete(n.sets.ByName, set)
		}
		return nil
	}
	applyRules(t, n.start(service.IPv4), want)
	kit.Check(t, n.sets.Text() == before, "there is\n%s\nwant\n%s", n.sets.Text(), before)
}

// variant contains chains of ours, and refuses to remove them several times.
type variant struct{ chains, refusals, asked int }

func (v *variant) String() string { return "the other variant" }

func (v *variant) Find(context.Context) (string, error) {
	v.asked++
	if v.chains == 0 {
		return "", nil
	}
	return "chains", nil
}

func (v *variant) Remove(context.Context) error {
	if v.refusals > 0 {
		v.refusals--
		return errors.New("it is busy")
	}
	v.chains = 0
	return nil
}

// TestOtherVariant starts with chains in the other variant of iptables. They are removed
// when those of this variant are in force, and not searched for after that.
func TestOtherVariant(t *testing.T) {
	n := newRulesNode(t, service.IPv4)
	want := snapshot(shopWeb(1))
	applyRules(t, n.start(service.IPv4), want) // everything else is present
	b, v := n.start(service.IPv4), &variant{chains: 3, refusals: 1}
	b.otherVariant = v
	p := generate.Plan(t, b, want)
	if p.Empty() || !strings.Contains(p.Changes().String(), "- chains, of the other variant") {
		t.Fatalf("the plan is empty: %t\n%s", p.Empty(), p.Changes())
	}
	err := p.Apply(t.Context()).Err
	kit.Check(t, err != nil && v.chains != 0, "Apply says %v though chains were not removed", err)
	applyRules(t, b, want)
	if asked := v.asked; v.chains != 0 || !generate.Plan(t, b, want).Empty() || v.asked != asked {
		t.Errorf("%d chains are left, and they were looked for %d times, then %d", v.chains, asked, v.asked)
	}
}
