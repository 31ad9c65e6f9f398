// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"cmp"
	"slices"

	"kubeproxy/common/service"
)

// AnnotationSelection of a Service overrides Options.Selection.
const AnnotationSelection = "kubeproxy.io/selection"

// Selection says how connections get an endpoint. Empty is SelectRandom.
type Selection string

// The choices.
const (
	SelectRandom        Selection = "random"
	SelectConsistent    Selection = "consistent"     // see service.Consistent
	SelectConsistentAll Selection = "consistent-all" // with ClusterIPs
)

// selections are the choices of a Service, by the number that is kept of it.
var selections = [...]Selection{"", SelectRandom, SelectConsistent, SelectConsistentAll}

// directChoice is what choices of direct return are multiplied by.
const directChoice = 4 * byte(len(selections))

// readChoice returns an annotation's place in choices, which text names, 0 if the default holds.
func readChoice[T ~string](b *builder, annotation, text string, choices []T) byte {
	value, set := b.service.Annotations[annotation]
	i := slices.Index(choices[1:], T(value)) + 1
	if i == 0 && set {
		b.notes.add("metadata.annotations["+annotation+"]", "%.80q is not %s; the default holds", value, text)
	}
	return byte(i)
}

// consistent returns what holds for p, a port of the owner whose endpoints were chosen.
func (r *resolver) consistent(p *service.Port) service.Consistent {
	how, slots := selections[r.owner.choices%directChoice/4], cmp.Or(r.tracker.options.SelectionSlots, service.DefaultSlots)
	if how == "" {
		how = r.tracker.options.Selection
		if how != SelectConsistentAll && r.direct() && p.Affinity == 0 { // with affinity there is no direct return
			how = SelectConsistent
		}
	}
	if how != SelectConsistent && how != SelectConsistentAll {
		return service.Consistent{}
	}
	c := &r.tracker.chooser
	if n, most := max(len(c.cluster), len(c.local)), int(slots)/service.SlotShare; n > most {
		r.notes.add("spec.ports", "%s port %q (%s) has %d endpoints, and consistent selection with %d slots is for %d at most; they are selected at random",
			p.Family, p.Name.Port, p.Name.Protocol, n, slots, most)
		return service.Consistent{}
	}
	return service.Consistent{Slots: slots, ClusterIPs: how == SelectConsistentAll}
}

// setSelectionDefault changes the operator's choice, and reports whether that may matter.
func (t *Tracker) setSelectionDefault(o Options) bool {
	if t.options.Selection == o.Selection && t.options.SelectionSlots == o.SelectionSlots && t.options.DirectReturn == o.DirectReturn {
		return false
	}
	t.options.Selection, t.options.SelectionSlots, t.options.DirectReturn = o.Selection, o.SelectionSlots, o.DirectReturn
	for _, s := range t.services {
		t.markDirty(s)
	}
	return len(t.services) > 0
}
