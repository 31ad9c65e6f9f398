// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// ErrWaiting means that an object of another owner, usually the network, does not exist yet.
var ErrWaiting = reconcile.ErrWaiting

// NetworkChoice is the chosen network. Log has the reason for each candidate in a sentence.
type NetworkChoice struct {
	Network Network
	Log     []string
}

// ChooseNetwork returns the network for Services: the configured one, that in KUBE_NETWORK, that of
// the node's pods, that with its podCIDR, that with routes to pods of other nodes, or the only one.
// Overlays of flannel have a second one, External, from the start (flannel-io/flannel#1111).
func ChooseNetwork(l Listing, o Options, podCIDRs []netip.Prefix) (NetworkChoice, error) {
	for _, given := range []struct{ name, by string }{
		{o.NetworkName, "--network-name or winkernel.networkName"}, {o.EnvName, "the environment variable KUBE_NETWORK"},
	} {
		if given.name != "" {
			return namedNetwork(l, given.name, given.by)
		}
	}
	var c NetworkChoice
	var fit []Network
	for _, n := range l.Networks {
		if !slices.Contains(Kinds, n.Kind) {
			c.logf("Network %q is not for Services: its type is %s, not %s", n.Name, n.Kind, kindNames())
			continue
		}
		fit = append(fit, n)
	}
	slices.SortFunc(fit, func(a, b Network) int { return cmp.Compare(a.Name, b.Name) })
	if len(fit) == 0 {
		return c, fmt.Errorf("%w for a network for pods, of type %s; there is %s. The network plugin makes it; if it has another name or type, set --network-name", ErrWaiting, kindNames(), networkNames(l))
	}
	pods := countPods(l)
	hasPods := func(n Network) bool { return pods[n.ID] > 0 }
	anyPods := slices.ContainsFunc(fit, hasPods)
	for _, sign := range []struct {
		of        func(Network) bool
		has, lack string
	}{
		{hasPods, "endpoints of pods are in it", "no pod uses it"},
		{func(n Network) bool { return n.hasOneOf(podCIDRs) }, "it has the podCIDR of the Node", "the podCIDR of the Node is in another one"},
		{func(n Network) bool { return len(n.Routes) > 0 && !anyPods }, "it has routes to pods of other nodes", "it has no routes to pods of other nodes"},
		{func(Network) bool { return len(fit) == 1 }, "it is the only candidate", ""},
	} {
		chosen := slices.IndexFunc(fit, sign.of)
		if chosen < 0 || slices.ContainsFunc(fit[chosen+1:], sign.of) {
			continue
		}
		c.Network = fit[chosen]
		for _, n := range slices.Delete(fit, chosen, chosen+1) {
			c.logf("Network %q is not for Services: %s", n.Name, sign.lack)
		}
		c.logf("Network %q (%s) is for Services: %s", c.Network.Name, c.Network.Kind, sign.has)
		return c, nil
	}
	err := fmt.Errorf("several networks could be the one for pods: %s; set --network-name to one of them", candidateNames(fit, pods))
	if !anyPods {
		err = fmt.Errorf("%w for a pod: %w", ErrWaiting, err)
	}
	return c, err
}

// hasOneOf reports whether a subnet of n and one of ranges are within each other.
func (n *Network) hasOneOf(ranges []netip.Prefix) bool {
	return slices.ContainsFunc(n.Subnets, func(s netip.Prefix) bool { return slices.ContainsFunc(ranges, s.Overlaps) })
}

func (c *NetworkChoice) logf(format string, args ...any) {
	c.Log = append(c.Log, fmt.Sprintf(format, args...))
}

