// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"fmt"
	"net/netip"
	"os"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

const (
	lanName     = "lan"
	lanBridge   = "br-lan"
	gatewayName = "gateway"
	maxHosts    = 80 // keeps the last numbers of clients below 180
)

// sysctls are set in each namespace before it has any interface. They are written even if
// they are the kernel's defaults: some distributions change them, and a new namespace may
// inherit them.
var sysctls = []struct{ name, value string }{
	{"net/ipv4/conf/all/rp_filter", "2"},
	{"net/ipv4/conf/default/rp_filter", "2"},
	{"net/ipv4/conf/all/accept_redirects", "0"},
	{"net/ipv4/conf/default/accept_redirects", "0"},
	{"net/ipv4/conf/all/send_redirects", "0"},
	{"net/ipv4/conf/default/send_redirects", "0"},
	{"net/ipv6/conf/all/disable_ipv6", "0"},
	{"net/ipv6/conf/default/disable_ipv6", "0"},
	{"net/ipv6/conf/all/accept_redirects", "0"},
	{"net/ipv6/conf/default/accept_redirects", "0"},
	{"net/ipv6/conf/default/accept_ra", "0"},
	{"net/ipv6/conf/default/accept_dad", "0"},
	// A refusal of UDP is an ICMP message. A test may cause many in a second, and each
	// must arrive. The masks select the ICMP types that are rate limited, per destination
	// and for the whole system: here none, and one that is no error. See icmp_ratemask in
	// https://docs.kernel.org/networking/ip-sysctl.html
	{"net/ipv4/icmp_ratemask", "0"},
	{"net/ipv6/icmp/ratemask", "128"},
	// A load opens many thousand connections from one address. NodePorts and the ports of
	// the proxy itself, 10249 and 10256, are below the range, and so are all others that
	// a test may listen on. Reserving them within the range would be slow: every
	// twentieth connection would search for the first port behind them, one after the
	// other.
	{"net/ipv4/ip_local_port_range", fmt.Sprintf("%d %d", firstPort, lastPort)},
}

// routing makes a namespace forward.
var routing = []struct{ name, value string }{
	{"net/ipv4/ip_forward", "1"},
	{"net/ipv6/conf/all/forwarding", "1"},
}

// defaultRoutes are the destinations of default routes.
var defaultRoutes = []netip.Prefix{
	netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0),
}

func (h *Host) setSysctls(list []struct{ name, value string }) error {
	return h.Do(func() error {
		for _, s := range list {
			if err := os.WriteFile("/proc/sys/"+s.name, []byte(s.value), 0); err != nil {
				return fmt.Errorf("set sysctl %s=%s: %w", s.name, s.value, err)
			}
		}
		return nil
	})
}

// addHost creates a namespace with only a loopback interface.
func (l *Lab) addHost(name string) (*Host, error) {
	h, err := newHost(name)
	if err != nil {
		return nil, fmt.Errorf("make namespace of %s: %w", name, err)
	}
	l.hosts[name] = h
	if err := h.setSysctls(sysctls); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return h, h.linkUp("lo")
}

// addLANHost creates a namespace on the LAN.
func (l *Lab) addLANHost(name string, number int) (*Host, error) {
	h, err := l.addHost(name)
	if err != nil {
		return nil, err
	}
	h.IPv4 = netip.AddrFrom4([4]byte{192, 0, 2, byte(number)})
	h.IPv6 = netip.MustParseAddr(fmt.Sprintf("2001:db8:2::%d", number))
	port, err := l.lan.addPair("lan-"+name, h, "eth0")
	if err != nil {
		return nil, err
	}
	if err := l.lan.plug(port, lanBridge); err != nil {
		return nil, err
	}
	return h, h.addAddrs("eth0", lanPrefixes(h))
}

// addNode creates a router on the LAN.
func (l *Lab) addNode(name string, number int) (*Host, error) {
	h, err := l.addLANHost(name, number)
	if err != nil {
		return nil, err
	}
	return h, h.setSysctls(routing)
}

// addClient creates a host outside the cluster with a default route to node-a. It reaches
// the pods of node-b directly, as their answers take the direct route.
func (l *Lab) addClient(name string, number int) error {
	h, err := l.addLANHost(name, number)
	if err != nil {
		return err
	}
	if err := h.addDefault(l.Node); err != nil {
		return err
	}
	return h.addRoutes(podPrefixes(2), l.Other)
}

