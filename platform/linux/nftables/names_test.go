// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/test/generate"
)

// long has the maximum length of a Service or namespace name.
var long = strings.Repeat("n", 63)

// unusualPorts have names that the API permits and that nft might reject.
func unusualPorts() []*service.Port {
	names := []service.PortName{
		{Namespace: "shop", Name: "web"},
		{Namespace: "0", Name: "1", Port: "2"},
		{Namespace: "0day-ns", Name: "9front", Port: "80-http"},
		{Namespace: "drop", Name: "accept", Port: "goto"},
		{Namespace: "map", Name: "type-ip-daddr", Port: "counter"},
		{Namespace: "x--y", Name: "a-b--c", Port: "h--p"},
		{Namespace: "n.with.dots", Name: "s.with.dots", Port: "p"},
		{Namespace: long, Name: strings.Repeat("s", 63), Port: strings.Repeat("p", 15)},
		{Namespace: long, Name: strings.Repeat("s", 63), Port: strings.Repeat("p", 14) + "q"},
	}
	var ports []*service.Port
	for i, n := range names {
		n.Protocol = []service.Protocol{service.TCP, service.UDP, service.SCTP}[i%3]
		ports = append(ports, &service.Port{
			Name: n, Affinity: 86400 * time.Second, External: service.PolicyLocal,
			Frontends: []service.Frontend{
				{Kind: service.ClusterIP, Addr: generate.NthAddr("10.96.0.0", i), Port: 65535},
				{Kind: service.NodePort, Port: uint16(30000 + i)},
			},
			Cluster: []service.Endpoint{{Addr: addrPort("10.244.1.1:65535")}, {Addr: addrPort("10.244.1.2:65534")}},
			Local:   []service.Endpoint{{Addr: addrPort("10.244.1.1:65535"), Local: true}},
		})
	}
	return ports
}

// unquotedName matches what nft reads as one word without quotes.
var unquotedName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_./-]*$`)

// affinityNames returns the names of the chains and sets that only p uses.
func affinityNames(p *service.Port) []string {
	var names []string
	for _, s := range affinitySets(p) {
		names = append(names, s.name)
	}
	for _, c := range affinityChains(p, Options{}) {
		names = append(names, c.name)
	}
	return names
}

func TestNamesAreUniqueWordsOfNft(t *testing.T) {
	taken := map[string]bool{}
	for _, s := range baseSets {
		taken[s.name] = true
	}
	for _, c := range append(baseChains(service.IPv4, &service.Node{NodePorts: service.AnyAddress()}, Options{}), baseClasses.chains(Options{})...) {
		taken[c.name] = true
	}
	for _, p := range unusualPorts() {
		names := affinityNames(p)
		if len(names) < 10 {
			t.Errorf("%s has %d objects of its own, want those of two lists", p.Name, len(names))
		}
		for _, n := range names {
			if !unquotedName.MatchString(n) || len(n) > 128 {
				t.Errorf("name %q of %d bytes is not a word of nft", n, len(n))
			}
			if taken[n] {
				t.Errorf("name %q is taken", n)
			}
			taken[n] = true
		}
	}
}

// The readable part identifies the Service. The hash before it never changes between
// versions, because a restarted process finds the clients map by it.
func TestServicePortID(t *testing.T) {
	for _, tt := range []struct {
		name service.PortName
		want string
	}{
		{service.PortName{Namespace: "shop", Name: "web", Protocol: service.TCP}, "-shop/web/tcp"},
		{service.PortName{Namespace: "shop", Name: "web", Port: "http", Protocol: service.UDP}, "-shop/web/udp/http"},
		{service.PortName{Namespace: long, Name: "web", Protocol: service.UDP}, "-" + long + "/web/udp"},
		{service.PortName{Namespace: long, Name: long, Protocol: service.UDP}, "-" + long + "/nnnnnnnn"},
	} {
		id := servicePortID(tt.name)
		if hash, found := strings.CutSuffix(id, tt.want); !found || len(hash) != 8 {
			t.Errorf("clientID(%s) = %q, want eight letters and %q", tt.name, id, tt.want)
		}
	}
	if got, want := servicePortID(service.PortName{Namespace: "shop", Name: "web", Protocol: service.TCP}), "2n6w3cvw-shop/web/tcp"; got != want {
		t.Errorf("clientID = %q, want %q as ever", got, want)
	}
}

func TestComments(t *testing.T) {
	for _, tt := range []struct {
		name service.PortName
		want string
	}{
		{service.PortName{Namespace: "shop", Name: "web", Port: "http"}, "shop/web:http"},
		{service.PortName{Namespace: "shop", Name: "web"}, "shop/web"},
		{service.PortName{Namespace: long, Name: long, Port: "http"}, long + "/" + long[:53] + "..."},
	} {
		if got := comment(tt.name); got != tt.want || len(got) > 128 {
			t.Errorf("comment = %q, want %q", got, tt.want)
		}
	}
}
