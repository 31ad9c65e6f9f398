// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"kubeproxy/common/service"
)

// serviceCIDR is what the Tracker keeps of a ServiceCIDR.
type serviceCIDR struct {
	prefixes []netip.Prefix
	fields   []int // their paths
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
		t.cidrs[o.Name], t.nodeDirty, t.misplaced.stale = fresh, true, true
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
		t.nodeDirty, t.misplaced.stale = true, true
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
	r.notes = notes.all()
	return r
}

// maxExempt bounds the addresses of a range for which nothing is dropped because they
// are endpoints. A backend has a rule for each.
const maxExempt = 256

// serviceCIDRs sets the ranges of all ServiceCIDRs, which may overlap, and the addresses
// of endpoints in them. It leaves out ranges that overlap the node's or the pods' networks:
// those addresses would be cut off. Every author of an EndpointSlice can write an address,
// so endpoints in a range exempt no other address of it. serviceCIDRs returns notes about
// all faults.
func (t *Tracker) serviceCIDRs(node *service.Node) []note {
	var all []netip.Prefix
	var exempt []netip.Addr
	var notes []note
	for _, name := range slices.Sorted(maps.Keys(t.cidrs)) {
		r := t.cidrs[name]
		notes = append(notes, r.notes...)
		for i, p := range r.prefixes {
			add := func(why string) {
				field := "servicecidr " + name + " " + at("spec.cidrs", r.fields[i])
				notes = append(notes, note{field: field, message: fmt.Sprintf("%q %s", p, why)})
			}
			if conflict := t.overlap(p, node); conflict != "" {
				add(conflict + "; want a range for Services alone; nothing is dropped for it")
				continue
			}
			all = append(all, p)
			listed := t.unallocated(t.misplaced.in(p))
			if len(listed) > 0 {
				add(t.describeListed(listed))
			}
			exempt = append(exempt, listed[:min(len(listed), maxExempt)]...)
		}
	}
	slices.SortFunc(exempt, netip.Addr.Compare)
	node.ServiceCIDRs, node.EndpointsInServiceCIDRs = collapse(all), slices.Compact(exempt)
	return notes
}

// unallocated returns those of addrs that are no ClusterIP, one more than maxExempt at most.
func (t *Tracker) unallocated(addrs []netip.Addr) []netip.Addr {
	var free []netip.Addr
	for _, a := range addrs {
		if len(free) > maxExempt {
			break
		}
		if t.claims.holder[clusterIPKey(a)].serviceState == nil {
			free = append(free, a)
		}
	}
	return free
}

// describeListed describes what unallocated returned for the endpoints of a range.
func (t *Tracker) describeListed(listed []netip.Addr) string {
	first := slices.MinFunc(slices.Collect(maps.Keys(t.claims.endpoints[clusterIPKey(listed[0])])), func(a, b *serviceState) int {
		return strings.Compare(a.name.String(), b.name.String())
	})
	number, exempt := strconv.Itoa(len(listed)), "them"
	if len(listed) > maxExempt {
		number, exempt = fmt.Sprintf("more than %d", maxExempt), fmt.Sprintf("the first %d", maxExempt)
	}
	return fmt.Sprintf("holds addresses of endpoints (%s): %s of service %s; want a range for Services alone; packets to %s are not dropped",
		number, listed[0], first.name, exempt)
}

// overlap returns what p shares with the node and with pods, empty if it shares nothing.
// Pods get addresses from all of their range, so a range of pods that contains p overlaps
// as much as one within p. An interface may have single addresses of Services: node-local
// DNS binds the ClusterIP of the cluster's DNS, other proxies all of them.
func (t *Tracker) overlap(p netip.Prefix, node *service.Node) string {
	for _, a := range node.Addrs {
		if p.Contains(a) {
			return "holds the node's address " + a.String()
		}
	}
	for _, a := range t.host.Addrs {
		if p.Contains(a.Addr()) && !a.IsSingleIP() && t.claims.holder[clusterIPKey(a.Addr())].serviceState == nil {
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
