// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/test/backendtest"
	"kubeproxy/test/generate"
	sim "kubeproxy/test/hns"
)

// TestPersonalitiesConverge draws a personality of HNS for each case, of those on which each call of a clean round
// succeeds. Where HNS gives back no names, an endpoint whose answer was lost is nobody's.
func TestPersonalitiesConverge(t *testing.T) {
	all := slices.DeleteFunc(sim.Personalities(), func(p sim.Personality) bool {
		return p.FailEvery+p.MeddlesEvery+p.PlugsAfter+p.GoesAfter > 0 || p.SlowDeletes > 0 || p.OneAddress || slices.Contains(p.LeftOut, "Name")
	})
	backendtest.Converge(t, backendtest.Harness{Cluster: cluster, CleanRounds: 2 + maxRepairs, New: func(c generate.Cluster) backendtest.Node {
		p := all[generator{c.T, c.Family}.drawInt("personality", len(all))]
		if v := (Version{p.Version.Major, p.Version.Minor}); c.Family == service.IPv6 && !v.Features().DualStack {
			p.Version = sim.Version{Major: 13, Minor: 3}
		}
		n := &simulatedSuiteNode{suiteNode: drawSuiteNode(t, c, false), personality: p}
		n.hns.version = Version(p.Version)
		if p.Version == (sim.Version{}) {
			n.hns.version = v13
		}
		n.begin()
		return n
	}})
}

// simulatedSuiteNode is a suiteNode with a simulated HNS. The fake has what that holds, for what the suite reads, and for
// what it changes.
type simulatedSuiteNode struct {
	*suiteNode
	personality sim.Personality
	sim         *sim.Simulator
	journal     int
}

// begin makes what others have on the node.
func (n *simulatedSuiteNode) begin() {
	n.sim = sim.New(sim.Options{Personality: n.personality, Steady: true})
	n.impose()
}

func (n *simulatedSuiteNode) Fresh() backendtest.Node {
	fresh, _ := n.suiteNode.Fresh().(*suiteNode)
	other := &simulatedSuiteNode{suiteNode: fresh, personality: n.personality}
	other.begin()
	return other
}

func (n *simulatedSuiteNode) Start() reconcile.Backend {
	n.startOn(simulated{n.sim})
	return n.backend
}

func (n *simulatedSuiteNode) Inject(c generate.Cluster) func(error) bool {
	w := generator{c.T, c.Family}
	n.sim.ClearFaults()
	faults := w.drawInt("faults", 3) > 0
	if faults {
		f := sim.Fault{
			Function: rapid.SampledFrom([]string{"HcnCreate*", "HcnDelete*", "HcnModify*", "HcnQuery*"}).Draw(w.t, "function"),
			Code:     rapid.SampledFrom([]sim.Code{sim.InvalidParameter, sim.PortNotFound, sim.GeneralFailure, sim.ServerUnavailable}).Draw(w.t, "code"),
			When:     rapid.SampledFrom([]sim.When{sim.Instead, sim.Afterwards}).Draw(w.t, "when"),
			Count:    1 + w.drawInt("count", 3),
		}
		if err := n.sim.Inject(f); err != nil {
			w.t.Fatal(err)
		}
	}
	return func(err error) bool { return faults || len(reconcile.PortErrors(err)) > 0 }
}

func (n *simulatedSuiteNode) Tamper(c generate.Cluster) {
	n.load()
	n.suiteNode.Tamper(c)
	n.impose()
}

func (n *simulatedSuiteNode) Heal() {
	n.sim.ClearFaults()
	n.load()
	n.suiteNode.Heal()
	n.impose()
}

func (n *simulatedSuiteNode) State() string {
	n.load()
	return n.suiteNode.State()
}

func (n *simulatedSuiteNode) Judge(t *rapid.T, want *service.Snapshot, c route.Conn) {
	n.load()
	n.suiteNode.Judge(t, want, c)
}

func (n *simulatedSuiteNode) Check(t *rapid.T, want *service.Snapshot) {
	n.load()
	n.hns.warnings = n.sim.Warnings()
	n.suiteNode.Check(t, want)
}

