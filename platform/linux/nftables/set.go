// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"strings"
	"time"

	"kubeproxy/common/service"
)

// setKind is the result of a lookup in a set.
type setKind uint8

const (
	plainSet   setKind = iota // membership
	verdictMap                // a verdict
	targetMap                 // an address and port to translate to
	addrMap                   // an address to translate to
)

// set describes a named set or map of the table.
type set struct {
	name string
	kind setKind
	key  []field
	// interval means that each element is a range in its last field.
	interval bool
	// timeout, if not 0, makes a set that only rules fill. Its elements expire that long
	// after their last use, and there are at most limit.
	timeout time.Duration
	limit   uint32
}

// clientLimit bounds the clients that one Service port records. The kernel allocates them
// one by one. The bound keeps a scan from filling its memory.
const clientLimit = 1 << 20

// The sets that every table has. Sets with an address in the key serve addresses of
// Services. Those with the prefix nodeport- serve the node's own addresses.
var (
	services  = &set{name: "services", kind: verdictMap, key: []field{daddr, proto, dport}}
	nodePorts = &set{name: "nodeports", kind: verdictMap, key: []field{proto, dport}}

	endpoints         = &set{name: "endpoints", kind: targetMap, key: []field{daddr, proto, dport, slot}}
	nodePortEndpoints = &set{name: "nodeport-endpoints", kind: targetMap, key: []field{proto, dport, slot}}

	// Frontends with externalTrafficPolicy Local, as external clients reach them, and as
	// pods and the node itself do.
	externalClients           = &set{name: "external-clients", kind: verdictMap, key: []field{daddr, proto, dport}}
	internalClients           = &set{name: "internal-clients", kind: verdictMap, key: []field{daddr, proto, dport}}
	nodePortExternalClients   = &set{name: "nodeport-external-clients", kind: verdictMap, key: []field{proto, dport}}
	nodePortInternalClients   = &set{name: "nodeport-internal-clients", kind: verdictMap, key: []field{proto, dport}}
	internalEndpoints         = &set{name: "internal-endpoints", kind: targetMap, key: []field{daddr, proto, dport, slot}}
	nodePortInternalEndpoints = &set{name: "nodeport-internal-endpoints", kind: targetMap, key: []field{proto, dport, slot}}

	// Which frontends have externalTrafficPolicy Local. They are not in services and
	// nodeports: if a verdict led to another verdict map, a kernel would validate the
	// second map once for each element of the first (kernel: net/netfilter/nft_lookup.c,
	// nft_lookup_validate), unless it has commit 8e1a1bc4f5a4 (Linux 6.19).
	externalLocal = &set{name: "external-local", kind: plainSet, key: []field{daddr, proto, dport}}
	nodePortLocal = &set{name: "nodeport-local", kind: plainSet, key: []field{proto, dport}}

	// NodePorts of a protocol for which this process does not listen on loopback addresses.
	unrelayed = &set{name: "nodeport-unrelayed", kind: plainSet, key: []field{proto, dport}}

	// loadBalancerSourceRanges: the restricted frontends, and the permitted sources.
	restricted = &set{name: "restricted", kind: plainSet, key: []field{daddr, proto, dport}}
	sources    = &set{name: "sources", kind: plainSet, key: []field{daddr, proto, dport, saddr}, interval: true}

	clusterIPs = &set{name: "cluster-ips", kind: plainSet, key: []field{daddr}}
	hairpin    = &set{name: "hairpin", kind: plainSet, key: []field{saddr, daddr}}

	// The chain that records the client of a connection, by its original destination.
	affinity         = &set{name: "affinity", kind: verdictMap, key: []field{daddr, proto, dport}}
	nodePortAffinity = &set{name: "nodeport-affinity", kind: verdictMap, key: []field{proto, dport}}
)

var baseSets = []*set{
	services, endpoints, nodePorts, nodePortEndpoints,
	externalClients, internalClients, internalEndpoints, nodePortExternalClients, nodePortInternalClients, nodePortInternalEndpoints,
	externalLocal, nodePortLocal, unrelayed, restricted, sources, clusterIPs, hairpin, affinity, nodePortAffinity,
}

// targetFields are the fields of a value in a targetMap.
var targetFields = []field{daddr, dport}

// valueFields returns the fields of the values in s, or nil if s has verdicts or no
// values.
func (s *set) valueFields() []field {
	switch s.kind {
	case targetMap:
		return targetFields
	case addrMap:
		return targetFields[:1]
	}
	return nil
}

// text returns the declaration of s in the syntax of nft, without elements. With typeof,
// nft can load its own listing again.
func (s *set) text(family service.Family) string {
	var b strings.Builder
	word := "map"
	if s.kind == plainSet {
		word = "set"
	}
	fmt.Fprintf(&b, "\t%s %s {\n\t\ttypeof %s", word, s.name, typeof(s.key, family))
	switch {
	case s.kind == verdictMap:
		b.WriteString(" : verdict")
	case s.kind != plainSet:
		b.WriteString(" : " + typeof(s.valueFields(), family))
	}
	b.WriteString("\n")
	if s.timeout != 0 {
		fmt.Fprintf(&b, "\t\tsize %d\n\t\tflags dynamic,timeout\n\t\ttimeout %s\n", s.limit, seconds(s.timeout))
	}
	if s.interval {
		b.WriteString("\t\tflags interval\n")
	}
	return b.String()
}

func typeof(fields []field, family service.Family) string {
	var parts []string
	for _, f := range fields {
		parts = append(parts, f.text(family))
	}
	return strings.Join(parts, " . ")
}

// seconds formats d, in whole seconds, in a form that nft accepts for any duration.
func seconds(d time.Duration) string { return fmt.Sprintf("%ds", int64(d/time.Second)) }
