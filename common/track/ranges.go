// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"maps"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
)

// ranges is what the Tracker keeps of a ServiceCIDR.
type ranges struct {
	prefixes []netip.Prefix
	notes    []note
}

// SetServiceCIDR takes in a new or changed ServiceCIDR. One that is being
// deleted counts as long as it is there: Services may still have its
// addresses.
func (t *Tracker) SetServiceCIDR(o *networkingv1.ServiceCIDR) {
	fresh := readRanges(o)
	t.change(func() bool {
		old := t.ranges[o.Name]
		if old != nil && slices.Equal(old.prefixes, fresh.prefixes) && slices.Equal(old.notes, fresh.notes) {
			return false
		}
		t.ranges[o.Name], t.renode = fresh, true
		return true
	})
}

// DeleteServiceCIDR forgets a ServiceCIDR.
func (t *Tracker) DeleteServiceCIDR(name string) {
	t.change(func() bool {
		if t.ranges[name] == nil {
			return false
		}
		delete(t.ranges, name)
		t.renode = true
		return true
	})
}

func readRanges(o *networkingv1.ServiceCIDR) *ranges {
	var notes notes
	r := &ranges{}
	for i, s := range o.Spec.CIDRs {
		p, err := parsePrefix(s)
		if err == nil && p.Bits() == 0 {
			// It would cut the node off from everything.
			notes.add("servicecidr "+o.Name+" "+at("spec.cidrs", i), "%.80q holds every address; want a range for Services alone", s)
			continue
		}
		if err != nil {
			notes.add("servicecidr "+o.Name+" "+at("spec.cidrs", i), "%v", err)
			continue
		}
		r.prefixes = append(r.prefixes, p)
	}
	r.notes = notes.all()
	return r
}

// serviceCIDRs returns the ranges of all ServiceCIDRs, which may overlap.
func (t *Tracker) serviceCIDRs() []netip.Prefix {
	var all []netip.Prefix
	for _, r := range t.ranges {
		all = append(all, r.prefixes...)
	}
	return collapse(all)
}

func (t *Tracker) rangeNotes() []note {
	var all []note
	for _, name := range slices.Sorted(maps.Keys(t.ranges)) {
		all = append(all, t.ranges[name].notes...)
	}
	return all
}
