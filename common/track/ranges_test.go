// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubeproxy/common/service"
)

// TestServiceCIDRsApartFromPods has ranges that lie in one of pods, for which nothing is
// dropped, and endpoints in ranges, which exempt their addresses alone, in any order.
func TestServiceCIDRsApartFromPods(t *testing.T) {
	const ranges, gone = "ranges", "gone"
	const inPods, endpoint, other = `"10.244.1.128/25" lies in the pods' range 10.244.1.0/24; ` + unused,
		`"10.244.2.0/24" holds addresses of endpoints (1): 10.244.2.200 of service ns-1/service-1; ` + exempt,
		`"10.96.0.0/16" holds addresses of endpoints (1): 10.96.3.3 of service ns-1/service-1; ` + exempt
	all := []string{"10.96.0.0/16", "10.244.2.0/24", "fd00::/112"}
	for name, tt := range map[string]struct {
		cluster string
		steps   []string // addresses of an endpoint, and the above
		want    []string // that count
		reasons []string
	}{
		"the endpoint is first":        {"", []string{"10.244.2.200", ranges}, append(all, "but 10.244.2.200"), []string{inPods, endpoint}},
		"the range is first":           {"", []string{ranges, "10.244.2.200"}, append(all, "but 10.244.2.200"), []string{inPods, endpoint}},
		"the endpoint is gone":         {"", []string{ranges, "10.244.2.200", gone}, all, []string{inPods}},
		"the endpoint was gone before": {"", []string{"10.244.2.200", gone, ranges}, all, []string{inPods}},
		"the endpoint moves":           {"", []string{ranges, "10.244.2.200", "10.96.3.3"}, append(all, "but 10.96.3.3"), []string{other, inPods}},
		"all pods": {
			"10.244.0.0/16", []string{ranges, "10.244.2.200"}, []string{"10.96.0.0/16", "fd00::/112"},
			[]string{
				`"10.244.1.128/25" lies in the pods' range 10.244.0.0/16; ` + unused,
				`"10.244.2.0/24" lies in the pods' range 10.244.0.0/16; ` + unused,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tracker := podsAndRanges(tt.cluster)
			for _, step := range tt.steps {
				switch s := plainSlice(1, 1); step {
				case ranges:
					tracker.SetServiceCIDR(&networkingv1.ServiceCIDR{Spec: networkingv1.ServiceCIDRSpec{
						CIDRs: []string{"10.96.0.0/16", "10.244.1.128/25", "10.244.2.0/24", "fd00::/112"},
					}})
				case gone:
					tracker.DeleteSlice(types.NamespacedName{Namespace: s.Namespace, Name: s.Name})
				default:
					s.Endpoints[0].Addresses = []string{step}
					tracker.SetSlice(s)
				}
				tracker.Latest()
			}
			checkRanges(t, tracker, tt.want, tt.reasons)
		})
	}
}

// podsAndRanges knows a node whose pods are in 10.244.1.0/24, and the pods of all nodes.
func podsAndRanges(cluster string) *Tracker {
	o := Options{NodeName: "a"}
	if cluster != "" {
		o.Pods.Prefixes = []netip.Prefix{netip.MustParsePrefix(cluster)}
	}
	tracker := New(o)
	node := &corev1.Node{Spec: corev1.NodeSpec{PodCIDRs: []string{"10.244.1.0/24"}}}
	node.Name = "a"
	tracker.SetNode(node)
	tracker.Synced()
	return tracker
}

// What follows a fault of a range.
const (
	unused = "want a range for Services alone; nothing is dropped for it"
	exempt = "want a range for Services alone; packets to them are not dropped"
)

func checkRanges(t *testing.T, tracker *Tracker, want, reasons []string) {
	t.Helper()
	var got, problems []string
	node := tracker.Latest().Node
	for _, p := range node.ServiceCIDRs {
		got = append(got, p.String())
	}
	for _, a := range node.EndpointsInServiceCIDRs {
		got = append(got, "but "+a.String())
	}
	for _, p := range tracker.Problems() {
		problems = append(problems, p.Message)
	}
	if !slices.Equal(got, want) || !slices.Equal(problems, reasons) {
		t.Errorf("ranges %q for\n%q; want %q for\n%q", got, problems, want, reasons)
	}
}

