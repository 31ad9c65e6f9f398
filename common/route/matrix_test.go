// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package route

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/service"
)

// The matrix defines, for a port with endpoints on this node and another one, which
// endpoints may answer, and whether they see the address of the client ("plain") or of
// the node ("masq"). The columns are: pods are detected; the same with masqueradeAll;
// pods are not detected; the same with masqueradeAll.
const matrix = `
ClusterIP Cluster pod      all  plain | all  masq  | all  plain | all  masq
ClusterIP Cluster node     all  masq  | all  masq  | all  plain | all  masq
ClusterIP Cluster outside  all  masq  | all  masq  | all  plain | all  masq
ClusterIP Local   pod      here plain | here masq  | here plain | here masq
ClusterIP Local   node     here masq  | here masq  | here plain | here masq
ClusterIP Local   outside  here masq  | here masq  | here plain | here masq
external  Cluster pod      all  masq  | all  masq  | all  masq  | all  masq
external  Cluster node     all  masq  | all  masq  | all  masq  | all  masq
external  Cluster outside  all  masq  | all  masq  | all  masq  | all  masq
external  Local   pod      all  plain | all  plain | here plain | here plain
external  Local   node     all  masq  | all  masq  | all  masq  | all  masq
external  Local   outside  here plain | here plain | here plain | here plain
`

// column holds the node's settings in a case of the matrix.
type column struct{ detect, masqueradeAll bool }

var columns = []column{{true, false}, {true, true}, {false, false}, {false, true}}

var kinds = map[string][]service.Kind{
	"ClusterIP": {service.ClusterIP},
	"external":  {service.NodePort, service.ExternalIP, service.LoadBalancerIP},
}

// matrixCase is one cell, or one of the three that a line for all external kinds covers.
type matrixCase struct {
	kind         service.Kind
	policy, from string
	column       column
	want         string
}

func matrixCases() []matrixCase {
	var cases []matrixCase
	for _, line := range strings.Split(strings.TrimSpace(matrix), "\n") {
		words := strings.Fields(line)
		for i, want := range strings.Split(strings.Join(words[3:], " "), " | ") {
			for _, kind := range kinds[words[0]] {
				cases = append(cases, matrixCase{kind, words[1], words[2], columns[i], want})
			}
		}
	}
	return cases
}

func TestMasqueradeMatrix(t *testing.T) {
	cases := matrixCases()
	if len(cases) != 4*2*3*4 {
		t.Fatalf("%d cases, want every kind, policy, source and node", len(cases))
	}
	for _, c := range cases {
		t.Run(fmt.Sprintf("%s/%s/%s/%+v", c.kind, c.policy, c.from, c.column), func(t *testing.T) {
			got := [2]string{c.decide(service.IPv4), c.decide(service.IPv6)}
			if diff := cmp.Diff([2]string{c.want, c.want}, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// decide describes the verdict of c in the words of the matrix.
func (c matrixCase) decide(f service.Family) string {
	w := newFixture(f)
	w.node.MasqueradeAll = c.column.masqueradeAll
	if !c.column.detect {
		w.node.Pods = service.LocalPods{}
	}
	p := w.port()
	p.Local = []service.Endpoint{w.local}
	if c.policy == "Local" {
		p.Internal, p.External = service.PolicyLocal, service.PolicyLocal
	}
	v := Decide(w.snapshot(p), w.conn(c.from, c.kind))
	if v.Action != Forward {
		return v.Action.String()
	}
	words := map[int]string{1: "here", 2: "all"}[len(v.Endpoints)]
	for i, e := range v.Endpoints {
		word := " plain"
		if v.Masquerades(e) {
			word = " masq"
		}
		if i > 0 && !strings.HasSuffix(words, word) {
			return words + " mixed"
		}
		words = strings.TrimSuffix(words, word) + word
	}
	return words
}

// fixture is a small cluster in one family, seen from node-a.
type fixture struct {
	family                           service.Family
	node                             *service.Node
	pod, outside                     netip.Addr
	clusterIP, externalIP, ingressIP netip.Addr
	local, remote                    service.Endpoint
}

func newFixture(f service.Family) fixture {
	a := func(v4, v6 string) netip.Addr {
		return netip.MustParseAddr([]string{v4, v6}[f])
	}
	prefixes := []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")}
	at := func(v4, v6 string) netip.AddrPort { return netip.AddrPortFrom(a(v4, v6), 8080) }
	return fixture{
		family:    f,
		node:      &service.Node{NodePorts: service.AnyAddress(), Name: "node-a", Addrs: []netip.Addr{a("192.0.2.10", "2001:db8::10")}, Pods: service.LocalPods{Prefixes: prefixes}},
		pod:       a("10.244.1.50", "fd00:10:244:1::50"),
		outside:   a("203.0.113.9", "2001:db8:113::9"),
		clusterIP: a("10.96.0.10", "fd00:10:96::10"), externalIP: a("198.51.100.7", "2001:db8:51::7"), ingressIP: a("203.0.113.100", "2001:db8:113::100"),
		local:  service.Endpoint{Addr: at("10.244.1.11", "fd00:10:244:1::11"), Local: true},
		remote: service.Endpoint{Addr: at("10.244.2.11", "fd00:10:244:2::11"), Remote: true},
	}
}

// port is a Service port with one frontend of each kind and one endpoint on each of two
// nodes.
func (f fixture) port() *service.Port {
	return &service.Port{
		Name:   service.PortName{Namespace: "shop", Name: "web", Protocol: service.TCP},
		Family: f.family,
		Frontends: []service.Frontend{
			{Kind: service.ClusterIP, Addr: f.clusterIP, Port: 80},
			{Kind: service.NodePort, Port: 30080},
			{Kind: service.ExternalIP, Addr: f.externalIP, Port: 80},
			{Kind: service.LoadBalancerIP, Addr: f.ingressIP, Port: 80},
		},
		Cluster: []service.Endpoint{f.local, f.remote},
	}
}

func (f fixture) snapshot(ports ...*service.Port) *service.Snapshot {
	return service.New(1, f.node, ports)
}

// conn dials a frontend of the port from a pod, the node or outside.
func (f fixture) conn(from string, kind service.Kind) Conn {
	to := map[service.Kind]netip.AddrPort{
		service.ClusterIP:      netip.AddrPortFrom(f.clusterIP, 80),
		service.NodePort:       netip.AddrPortFrom(f.node.Addrs[0], 30080),
		service.ExternalIP:     netip.AddrPortFrom(f.externalIP, 80),
		service.LoadBalancerIP: netip.AddrPortFrom(f.ingressIP, 80),
	}[kind]
	c := Conn{Protocol: service.TCP, To: to, ToNode: kind == service.NodePort}
	switch from {
	case "pod":
		c.From, c.Interface = f.pod, "veth1"
	case "node":
		c.From = f.node.Addrs[0]
	default:
		c.From, c.Interface = f.outside, "eth0"
	}
	return c
}
