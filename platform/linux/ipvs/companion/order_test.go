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
	"kubeproxy/test/generate"
)

// steps changes from into next and returns the steps that are executed. The step with
// the number fail fails.
func steps(t *testing.T, from, next *service.Port, fail int) []string {
	t.Helper()
	n := newNode(t, service.IPv4)
	b, s := n.start(service.IPv4), snapshot(from)
	apply(t, b, s)
	var all []string
	tries := 0
	step := func(text string) error {
		if tries++; tries == fail+1 {
			return errInjected
		}
		all = append(all, text)
		return nil
	}
	p := planOf(t, b, s.With(2, s.Node, []service.Change{{Old: from, New: next}}))
	n.sets.Refuse = func(what, set string) error {
		if what == "heads" {
			return nil
		}
		return step(what + " " + strings.TrimPrefix(set, "KUBE-VS-"))
	}
	n.tables.Refuse = func(text string) error { return step("chains of " + strings.Fields(text)[0]) }
	if err := p.Apply(t.Context()).Err; (err != nil) != (fail >= 0) || err != nil && !errors.Is(err, errInjected) {
		t.Errorf("step %d fails: Apply = %v", fail, err)
	}
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
	shared, local := web(1), *web(1)
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
			if diff := cmp.Diff(x.want, strings.Join(all, ", ")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			for fail := range all {
				if strings.HasPrefix(all[fail], "chains") { // they are tried again
					continue
				}
				if done := steps(t, x.from, x.next, fail); !slices.Equal(done, all[:fail]) {
					t.Errorf("step %d of %q fails, and these are done: %q", fail, all, done)
				}
			}
		})
	}
}

// TestRefusedChainsKeepTheirSets checks that the set elements of a Service stay if its
// chains are refused, and that those of others change.
func TestRefusedChainsKeepTheirSets(t *testing.T) {
	n := newNode(t, service.IPv4)
	b := n.start(service.IPv4)
	var old, next []*service.Port
	for i := range 2 {
		p, q := web(i), web(i)
		q.External, q.Local = service.PolicyLocal, q.Cluster
		old, next = append(old, p), append(next, q)
	}
	apply(t, b, snapshot(old...))
	n.tables.Refuse = func(text string) error {
		if strings.Contains(text, "web-1") {
			return errInjected
		}
		return nil
	}
	for range 2 { // the second one reads the sets
		err := planOf(t, b, snapshot(next...)).Apply(t.Context()).Err
		if failed := reconcile.PortErrors(err); len(failed) != 1 || failed[0].Name.Name != "web-1" {
			t.Errorf("Apply = %v, want a failure of web-1", err)
		}
		for set, want := range map[string][]string{
			externalSet: {"203.0.0.1,tcp:80"}, localSet: {"203.0.0.0,tcp:80"}, internalRedirectSet: {"203.0.0.0,tcp:80"},
		} {
			if diff := cmp.Diff(want, n.held(set)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", set, diff)
			}
		}
	}
	n.tables.Refuse = nil
	apply(t, b, snapshot(next...))
	if got := n.held(localSet); len(got) != 2 || len(n.held(externalSet)) > 0 {
		t.Errorf("then policy Local is for %q", got)
	}
}

// TestNodePortGivesWay checks that a node address that is an external address of a
// Service redirects to the ClusterIP of that Service, not to that of a Service with a
// NodePort with the same port number.
func TestNodePortGivesWay(t *testing.T) {
	first, second := web(1), web(2)
	for _, p := range []*service.Port{first, second} {
		p.External, p.Local = service.PolicyLocal, p.Cluster
	}
	first.Frontends[1] = service.Frontend{Kind: service.NodePort, Port: 30080}
	second.Frontends[1] = service.Frontend{Kind: service.ExternalIP, Addr: generate.NodeAddr[0], Port: 30080}
	n := newNode(t, service.IPv4)
	b, s := n.start(service.IPv4), snapshot(first, second)
	for _, x := range []struct {
		goes *service.Port
		want string
	}{{nil, "10.96.0.2:80"}, {second, "10.96.0.1:80"}} {
		if x.goes != nil {
			s = s.With(2, s.Node, []service.Change{{Old: x.goes}})
		}
		apply(t, b, s)
		rules := n.tables.Tables["nat"]["KUBE-VS-TARGETS"]
		if len(rules) != 1 || !strings.HasSuffix(rules[0], " "+x.want) {
			t.Errorf("it leads to %q, want %s", rules, x.want)
		}
	}
}
