// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package servicestate

import (
	"slices"

	"kubeproxy/common/service"
)

// Summary counts Services.
type Summary struct {
	States map[State]int `json:"states"` // contains every state
	// Unserved counts the Services with at least one frontend that has the reason,
	// whatever their state. It contains every reason.
	Unserved map[Reason]int `json:"unserved"`
	Problems int            `json:"problems"` // number of Services with problems
}

// reasons lists all reasons.
var reasons = []Reason{NoEndpoints, PolicyLeftNone, NoSources, UnsupportedByMode}

// serviceCounts is what a Summary needs of one Service.
type serviceCounts struct {
	worst    int  // in states
	found    bool // there is a port that is not skipped
	problem  bool
	unserved [4]bool // by reasons
}

// Summary counts Services without describing them, so that frequent calls are cheap.
func (b *Store) Summary() Summary {
	want, problems := b.wanted(), []Problem(nil)
	if b.Problems != nil {
		problems = b.Problems()
	}
	found := map[key]serviceCounts{}
	b.mu.Lock()
	for _, f := range service.Families {
		for _, port := range b.families[f].ports(want, f) {
			k := key{port.Name.Namespace, port.Name.Name}
			t := found[k]
			t.add(b, port, want)
			found[k] = t
		}
	}
	b.mu.Unlock()
	for _, p := range problems {
		k := key{p.Namespace, p.Name}
		t, ok := found[k]
		if !ok {
			t.addState(Skipped)
		}
		t.problem = true
		if p.Name != "" {
			found[k] = t
		}
	}
	s := Summary{States: map[State]int{}, Unserved: map[Reason]int{}}
	for _, state := range states {
		s.States[state] = 0
	}
	for _, r := range reasons {
		s.Unserved[r] = 0
	}
	for _, t := range found {
		s.add(t)
	}
	return s
}

func (t *serviceCounts) add(b *Store, port *service.Port, want *service.Snapshot) {
	p := &b.families[port.Family]
	if state, _, _ := p.evaluate(port, want); b.unavailable(port.Family) == "" {
		t.addState(state)
	} else {
		t.addState(Skipped)
	}
	for _, f := range port.Frontends {
		if i := slices.Index(reasons, p.reason(port, f)); i >= 0 {
			t.unserved[i] = true
		}
	}
}

// addState adds the state of a port, with the same rule as Service.worst.
func (t *serviceCounts) addState(state State) {
	i := slices.Index(states, state)
	if state == Skipped && t.found || state != Skipped && t.found && i < t.worst {
		return
	}
	t.worst, t.found = i, t.found || state != Skipped
}

func (s *Summary) add(t serviceCounts) {
	s.States[states[t.worst]]++
	if t.problem {
		s.Problems++
	}
	for i, r := range reasons {
		if t.unserved[i] {
			s.Unserved[r]++
		}
	}
}
