// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"

	"kubeproxy/common/service"
)

// ranges is what the Tracker keeps of a ServiceCIDR.
type ranges struct {
	prefixes []netip.Prefix
	fields   []int // where they stand
	notes    []note
}

// SetServiceCIDR takes in a new or changed ServiceCIDR. One that is being
// deleted counts as long as it is there: Services may still have its
// addresses.
func (t *Tracker) SetServiceCIDR(o *networkingv1.ServiceCIDR) {
	fresh := readRanges(o)
	t.change(func() bool {
		old := t.ranges[o.Name]
		if old != nil && slices.Equal(old.prefixes, fresh.prefixes) && slices.Equal(old.fields, fresh.fields) && slices.Equal(old.notes, fresh.notes) {
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

// shortest is the length, by family, below which a prefix holds more than
// Services: API servers take no range of more than 2^20 addresses by their flag.
var shortest = [...]int{service.IPv4: 8, service.IPv6: 32}

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
		if err == nil && p.Bits() < shortest[service.FamilyOf(p.Addr())] {
			notes.add("servicecidr "+o.Name+" "+at("spec.cidrs", i), "%.80q is too wide to be a range for Services alone; want /%d or longer", s, shortest[service.FamilyOf(p.Addr())])
			continue
		}
		if err != nil {
			notes.add("servicecidr "+o.Name+" "+at("spec.cidrs", i), "%v", err)
			continue
		}
		r.prefixes, r.fields = append(r.prefixes, p), append(r.fields, i)
	}
	r.notes = notes.all()
	return r
}

// serviceCIDRs returns the ranges of all ServiceCIDRs, which may overlap, but for
// those that others than Services have a part of on node. Their addresses would
// be cut off. It returns notes on all that is wrong, too.
func (t *Tracker) serviceCIDRs(node *service.Node) ([]netip.Prefix, []note) {
	var all []netip.Prefix
	var notes []note
	for _, name := range slices.Sorted(maps.Keys(t.ranges)) {
		r := t.ranges[name]
		notes = append(notes, r.notes...)
		for i, p := range r.prefixes {
			if whose := t.insideOf(p, node); whose != "" {
				notes = append(notes, note{
					field:   "servicecidr " + name + " " + at("spec.cidrs", r.fields[i]),
					message: fmt.Sprintf("%q holds %s; want a range for Services alone; nothing is dropped for it", p, whose),
				})
				continue
			}
			all = append(all, p)
		}
	}
	return collapse(all), notes
}

// insideOf says what of the node and its pods lies in p, nothing if all lie
// elsewhere. A range of pods that is wide enough to hold p says nothing.
func (t *Tracker) insideOf(p netip.Prefix, node *service.Node) string {
	for _, a := range slices.Concat(node.Addrs, t.host.Addrs) {
		if p.Contains(a) {
			return "the node's address " + a.String()
		}
	}
	for _, q := range slices.Concat(node.Pods.Prefixes, t.facts.pods) {
		if p.Bits() <= q.Bits() && p.Contains(q.Addr()) {
			return "the pods' range " + q.String()
		}
	}
	return ""
}