func namedNetwork(l Listing, name, by string) (NetworkChoice, error) {
	i := slices.IndexFunc(l.Networks, func(n Network) bool { return n.Name == name })
	if i < 0 {
		i = slices.IndexFunc(l.Networks, func(n Network) bool { return strings.EqualFold(n.Name, name) })
	}
	if i < 0 {
		return NetworkChoice{}, fmt.Errorf("%w for network %q, which %s names; there is %s", ErrWaiting, name, by, networkNames(l))
	}
	n := l.Networks[i]
	if !slices.Contains(Kinds, n.Kind) {
		return NetworkChoice{}, fmt.Errorf("network %q, which %s names, is of type %s: want %s; there is %s", n.Name, by, n.Kind, kindNames(), networkNames(l))
	}
	c := NetworkChoice{Network: n}
	c.logf("Network %q (%s) is for Services: %s names it", n.Name, n.Kind, by)
	return c, nil
}

// countPods counts the local endpoints by network.
func countPods(l Listing) map[string]int {
	pods := map[string]int{}
	for _, e := range l.Endpoints {
		if !e.Remote && e.Name != sourceVIPName && len(e.Addrs) > 0 {
			pods[e.Network]++
		}
	}
	return pods
}

func kindNames() string {
	var names []string
	for _, k := range Kinds {
		names = append(names, string(k))
	}
	return strings.Join(names[:len(names)-1], ", ") + " or " + names[len(names)-1]
}

