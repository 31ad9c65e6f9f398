// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"kubeproxy/common/service"
)

// Names of chains. Those with a dash at their end are followed by what tells
// one from the other.
const (
	servicesChain    = "KUBE-SERVICES"
	nodePortsChain   = "KUBE-NODEPORTS"
	postroutingChain = "KUBE-POSTROUTING"
	markChain        = "KUBE-MARK-MASQ"
	markClusterChain = "KUBE-MARK-CLUSTER"
	forwardChain     = "KUBE-FORWARD"
	refuseChain      = "KUBE-REFUSE"
	relayChain       = "KUBE-PORTALS" // guards the address of a relay
	healthChain      = "KUBE-HEALTH-CHECKS"
	healthPortsChain = "KUBE-HEALTH-PORTS"

	// Before a relay, these are the roots in table nat, as in mode userspace of
	// kube-proxy: for packets that come in and for those of the node itself.
	portalsInChain    = "KUBE-PORTALS-CONTAINER"
	portalsOutChain   = "KUBE-PORTALS-HOST"
	nodePortsInChain  = "KUBE-NODEPORT-CONTAINER"
	nodePortsOutChain = "KUBE-NODEPORT-HOST"

	clusterPrefix  = "KUBE-SVC-" // one of the endpoints for policy Cluster
	localPrefix    = "KUBE-SVL-" // one of those for policy Local
	externalPrefix = "KUBE-EXT-" // what enters by an external address
	firewallPrefix = "KUBE-FW-"  // the same, from some sources only
	recentPrefix   = "KUBE-SEP-" // no chain, but a list of clients
	addrPrefix     = "KUBE-IP-"  // a branch of the tree of addresses
	portPrefix     = "KUBE-NP-"  // a branch of the tree of NodePorts
	healthPrefix   = "KUBE-HC-"  // a branch of the tree of healthCheckNodePorts
)

// proxyChainNames and proxyChainPrefixes are the names that only a service proxy
// gives to its chains, among them some that no chain of ours has. What kubelet
// keeps, such as KUBE-MARK-DROP, KUBE-FIREWALL and KUBE-KUBELET-CANARY, is
// not among them.
var (
	proxyChainNames = map[string][]string{
		nat: {servicesChain, nodePortsChain, postroutingChain, markChain, markClusterChain,
			portalsInChain, portalsOutChain, nodePortsInChain, nodePortsOutChain},
		filter: {servicesChain, nodePortsChain, forwardChain, refuseChain, "KUBE-EXTERNAL-SERVICES", "KUBE-PROXY-FIREWALL",
			relayChain, healthChain, healthPortsChain, localnetMark.name, "KUBE-NODEPORT-NON-LOCAL"},
	}
	proxyChainPrefixes = []string{
		clusterPrefix, localPrefix, externalPrefix, firewallPrefix, recentPrefix, "KUBE-XLB-",
	}
)

// entryChains are the chains that some version of a service proxy leads to from the
// system's.
var entryChains = []string{
	servicesChain, nodePortsChain, postroutingChain, forwardChain,
	portalsInChain, portalsOutChain, nodePortsInChain, nodePortsOutChain, healthChain,
}

// isOwned reports that a chain belongs to the service proxy of the node.
func (i id) isOwned() bool {
	if slices.Contains(proxyChainNames[i.table], i.name) || slices.Contains(upstreamChainNames[i.table], i.name) {
		return true
	}
	return i.table != mangle && i.isBranch() && !IPVSCompanion.owns(i) || i.table == nat &&
		slices.ContainsFunc(proxyChainPrefixes, func(p string) bool { return strings.HasPrefix(i.name, p) })
}

// isBranch reports that a chain is part of a tree, and not its root. kube-proxy
// has no such chains, so what only begins like one of ours is somebody else's.
func (i id) isBranch() bool {
	of, found := strings.CutPrefix(i.name, addrPrefix)
	if !found {
		of, found = strings.CutPrefix(i.name, ipvsAddrPrefix)
	}
	if found {
		p, err := netip.ParsePrefix(of)
		return err == nil && p.Addr().Is4() || len(of) == hashLen && strings.Trim(of, base32Digits) == ""
	}
	of, found = strings.CutPrefix(i.name, portPrefix)
	if !found {
		of, found = strings.CutPrefix(i.name, healthPrefix)
	}
	proto, _, _ := strings.Cut(of, "-")
	return found && slices.Contains([]string{"TCP", "UDP", "SCTP"}, proto)
}

// isTree reports that a chain is part of a tree. The roots for what the node
// itself sends hold nothing else than those for what comes in.
func (i id) isTree() bool {
	return slices.Contains([]string{servicesChain, nodePortsChain, portalsInChain, nodePortsInChain, healthPortsChain, "KUBE-EXTERNAL-SERVICES", ipvsTargetsChain}, i.name) ||
		i.isBranch()
}

const (
	hashLen      = 16
	base32Digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
)

// hashedName returns prefix with hashLen characters that stand for parts.
func hashedName(prefix string, parts ...string) string {
	s := sha256.Sum256([]byte(strings.Join(parts, "")))
	return prefix + base32.StdEncoding.EncodeToString(s[:])[:hashLen]
}

// portChainName returns the name of a chain of p.
func portChainName(prefix string, p *service.Port) string {
	return hashedName(prefix, p.Name.String(), p.Name.Protocol.String())
}

// addrBranch names the branch of the addresses in p, in a tree whose branches
// have names that begin with prefix.
func addrBranch(prefix string, p netip.Prefix) string {
	if p.Addr().Is4() {
		return prefix + p.String()
	}
	return hashedName(prefix, p.String())
}

// portBranch names the branch of the ports from low to high, in a tree whose
// branches have names that begin with prefix.
func portBranch(prefix string, proto service.Protocol, low, high uint16) string {
	name := prefix + strings.ToUpper(proto.String())
	if low == 0 && high == 1<<16-1 {
		return name
	}
	return fmt.Sprintf("%s-%d-%d", name, low, high)
}
