// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"strings"
	"time"

	"kubeproxy/common/service"
)

// setKind is what looking a key up in a set yields.
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
	// interval means that each element is a range of its last field.
	interval bool
	// timeout, if not 0, makes a map that rules fill: its elements expire so
	// long after they were last used, and nobody else writes it.
	timeout time.Duration
}

// clientLimit bounds the clients that one Service port remembers. The kernel
// allocates as they come; the bound keeps a scan from filling its memory.
const clientLimit = 1 << 20

// The sets that every table has. Those with an address in the key serve
// addresses of Services, those named nodeport- the node's own addresses.
var (
	services  = &set{name: "services", kind: verdictMap, key: []field{daddr, proto, dport}}
	nodePorts = &set{name: "nodeports", kind: verdictMap, key: []field{proto, dport}}

	endpoints         = &set{name: "endpoints", kind: targetMap, key: []field{daddr, proto, dport, slot}}
	nodePortEndpoints = &set{name: "nodeport-endpoints", kind: targetMap, key: []field{proto, dport, slot}}

	// What externalTrafficPolicy Local does with clients outside, and with
	// pods and the node itself.
	externalClients           = &set{name: "external-clients", kind: verdictMap, key: []field{daddr, proto, dport}}
	internalClients           = &set{name: "internal-clients", kind: verdictMap, key: []field{daddr, proto, dport}}
	nodePortExternalClients   = &set{name: "nodeport-external-clients", kind: verdictMap, key: []field{proto, dport}}
	nodePortInternalClients   = &set{name: "nodeport-internal-clients", kind: verdictMap, key: []field{proto, dport}}
	internalEndpoints         = &set{name: "internal-endpoints", kind: targetMap, key: []field{daddr, proto, dport, slot}}
	nodePortInternalEndpoints = &set{name: "nodeport-internal-endpoints", kind: targetMap, key: []field{proto, dport, slot}}

	// Where externalTrafficPolicy is Local. These are not in services and
	// nodeports, since a verdict that led to another verdict map would have
	// the kernel validate one map for each element of the other.
	externalLocal = &set{name: "external-local", kind: plainSet, key: []field{daddr, proto, dport}}
	nodePortLocal = &set{name: "nodeport-local", kind: plainSet, key: []field{proto, dport}}

	// loadBalancerSourceRanges: what is restricted, and who may pass.
	restricted = &set{name: "restricted", kind: plainSet, key: []field{daddr, proto, dport}}
	sources    = &set{name: "sources", kind: plainSet, key: []field{daddr, proto, dport, saddr}, interval: true}

	clusterIPs = &set{name: "cluster-ips", kind: plainSet, key: []field{daddr}}
	hairpin    = &set{name: "hairpin", kind: plainSet, key: []field{saddr, daddr}}

	// Which chain remembers the client of a connection, by its original
	// destination.
	affinity         = &set{name: "affinity", kind: verdictMap, key: []field{daddr, proto, dport}}
	nodePortAffinity = &set{name: "nodeport-affinity", kind: verdictMap, key: []field{proto, dport}}
)

var baseSets = []*set{
	services, endpoints, nodePorts, nodePortEndpoints,
	externalClients, internalClients, internalEndpoints, nodePortExternalClients, nodePortInternalClients, nodePortInternalEndpoints,
	externalLocal, nodePortLocal, restricted, sources, clusterIPs, hairpin, affinity, nodePortAffinity,
}

// targetFields lists what a targetMap yields.
var targetFields = []field{daddr, dport}

// valueFields lists the fields of the values in s, nil if they are verdicts or it
// has none.
func (s *set) valueFields() []field {
	switch s.kind {
	case targetMap:
		return targetFields
	case addrMap:
		return targetFields[:1]
	}
	return nil
}

// text is the declaration of s in the language of nft, without elements.
// Declared by typeof, a listing can be loaded again.
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
		fmt.Fprintf(&b, "\t\tsize %d\n\t\tflags dynamic,timeout\n\t\ttimeout %s\n", clientLimit, seconds(s.timeout))
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

// seconds writes d, whole seconds, as nft does for any duration.
func seconds(d time.Duration) string { return fmt.Sprintf("%ds", int64(d/time.Second)) }