func networkNames(l Listing) string {
	var names []string
	for _, n := range l.Networks {
		names = append(names, fmt.Sprintf("%q (%s)", n.Name, n.Kind))
	}
	if len(names) == 0 {
		return "no network at all"
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

func candidateNames(fit []Network, pods map[string]int) string {
	var names []string
	for _, n := range fit {
		names = append(names, fmt.Sprintf("%q (%s, %d endpoints of pods)", n.Name, n.Kind, pods[n.ID]))
	}
	return strings.Join(names, ", ")
}

// ChooseSourceVIP returns the source address of load balancers on an overlay, and the endpoint to
// create if it is not reserved yet. HNS chooses the address if that has none.
func ChooseSourceVIP(l Listing, n Network, given netip.Addr) (netip.Addr, *Endpoint, error) {
	if given.IsValid() {
		if err := checkSourceVIP(l, n, given); err != nil {
			return netip.Addr{}, nil, fmt.Errorf("--source-vip or winkernel.sourceVip: %w", err)
		}
	}
	reserve := Endpoint{Name: sourceVIPName, Network: n.ID}
	var calico netip.Addr
	for _, e := range l.Endpoints {
		if e.Network != n.ID || e.Remote || len(e.Addrs) == 0 {
			continue
		}
		switch {
		case given.IsValid() && e.HasAddr(given):
			return given, nil, nil
		case !given.IsValid() && e.Name == sourceVIPName:
			return e.Addrs[0], nil, nil
		case e.Name == CalicoVIPName && e.Addrs[0].Is4():
			calico = e.Addrs[0]
		}
	}
	switch {
	case given.IsValid():
		reserve.Addrs = []netip.Addr{given}
		return given, &reserve, nil
	case calico.IsValid():
		return calico, nil, nil
	}
	return netip.Addr{}, &reserve, nil
}

// lastFree returns the last address of the network's first IPv4 subnet that nothing in l has. An
// IPAM that does not ask HNS, such as host-local, begins at the other end.
func lastFree(l Listing, n Network) netip.Addr {
	i := slices.IndexFunc(n.Subnets, func(p netip.Prefix) bool { return p.Addr().Is4() })
	if i < 0 {
		return netip.Addr{}
	}
	subnet := n.Subnets[i].Masked()
	for a := broadcastAddr(subnet).Prev(); subnet.Contains(a); a = a.Prev() {
		taken := slices.ContainsFunc(l.Endpoints, func(e Endpoint) bool { return e.Network == n.ID && e.HasAddr(a) })
		if checkSourceVIP(l, n, a) == nil && !taken {
			return a
		}
	}
	return netip.Addr{}
}

func checkSourceVIP(l Listing, n Network, given netip.Addr) error {
	if !given.Is4() {
		return fmt.Errorf("%s is an IPv6 address: want an IPv4 address of a subnet of network %q, %v", given, n.Name, n.Subnets)
	}
	i := slices.IndexFunc(n.Subnets, func(p netip.Prefix) bool { return p.Contains(given) })
	if i < 0 {
		return fmt.Errorf("%s is in no subnet of network %q: want an address in one of %v that no pod gets, or leave it out and one is reserved", given, n.Name, n.Subnets)
	}
	subnet := n.Subnets[i].Masked()
	switch {
	case given == subnet.Addr(), given == subnet.Addr().Next(), slices.Contains(n.Gateways, given), given == broadcastAddr(subnet):
		return fmt.Errorf("%s is reserved in %s (network, gateway or broadcast address): want another one, or leave it out and one is reserved", given, subnet)
	}
	for _, e := range l.Endpoints {
		what := "remote endpoint " + e.ID
		switch {
		case e.Network != n.ID || !e.HasAddr(given):
			continue
		case e.usedByPod():
			what = fmt.Sprintf("a pod, as endpoint %s, %q", e.ID, e.Name)
		case !e.Remote: // reserved, by us or by another process for us
			continue
		}
		return fmt.Errorf("%s is taken by %s: want one that is free, or leave it out and one is reserved", given, what)
	}
	return nil
}

// broadcastAddr returns the broadcast address of an IPv4 prefix.
func broadcastAddr(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	return netip.AddrFrom4(b)
}

// binding is what a Backend is for: the HNS of a node, in one family, with the operator's settings.
type binding struct {
	host    *Host
	family  service.Family
	options Options
	// hostMAC returns the hardware address of the interface with an address.
	hostMAC func(netip.Addr) (string, error)
}

// discover returns the site for l, and the endpoint of the source VIP if it does not exist yet.
func (b *binding) discover(l Listing, node *service.Node) (Site, *Endpoint, error) {
	s := Site{Version: l.Version, Node: node, Options: b.options}
	c, err := ChooseNetwork(l, b.options, node.PodCIDRs)
	for _, text := range c.Log {
		b.host.report(text)
	}
	if err != nil {
		return s, nil, err
	}
	s.Network = c.Network
	s.NodeIP = nodeIP(node, &s.Network, b.family)
	if p := s.Network.Provider; s.Network.Kind == Overlay && p.IsValid() && service.FamilyOf(p) == b.family && s.NodeIP.IsValid() && p != s.NodeIP {
		b.host.report(fmt.Sprintf("Network %q sends from %s, and the address of the Node is %s: the network plugin may have chosen another adapter than kubelet", s.Network.Name, p, s.NodeIP))
	}
	s.Unavailable = s.unavailable(b.family)
	if b.options.DSR && !s.Version.Features().DSR {
		b.host.report(fmt.Sprintf("--enable-dsr or winkernel.enableDSR has no effect: HNS %s has no direct server return: want Windows Server 2019 with its updates, or 2022 or newer; or set it to false. Services work without it", s.Version))
	}
	if s.Unavailable == "" && slices.ContainsFunc(node.NodePortPrefixes(b.family), func(p netip.Prefix) bool { return p.Bits() > 0 }) {
		b.host.report(fmt.Sprintf("nodePortAddresses apply on Windows to health checks of Services only: NodePorts answer on every %s address of the node", b.family))
	}
	if s.Network.Kind != Overlay {
		// Without a source VIP, HNS of some builds of Windows Server 2019 uses the load
		// balancer's own address, and a pod that connects to itself gets no reply
		// (kubernetes/community#8890, kubernetes/kubernetes#137578).
		s.SourceVIP = s.NodeIP
		if v := b.options.SourceVIP; v.IsValid() && service.FamilyOf(v) == b.family {
			s.SourceVIP = v
		}
		return s, nil, nil
	}
	if s.Unavailable != "" {
		return s, nil, nil
	}
	return b.discoverOverlay(s, l)
}

func nodeIP(node *service.Node, n *Network, f service.Family) netip.Addr {
	all := node.Addrs
	if n.Provider.IsValid() {
		all = append(slices.Clip(all), n.Provider)
	}
	return service.FirstOf(all, f)
}

// unavailable returns why family f cannot be programmed on this network, or "".
func (s *Site) unavailable(f service.Family) string {
	has := func(p netip.Prefix) bool { return service.FamilyOf(p.Addr()) == f }
	noSubnet := len(s.Network.Subnets) > 0 && !slices.ContainsFunc(s.Network.Subnets, has)
	switch {
	case f == service.IPv4 && !noSubnet:
	case f == service.IPv4:
		return fmt.Sprintf("network %q has no IPv4 subnet", s.Network.Name)
	case s.Network.Kind == Overlay:
		return "HNS has no IPv6 on overlay networks"
	case !s.Version.Features().DualStack:
		return fmt.Sprintf("HNS %s has no dual stack: want Windows Server 2022 or newer", s.Version)
	case noSubnet:
		return fmt.Sprintf("network %q has no IPv6 subnet", s.Network.Name)
	}
	return ""
}

func (b *binding) discoverOverlay(s Site, l Listing) (Site, *Endpoint, error) {
	var err error
	switch {
	case !s.Version.Features().RemoteSubnet:
		return s, nil, fmt.Errorf("network %q is an overlay, and HNS %s has no remote subnets: want Windows Server 2019 with its updates, or newer", s.Network.Name, s.Version)
	case !s.NodeIP.IsValid():
		return s, nil, fmt.Errorf("%w for the node's %s address, which overlay network %q needs: the Node object has none; set --bind-address", ErrWaiting, b.family, s.Network.Name)
	}
	if s.HostMAC, err = b.hostMAC(s.NodeIP); err != nil {
		return s, nil, fmt.Errorf("find the hardware address for overlay network %q: %w", s.Network.Name, err)
	}
	vip, reserve, err := ChooseSourceVIP(l, s.Network, b.options.SourceVIP)
	if err != nil {
		return s, nil, err
	}
	if reserve != nil {
		reserve.MAC = s.HostMAC // answers to masqueraded connections come to the host
	}
	if reserve != nil && !vip.IsValid() {
		if vip = sourceVIPInUse(l, s.Network, b.host.owns); vip.IsValid() {
			reserve.Addrs = []netip.Addr{vip}
		} else if last := lastFree(l, s.Network); last.IsValid() {
			vip, reserve.Addrs = last, []netip.Addr{last}
		}
	}
	if reserve == nil {
		b.host.report(fmt.Sprintf("Source VIP: %s, of an endpoint that is there already", vip))
	}
	s.SourceVIP = vip
	return s, reserve, nil
}

// sourceVIPInUse returns the source VIP of our load balancers, for the case that its
// endpoint was deleted. With the same source VIP the load balancers need no change. If it
// is unknown which are ours, it returns the source VIP of any.
func sourceVIPInUse(l Listing, n Network, ours func(id string) bool) netip.Addr {
	var other netip.Addr
	for _, lb := range l.LoadBalancers {
		v := lb.SourceVIP
		switch {
		case !v.IsValid() || !n.contains(v) || checkSourceVIP(l, n, v) != nil:
		case ours(lb.ID):
			return v
		case !other.IsValid():
			other = v
		}
	}
	return other
}

// hostMAC returns the hardware address of the interface with address a.
func hostMAC(a netip.Addr) (string, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return "", fmt.Errorf("list network interfaces: %w", err)
	}
	for _, i := range interfaces {
		addrs, err := i.Addrs()
		if err != nil {
			continue // the interface may be deleted by now
		}
		for _, x := range addrs {
			p, err := netip.ParsePrefix(x.String())
			if err == nil && p.Addr().Unmap() == a && len(i.HardwareAddr) > 0 {
				return strings.ReplaceAll(i.HardwareAddr.String(), ":", "-"), nil
			}
		}
	}
	return "", fmt.Errorf("no network interface with one has the node's address %s: check the Node's addresses, or set --bind-address", a)
}