// connectNodes gives each node, and the gateway, routes to the nodes' pods, and default
// routes as in the package comment.
func (l *Lab) connectNodes() error {
	for _, r := range []struct {
		from, via *Host
		net       int
	}{{l.Node, l.Other, 2}, {l.Other, l.Node, 1}, {l.gateway, l.Node, 1}, {l.gateway, l.Other, 2}} {
		if err := r.from.addRoutes(podPrefixes(r.net), r.via); err != nil {
			return err
		}
	}
	if err := l.Node.addDefault(l.gateway); err != nil {
		return err
	}
	if err := l.Other.addDefault(l.Node); err != nil {
		return err
	}
	return l.gateway.prohibitRest(l.Other)
}

// prohibitRest answers all packets that it should forward with an ICMP message. A
// prohibit route would do the same, but only about once a second (kernel: ip_error in
// net/ipv4/route.c).
func (h *Host) prohibitRest(anywhere *Host) error {
	conn, err := nftables.New(nftables.WithNetNSFd(int(h.ns)))
	if err != nil {
		return fmt.Errorf("%s: open nftables: %w", h.Name, err)
	}
	table := conn.AddTable(&nftables.Table{Name: "gateway", Family: nftables.TableFamilyINet})
	chain := conn.AddChain(&nftables.Chain{
		Name: "forward", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter,
	})
	conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED},
	}})
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("%s: add nftables rule: %w", h.Name, err)
	}
	// A packet without a route would not reach the rule.
	return h.addDefault(anywhere)
}

// pod describes the place of a pod: its node, the number net of that node's pod network,
// and a bridge, which may be empty.
type pod struct {
	name   string
	node   *Host
	net    int
	bridge string
}

// addPod creates a pod with a single address per family, no on-link prefix and one route,
// to the node. CNI plugins that route do the same, so that all its traffic passes the
// node's rules.
func (l *Lab) addPod(p pod, number int) error {
	h, err := l.addHost(p.name)
	if err != nil {
		return err
	}
	h.IPv4 = netip.AddrFrom4([4]byte{10, 244, byte(p.net), byte(number)})
	h.IPv6 = netip.MustParseAddr(fmt.Sprintf("fd00:10:244:%d::%d", p.net, number))
	port, err := p.node.addPair("veth-"+p.name, h, "eth0")
	if err != nil {
		return err
	}
	gateway := podGateway(p.net)
	dev := port.Attrs().Name
	if p.bridge != "" {
		dev = p.bridge
		err = p.node.plugPod(port, p.bridge)
	} else {
		err = p.node.addAddrs(dev, singles(gateway))
	}
	if err != nil {
		return err
	}
	if err := h.addAddrs("eth0", singles(h)); err != nil {
		return err
	}
	if err := p.node.addLinkRoutes(dev, singles(h)); err != nil {
		return err
	}
	if err := h.addLinkRoutes("eth0", singles(gateway)); err != nil {
		return err
	}
	return h.addDefault(gateway)
}

// podGateway holds the addresses of the node's end of every pod's link.
func podGateway(net int) *Host {
	return &Host{
		Name: "pod gateway",
		IPv4: netip.AddrFrom4([4]byte{10, 244, byte(net), 1}),
		IPv6: netip.MustParseAddr(fmt.Sprintf("fd00:10:244:%d::1", net)),
	}
}

func podPrefixes(net int) []netip.Prefix {
	gw := podGateway(net)
	return []netip.Prefix{netip.PrefixFrom(gw.IPv4, 24).Masked(), netip.PrefixFrom(gw.IPv6, 64).Masked()}
}

func lanPrefixes(h *Host) []netip.Prefix {
	return []netip.Prefix{netip.PrefixFrom(h.IPv4, 24), netip.PrefixFrom(h.IPv6, 64)}
}

// singles returns h's addresses as prefixes of a single address.
func singles(h *Host) []netip.Prefix {
	return []netip.Prefix{netip.PrefixFrom(h.IPv4, 32), netip.PrefixFrom(h.IPv6, 128)}
}
