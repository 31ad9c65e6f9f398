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

// serviceCIDR is what the Tracker keeps of a ServiceCIDR.
type serviceCIDR struct {
	prefixes []netip.Prefix
	fields   []int // their paths
	held     []int // how many addresses of endpoints lie in each
	notes    []note
}

// SetServiceCIDR adds or replaces a ServiceCIDR. One that is being deleted counts until
// it is gone, because Services may still have its addresses.
func (t *Tracker) SetServiceCIDR(o *networkingv1.ServiceCIDR) {
	fresh := readServiceCIDR(o)
	t.change(func() bool {
		old := t.cidrs[o.Name]
		if old != nil && slices.Equal(old.prefixes, fresh.prefixes) && slices.Equal(old.fields, fresh.fields) && slices.Equal(old.notes, fresh.notes) {
			return false
		}
		for _, s := range t.slices { // ranges hardly ever change, slices all the time
			fresh.count(s, 1)
		}
		t.cidrs[o.Name], t.nodeDirty = fresh, true
		return true
	})
}

// DeleteServiceCIDR removes a ServiceCIDR.
func (t *Tracker) DeleteServiceCIDR(name string) {
	t.change(func() bool {
		if t.cidrs[name] == nil {
			return false
		}
		delete(t.cidrs, name)
		t.nodeDirty = true
		return true
	})
}

// minPrefixBits is the least length of a range, by family. A shorter prefix must contain
// more than Services. API servers accept at most 2^20 addresses by flag, see kubernetes:
// cmd/kube-apiserver/app/options/validation.go.
var minPrefixBits = [...]int{service.IPv4: 8, service.IPv6: 32}

func readServiceCIDR(o *networkingv1.ServiceCIDR) *serviceCIDR {
	var notes notes
	r := &serviceCIDR{}
	for i, s := range o.Spec.CIDRs {
		p, err := parsePrefix(s)
		if err == nil && p.Bits() == 0 {
			// It would cut the node off from every address.
			notes.add("servicecidr "+o.Name+" "+at("spec.cidrs", i), "%.80q holds every address; want a range for Services alone", s)
			continue
		}
		if err == nil && p.Bits() < minPrefixBits[service.FamilyOf(p.Addr())] {
			notes.add("servicecidr "+o.Name+" "+at("spec.cidrs", i), "%.80q is too wide to be a range for Services alone; want /%d or longer", s, minPrefixBits[service.FamilyOf(p.Addr())])
			continue
		}
		if err != nil {
			notes.add("servicecidr "+o.Name+" "+at("spec.cidrs", i), "%v", err)
			continue
		}
		r.prefixes, r.fields = append(r.prefixes, p), append(r.fields, i)
	}
	r.notes, r.held = notes.all(), make([]int, len(r.prefixes))
	return r
}

// count adds the addresses of n slices like s; n may be negative. It reports whether the
// first address of a range was added, or the last one removed.
func (r *serviceCIDR) count(s *slice, n int) bool {
	moved := false
	for i, p := range r.prefixes {
		if service.FamilyOf(p.Addr()) != s.family {
			continue
		}
		before := r.held[i]
		for j := range s.endpoints {
			if p.Contains(s.addr(j)) {
				r.held[i] += n
			}
		}
		moved = moved || (before > 0) != (r.held[i] > 0)
	}
	return moved
}

// countSlice adds n slices like s to the counts of all ranges. The cost depends on the
// size of the slice, because a cluster has few ranges.
func (t *Tracker) countSlice(s *slice, n int) {
	for _, r := range t.cidrs {
		if r.count(s, n) {
			t.nodeDirty = true
		}
	}
}

// serviceCIDRs returns the ranges of all ServiceCIDRs, which may overlap. It leaves out
// ranges with addresses that do not belong to Services: those addresses would be cut off.
// It also returns notes about all faults.
func (t *Tracker) serviceCIDRs(node *service.Node) ([]netip.Prefix, []note) {
	var all []netip.Prefix
	var notes []note
	for _, name := range slices.Sorted(maps.Keys(t.cidrs)) {
		r := t.cidrs[name]
		notes = append(notes, r.notes...)
		for i, p := range r.prefixes {
			conflict := t.overlap(p, node)
			if conflict == "" && r.held[i] > 0 {
				conflict = "holds the addresses of endpoints"
			}
			if conflict != "" {
				notes = append(notes, note{
					field:   "servicecidr " + name + " " + at("spec.cidrs", r.fields[i]),
					message: fmt.Sprintf("%q %s; want a range for Services alone; nothing is dropped for it", p, conflict),
				})
				continue
			}
			all = append(all, p)
		}
	}
	return collapse(all), notes
}

// overlap returns what p shares with the node and with pods, empty if it shares nothing.
// Pods get addresses from all of their range, so a range of pods that contains p overlaps
// as much as one within p.
func (t *Tracker) overlap(p netip.Prefix, node *service.Node) string {
	for _, a := range slices.Concat(node.Addrs, t.host.Addrs) {
		if p.Contains(a) {
			return "holds the node's address " + a.String()
		}
	}
	for _, q := range slices.Concat(node.Pods.Prefixes, t.nodeInfo.pods) {
		switch {
		case !p.Overlaps(q):
		case p.Bits() <= q.Bits():
			return "holds the pods' range " + q.String()
		default:
			return "lies in the pods' range " + q.String()
		}
	}
	return ""
}
