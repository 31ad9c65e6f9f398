// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"net/netip"
	"strings"

	"kubeproxy/common/service"
)

// In mode ipvs, kube-proxy assigns the addresses of Services to the interface Device. It
// has virtual servers on these addresses and, for NodePorts, on the node's addresses.
// Its iptables rules match ipsets, which contain the NodePorts.

// upstreamState is what kube-proxy's mode ipvs left for one family, without virtual
// servers.
type upstreamState struct {
	addrs map[netip.Addr]bool // on Device
	node  map[netip.Addr]bool // on other interfaces
	ports map[nodePort]bool
	sets  []string // names
}

type nodePort struct {
	proto service.Protocol
	port  uint16
}

// owns reports whether kube-proxy made the virtual server k, as far as that can be
// determined.
func (u *upstreamState) owns(k key) bool {
	return u.addrs[k.addr] || u.node[k.addr] && u.ports[nodePort{k.proto, k.port}]
}

// upstreamSets are the ipsets of any version of kube-proxy for IPv4, with their types.
var upstreamSets = map[string]string{
	"KUBE-LOOP-BACK":                 "hash:ip,port,ip",
	"KUBE-CLUSTER-IP":                "hash:ip,port",
	"KUBE-EXTERNAL-IP":               "hash:ip,port",
	"KUBE-EXTERNAL-IP-LOCAL":         "hash:ip,port",
	"KUBE-LOAD-BALANCER":             "hash:ip,port",
	"KUBE-LOAD-BALANCER-LOCAL":       "hash:ip,port",
	"KUBE-LOAD-BALANCER-FW":          "hash:ip,port",
	"KUBE-LOAD-BALANCER-SOURCE-IP":   "hash:ip,port,ip",
	"KUBE-LOAD-BALANCER-SOURCE-CIDR": "hash:ip,port,net",
	"KUBE-NODE-PORT-TCP":             "bitmap:port",
	"KUBE-NODE-PORT-LOCAL-TCP":       "bitmap:port",
	"KUBE-NODE-PORT-UDP":             "bitmap:port",
	"KUBE-NODE-PORT-LOCAL-UDP":       "bitmap:port",
	"KUBE-NODE-PORT-SCTP":            "bitmap:port",
	"KUBE-NODE-PORT-LOCAL-SCTP":      "bitmap:port",
	"KUBE-NODE-PORT-SCTP-HASH":       "hash:ip,port",
	"KUBE-NODE-PORT-LOCAL-SCTP-HASH": "hash:ip,port",
	"KUBE-HEALTH-CHECK-NODE-PORT":    "bitmap:port",
	"KUBE-IPVS-IPS":                  "hash:ip",
}

// longestSet is the maximum length of the name of an ipset (kernel:
// include/uapi/linux/netfilter/ipset/ip_set.h, IPSET_MAXNAMELEN). kube-proxy cuts longer
// ones.
const longestSet = 31

// upstreamSet reports whether kube-proxy has an ipset of this name and type for f. It
// returns the protocol if the set contains NodePorts, 0 otherwise.
func upstreamSet(f service.Family, name, kind string) (service.Protocol, bool) {
	for of, has := range upstreamSets {
		is := of
		if f == service.IPv6 {
			is = "KUBE-6-" + strings.TrimPrefix(of, "KUBE-")
		}
		if is = is[:min(len(is), longestSet)]; is != name || has != kind {
			continue
		}
		words, found := strings.CutPrefix(of, "KUBE-NODE-PORT-")
		if !found {
			return 0, true
		}
		switch strings.TrimSuffix(strings.TrimPrefix(words, "LOCAL-"), "-HASH") {
		case "TCP":
			return service.TCP, true
		case "UDP":
			return service.UDP, true
		}
		return service.SCTP, true
	}
	return 0, false
}

// ownedServers returns what in s kube-proxy made and may be removed.
func (u *upstreamState) ownedServers(s *state, o Options) ownedServers {
	e := ownedServers{addrOps: map[netip.Addr]op{}}
	for _, k := range sortedKeys(s.servers) {
		if l := s.servers[k]; !l.owned() && u.owns(k) && !o.excludes(k.addr) {
			e.servers = append(e.servers, k)
		}
	}
	for a := range u.addrs {
		if !o.excludes(a) {
			e.addrOps[a] = op{verb: delAddr, route: localRoute{addr: a}}
		}
	}
	return e
}