// TestServiceCIDRsOnInterfaces has addresses of interfaces in a range: single ones and
// ClusterIPs are for Services, those of a network are not.
func TestServiceCIDRsOnInterfaces(t *testing.T) {
	dns := plainService(9) // 10.96.0.10
	for addr, conflict := range map[string]string{
		"10.96.0.10/32":     "",
		"10.96.0.77/32":     "",
		"fd00:10:96::a/128": "",
		"10.96.0.10/24":     "",
		"10.96.0.77/16":     `"10.96.0.0/16" holds the node's address 10.96.0.77/16; ` + unused,
		"fd00:10:96::b/64":  `"fd00:10:96::/112" holds the node's address fd00:10:96::b/64; ` + unused,
	} {
		tracker := podsAndRanges("")
		tracker.SetService(dns)
		tracker.SetServiceCIDR(&networkingv1.ServiceCIDR{Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16", "fd00:10:96::/112"}}})
		tracker.Latest()
		tracker.SetHost(Host{Addrs: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix(addr)}})
		want, reasons := []string{"10.96.0.0/16", "fd00:10:96::/112"}, []string(nil)
		if conflict != "" {
			reasons = []string{conflict}
			want = slices.DeleteFunc(want, func(s string) bool { return strings.Contains(conflict, s) })
		}
		checkRanges(t, tracker, want, reasons)
	}
}

// TestManyEndpointsInServiceCIDR checks that the author of slices cannot end the dropping:
// a number of addresses is exempt, ClusterIPs not counted.
func TestManyEndpointsInServiceCIDR(t *testing.T) {
	tracker := podsAndRanges("")
	tracker.SetServiceCIDR(&networkingv1.ServiceCIDR{Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16"}}})
	tracker.SetService(plainService(9)) // 10.96.0.10
	for i := range 4 {
		s := plainSlice(i, 70)
		for j := range s.Endpoints {
			s.Endpoints[j].Addresses = []string{fmt.Sprintf("10.96.%d.%d", i, j)}
		}
		tracker.SetSlice(s)
	}
	node := tracker.Latest().Node
	exempt := node.EndpointsInServiceCIDRs
	if len(exempt) != maxExempt || len(node.ServiceCIDRs) != 1 {
		t.Fatalf("%d addresses of %v are exempt, want %d of the range", len(exempt), node.ServiceCIDRs, maxExempt)
	}
	for addr, dropped := range map[string]bool{"10.96.0.9": false, "10.96.0.10": true, "10.96.3.46": false, "10.96.3.47": true, "10.96.200.1": true} {
		if node.IsServiceAddr(netip.MustParseAddr(addr)) != dropped {
			t.Errorf("%s is a Service's address: %v, want %v", addr, !dropped, dropped)
		}
	}
	const want = `"10.96.0.0/16" holds addresses of endpoints (more than 256): 10.96.0.0 of service ns-0/service-0; ` +
		"want a range for Services alone; packets to the first 256 are not dropped"
	if p := tracker.Problems()[0]; p.Message != want {
		t.Errorf("problem %q, want %q", p.Message, want)
	}
}

// TestEndpointIsClusterIP checks that endpoints that are ClusterIPs are found, whichever
// object comes first and in any block of addresses.
func TestEndpointIsClusterIP(t *testing.T) {
	victim, mine := plainService(9), plainService(1)
	slice := plainSlice(1, 2)
	slice.Endpoints[1].Addresses = []string{victim.Spec.ClusterIP}
	steps := map[string]func(*Tracker){
		"victim":      func(t *Tracker) { t.SetService(victim) },
		"mine":        func(t *Tracker) { t.SetService(mine) },
		"slice":       func(t *Tracker) { t.SetSlice(slice) },
		"victim gone": func(t *Tracker) { t.DeleteService(named(victim)) },
		"slice gone":  func(t *Tracker) { t.DeleteSlice(named(slice)) },
		"mine gone":   func(t *Tracker) { t.DeleteService(named(mine)) },
	}
	const problem = `service ns-1/service-1: endpointslice service-1-x7k2p endpoints: "10.96.0.10" is the ClusterIP of service ` +
		`ns-9/service-9, and is not translated a second time; want the address of a pod`
	for order, want := range map[string]string{
		"victim, mine, slice":                            problem,
		"slice, mine, victim":                            problem,
		"mine, slice, victim":                            problem,
		"mine, slice, victim, victim gone":               "",
		"mine, slice, victim, victim gone, victim":       problem,
		"victim, mine, slice, slice gone":                "",
		"victim, mine, slice, mine gone":                 "",
		"slice, victim":                                  "",
		"slice, victim, victim gone, mine, victim":       problem,
		"victim, victim gone, mine, slice, victim":       problem,
		"victim, mine, slice, slice gone, slice, victim": problem,
	} {
		for _, each := range []bool{true, false} { // a snapshot after each step
			tracker := podsAndRanges("")
			for step := range strings.SplitSeq(order, ", ") {
				run(tracker, steps[step], each)
			}
			tracker.Latest()
			if got := problemTexts(tracker); strings.Join(got, "\n") != want {
				t.Errorf("%s, snapshots between %v: problems %q, want %q", order, each, got, want)
			}
		}
	}
}

// TestChoiceOfClusterIP wants the reason beside the endpoint.
func TestChoiceOfClusterIP(t *testing.T) {
	tracker, slice := podsAndRanges(""), plainSlice(1, 2)
	slice.Endpoints[0].Addresses = []string{"10.96.0.10"}
	tracker.SetService(plainService(9)) // 10.96.0.10
	tracker.SetService(plainService(1))
	tracker.SetSlice(slice)
	for port := range tracker.Latest().Ports(service.IPv4) {
		for _, c := range tracker.Choice(service.IPv4, port.Name).Candidates {
			misplaced := strings.HasSuffix(c.Cluster.Why, "it is ready, but its address is the ClusterIP of service ns-9/service-9")
			if is := strings.HasPrefix(c.Address, "10.96.0.10:"); misplaced != is {
				t.Errorf("endpoint %s: %q", c.Address, c.Cluster.Why)
			}
		}
	}
}

func run(tracker *Tracker, step func(*Tracker), look bool) {
	step(tracker)
	if look {
		tracker.Latest()
	}
}

func problemTexts(tracker *Tracker) []string {
	var all []string
	for _, p := range tracker.Problems() {
		all = append(all, p.String())
	}
	return all
}

func named(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}
