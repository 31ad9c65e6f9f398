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

// Names of chains. Prefixes end with a dash.
const (
	servicesChain    = "KUBE-SERVICES"
	nodePortsChain   = "KUBE-NODEPORTS"
	postroutingChain = "KUBE-POSTROUTING"
	markChain        = "KUBE-MARK-MASQ"
	markClusterChain = "KUBE-MARK-CLUSTER"
	forwardChain     = "KUBE-FORWARD"
	refuseChain      = "KUBE-REFUSE"
	relayChain       = "KUBE-PORTALS" // protects the address of a relay
	healthChain      = "KUBE-HEALTH-CHECKS"
	healthPortsChain = "KUBE-HEALTH-PORTS"

	// With a relay, these are the roots in table nat, as in mode userspace of
	// kube-proxy: for incoming packets and for packets of the node itself.
	portalsInChain    = "KUBE-PORTALS-CONTAINER"
	portalsOutChain   = "KUBE-PORTALS-HOST"
	nodePortsInChain  = "KUBE-NODEPORT-CONTAINER"
	nodePortsOutChain = "KUBE-NODEPORT-HOST"

	clusterPrefix  = "KUBE-SVC-" // the endpoints for policy Cluster
	localPrefix    = "KUBE-SVL-" // the endpoints for policy Local
	externalPrefix = "KUBE-EXT-" // packets to an external address
	firewallPrefix = "KUBE-FW-"  // the same, with allowed sources
	recentPrefix   = "KUBE-SEP-" // not a chain but a list of clients
	addrPrefix     = "KUBE-IP-"  // a branch of the tree of addresses
	portPrefix     = "KUBE-NP-"  // a branch of the tree of NodePorts
	healthPrefix   = "KUBE-HC-"  // a branch of the tree of healthCheckNodePorts
)

// proxyChainNames and proxyChainPrefixes are the names that only a service proxy gives
// to its chains. Some of them are not used by this proxy. Chains of kubelet, such as
// KUBE-MARK-DROP, KUBE-FIREWALL and KUBE-KUBELET-CANARY, are not among them.
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

// entryChains are the chains to which some version of a service proxy jumps from the
// built-in chains.
var entryChains = []string{
	servicesChain, nodePortsChain, postroutingChain, forwardChain,
	portalsInChain, portalsOutChain, nodePortsInChain, nodePortsOutChain, healthChain,
}

// isOwned reports whether a chain belongs to the service proxy of the node.
func (i id) isOwned() bool {
	if slices.Contains(proxyChainNames[i.table], i.name) || slices.Contains(upstreamChainNames[i.table], i.name) {
		return true
	}
	return i.table != mangle && i.isBranch() && !IPVSCompanion.owns(i) || i.table == nat &&
		slices.ContainsFunc(proxyChainPrefixes, func(p string) bool { return strings.HasPrefix(i.name, p) })
}

// isBranch reports whether a chain is a branch of a tree, not its root. kube-proxy has
// no such chains, so the rest of the name must match, too: other names with the same
// prefix belong to other components.
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

// isTree reports whether a chain is part of a tree. The roots for packets of the node
// itself are left out, because they hold the same entries as those for incoming packets.
func (i id) isTree() bool {
	return slices.Contains([]string{servicesChain, nodePortsChain, portalsInChain, nodePortsInChain, healthPortsChain, "KUBE-EXTERNAL-SERVICES", ipvsTargetsChain}, i.name) ||
		i.isBranch()
}

const (
	hashLen      = 16
	base32Digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
)

// hashedName returns prefix with hashLen characters of a hash of parts.
func hashedName(prefix string, parts ...string) string {
	s := sha256.Sum256([]byte(strings.Join(parts, "")))
	return prefix + base32.StdEncoding.EncodeToString(s[:])[:hashLen]
}

// portChainName returns the name of a chain of p.
func portChainName(prefix string, p *service.Port) string {
	return hashedName(prefix, p.Name.String(), p.Name.Protocol.String())
}

// addrBranch returns the name of the branch for the addresses in p. prefix begins the
// names of all branches of the tree.
func addrBranch(prefix string, p netip.Prefix) string {
	if p.Addr().Is4() {
		return prefix + p.String()
	}
	return hashedName(prefix, p.String())
}

// portBranch returns the name of the branch for the ports from low to high. prefix
// begins the names of all branches of the tree.
func portBranch(prefix string, proto service.Protocol, low, high uint16) string {
	name := prefix + strings.ToUpper(proto.String())
	if low == 0 && high == 1<<16-1 {
		return name
	}
	return fmt.Sprintf("%s-%d-%d", name, low, high)
}
