// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"cmp"
	"slices"

	"kubeproxy/common/service"
)

// serviceName is the name of a Service.
type serviceName struct{ Namespace, Name string }

func (s serviceName) compare(t serviceName) int {
	return cmp.Or(cmp.Compare(s.Namespace, t.Namespace), cmp.Compare(s.Name, t.Name))
}

// MostNamed bounds the Services that have time series of their own. A cluster may have
// any number of Services, and each series costs memory in whatever collects them.
const MostNamed = 50

// replaceFactor prevents frequent changes of the selection: another Service replaces one
// with series of its own only if it has that many times its connections.
const replaceFactor = 2

// ranking selects the Services with series of their own. Counts of a Service since its
// selection have its name. All other counts are in rest. So each series only grows.
type ranking struct {
	named map[serviceName]bool
	own   map[serviceName]Counts
	rest  Counts
}

// add adds what has grown. totals are those of all Services.
func (r *ranking) add(totals map[serviceName]Counts, grown map[pair]Counts) {
	if r.named == nil {
		r.named, r.own = map[serviceName]bool{}, map[serviceName]Counts{}
	}
	r.choose(totals)
	for p, n := range grown {
		if s := p.service(); r.named[s] {
			r.own[s] = r.own[s].Plus(n)
		} else {
			r.rest = r.rest.Plus(n)
		}
	}
}

// choose selects the Services with the most connections.
func (r *ranking) choose(totals map[serviceName]Counts) {
	for s := range r.own {
		if _, exists := totals[s]; !exists {
			delete(r.named, s)
			delete(r.own, s)
		}
	}
	var in, out []serviceName
	for s := range totals {
		if r.named[s] {
			in = append(in, s)
		} else {
			out = append(out, s)
		}
	}
	order := func(a, b serviceName) int {
		return cmp.Or(cmp.Compare(totals[b].Connections, totals[a].Connections), a.compare(b))
	}
	slices.SortFunc(in, order)
	slices.SortFunc(out, order)
	for _, s := range out {
		if len(in) >= MostNamed {
			last := in[len(in)-1]
			if totals[s].Connections <= replaceFactor*totals[last].Connections {
				return
			}
			delete(r.named, last)
			in = in[:len(in)-1]
		}
		r.named[s] = true
		at, _ := slices.BinarySearchFunc(in, s, order)
		in = slices.Insert(in, at, s)
	}
}

// names finds the Service port of an address.
type names struct {
	snapshot *service.Snapshot
	at       map[service.Address]service.PortName
}

// namesOf returns the names in s.
func namesOf(s *service.Snapshot) *names {
	n := &names{s, map[service.Address]service.PortName{}}
	for _, f := range service.Families {
		for p := range s.Ports(f) {
			for _, x := range p.Frontends {
				n.at[p.Address(x)] = p.Name
			}
		}
	}
	return n
}

// find returns the Service port of the address that clients of c dialled, false if that
// is no Service's. A NodePort has every address of the node.
func (n *names) find(c Counter) (service.PortName, bool) {
	at := service.AddressOf(c.Protocol, c.Frontend)
	name, found := n.at[at]
	if !found {
		name, found = n.at[at.OnNode()]
	}
	return name, found
}