// Changes returns the calls since the last time that changed something.
func (n *simulatedSuiteNode) Changes() (changes []string) {
	all := n.sim.Journal()
	for _, e := range all[n.journal:] {
		changes = append(changes, e.String())
	}
	n.journal = len(all)
	return changes
}

func parsed[T any](t testing.TB, s *sim.Simulator, kind sim.Kind, parse func([]byte) (T, error)) map[string]T {
	all := map[string]T{}
	for _, d := range s.Objects(kind) {
		text, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		if all[d.ID()], err = parse(text); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// load copies what HNS holds to the fake.
func (n *simulatedSuiteNode) load() {
	n.hns.endpoints = parsed(n.t, n.sim, sim.Endpoint, parseEndpoint)
	n.hns.balancers = parsed(n.t, n.sim, sim.LoadBalancer, parseBalancer)
	n.hns.networks = slices.Collect(maps.Values(parsed(n.t, n.sim, sim.Network, parseNetwork)))
}

// impose makes HNS hold what the fake has.
func (n *simulatedSuiteNode) impose() {
	network := n.hns.networks[0]
	for id, have := range parsed(n.t, n.sim, sim.Network, parseNetwork) {
		if id != network.ID {
			n.remove(sim.Network, id)
			continue
		}
		if slices.Equal(have.Routes, network.Routes) {
			continue
		}
		var errs []error
		for _, r := range have.Routes {
			errs = append(errs, n.sim.RemoveRoute(id, routeTo(r)))
		}
		for _, r := range network.Routes { // in the same order
			errs = append(errs, n.sim.AddRoute(id, routeTo(r)))
		}
		if err := errors.Join(errs...); err != nil {
			n.t.Fatal(err)
		}
	}
	if _, ok := n.sim.Object(sim.Network, network.ID); !ok {
		n.createNetwork(network)
	}
	for id, have := range parsed(n.t, n.sim, sim.Endpoint, parseEndpoint) {
		if want, ok := n.hns.endpoints[id]; !ok || !reflect.DeepEqual(have, want) {
			n.remove(sim.Endpoint, id)
		}
	}
	for id, e := range n.hns.endpoints {
		if _, ok := n.sim.Object(sim.Endpoint, id); !ok {
			d := e.document()
			d.ID = id
			n.create(sim.External, sim.Endpoint, d)
		}
	}
	for id, have := range parsed(n.t, n.sim, sim.LoadBalancer, parseBalancer) {
		if want, ok := n.hns.balancers[id]; !ok || !have.equal(&want) {
			n.remove(sim.LoadBalancer, id)
		}
	}
	for id, lb := range n.hns.balancers {
		d, by := lb.document(), sim.Caller
		if d.ID = id; id == "foreign-balancer" {
			by = sim.External
		}
		if _, ok := n.sim.Object(sim.LoadBalancer, id); !ok {
			n.create(by, sim.LoadBalancer, d)
		}
	}
}

func (n *simulatedSuiteNode) remove(kind sim.Kind, id string) {
	_ = n.sim.Delete(kind, id) // it may have gone with another object
}

func routeTo(r Route) sim.Route {
	return sim.Route{Prefix: r.Subnet, Provider: r.Provider, MAC: "00-15-5D-00-00-02"}
}

func (n *simulatedSuiteNode) createNetwork(x Network) {
	c := sim.NetworkConfig{ID: x.ID, Name: x.Name, Type: string(x.Kind), Subnets: x.Subnets}
	for _, r := range x.Routes {
		c.Routes = append(c.Routes, routeTo(r))
	}
	if _, err := n.sim.AddNetwork(c); err != nil {
		n.t.Fatal(err)
	}
}

// create makes an object, unless HNS refuses it, as it does what leads to an endpoint that has gone.
func (n *simulatedSuiteNode) create(by sim.Actor, kind sim.Kind, document any) {
	text, err := json.Marshal(document)
	if err != nil {
		n.t.Fatal(err)
	}
	q := sim.Request{Function: "HcnCreate" + string(kind), Args: [3]string{string(text)}}
	if kind == sim.Endpoint {
		q.Handle = n.sim.CallAs(by, sim.Request{Function: "HcnOpenNetwork", ID: n.hns.networks[0].ID}).Handle
	}
	n.sim.CallAs(by, q)
}
