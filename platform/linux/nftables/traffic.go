// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/common/traffic"
)

// Connections are counted after their destination was translated, in the set connections.
// The key is the destination that the client dialled and the endpoint. The rules add an
// element when they first see such a pair. They are in chains of type nat, so they run
// once for a connection and cost later packets nothing. What else was possible:
//
//   - A counter on each element of the maps of endpoints. It costs less for a connection,
//     as the map is looked up anyway. But such an element needs Linux 5.7
//     (https://git.kernel.org/torvalds/c/339706bc21c1), each endpoint has one for each of
//     its addresses whether it is used or not, and its count is gone when the endpoint
//     moves to another slot. A client with session affinity is found in another map.
//   - Events of connection tracking: the kernel writes a message for each connection of
//     the node, to a Service or not, and this process has to read it.
//   - A list of connection tracking from time to time: it lacks connections that began
//     and ended in between, and net.netfilter.nf_conntrack_acct, which counts bytes,
//     concerns the whole node.
//
// Packets and bytes are not counted: rules would have to see every packet.

// connections holds the counts.
var connections = &set{name: "connections", kind: plainSet, key: []field{daddr, proto, dport, daddr, dport}, timeout: time.Hour, limit: pairLimit}

// countedFields are the key of connections in rules.
var countedFields = []field{origDaddr, proto, origDport, daddr, dport}

// pairLimit bounds the counts. A pair beyond it is not counted until others were unused
// for an hour. The kernel allocates them one by one.
const pairLimit = 1 << 17

const countChain = "count"

// sets returns the sets that every table has.
func (o Options) sets() []*set {
	if o.CountConnections {
		return append(slices.Clip(baseSets), connections)
	}
	return baseSets
}

// countChains returns the chain that counts a connection. It matches the protocol first,
// because without it nft cannot determine the type of a port.
func countChains(o Options) []*chain {
	if !o.CountConnections {
		return nil
	}
	c := &chain{name: countChain}
	for _, p := range []service.Protocol{service.TCP, service.UDP, service.SCTP} {
		c.rules = append(c.rules, rule{isProto{p}, countConnection{connections}})
	}
	return []*chain{c}
}

// countingRules lead translated connections to countChain. They come before rules that
// end the chain.
func countingRules(o Options) []rule {
	if !o.CountConnections {
		return nil
	}
	return []rule{{translated{}, jumpVerdict(countChain)}}
}

// counterOf decodes a key of connections, false if it is none.
func counterOf(key []byte, f service.Family) (traffic.Counter, bool) {
	if len(key) != keySize(connections.key, f) {
		return traffic.Counter{}, false
	}
	n := daddr.size(f)
	port := func(at int) uint16 { return binary.BigEndian.Uint16(key[at:]) }
	from, _ := netip.AddrFromSlice(key[:n])
	to, _ := netip.AddrFromSlice(key[n+8 : 2*n+8])
	return traffic.Counter{
		Protocol: service.Protocol(key[n]),
		Frontend: netip.AddrPortFrom(from, port(n+4)), Endpoint: netip.AddrPortFrom(to, port(2*n+8)),
	}, true
}
