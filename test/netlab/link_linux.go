// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// addPair creates a veth pair, name on h and peerName on peer, sets both up and returns
// the first. See veth(4).
func (h *Host) addPair(name string, peer *Host, peerName string) (netlink.Link, error) {
	veth := netlink.NewVeth(netlink.LinkAttrs{Name: name})
	veth.PeerName, veth.PeerNamespace = peerName, netlink.NsFd(peer.ns)
	if err := h.link.LinkAdd(veth); err != nil {
		return nil, fmt.Errorf("%s: add interface %s: %w", h.Name, name, err)
	}
	for _, end := range []struct {
		host *Host
		name string
	}{{h, name}, {peer, peerName}} {
		if err := end.host.linkUp(end.name); err != nil {
			return nil, err
		}
	}
	link, err := h.link.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("%s: find interface %s: %w", h.Name, name, err)
	}
	return link, nil
}

func (h *Host) linkUp(name string) error {
	link, err := h.link.LinkByName(name)
	if err != nil {
		return fmt.Errorf("%s: find interface %s: %w", h.Name, name, err)
	}
	if err := h.link.LinkSetUp(link); err != nil {
		return fmt.Errorf("%s: start interface %s: %w", h.Name, name, err)
	}
	return nil
}

// addBridge creates a bridge that forwards from the first moment.
func (h *Host) addBridge(name string, addrs []netip.Prefix) error {
	off := false
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}, MulticastSnooping: &off}
	if err := h.link.LinkAdd(bridge); err != nil {
		return fmt.Errorf("%s: add bridge %s: %w", h.Name, name, err)
	}
	if err := h.linkUp(name); err != nil {
		return err
	}
	return h.addAddrs(name, addrs)
}

func (h *Host) plug(port netlink.Link, bridge string) error {
	master, err := h.link.LinkByName(bridge)
	if err != nil {
		return fmt.Errorf("%s: find bridge %s: %w", h.Name, bridge, err)
	}
	if err := h.link.LinkSetMaster(port, master); err != nil {
		return fmt.Errorf("%s: plug %s into bridge %s: %w", h.Name, port.Attrs().Name, bridge, err)
	}
	return nil
}

// plugPod lets a pod reach itself through the bridge. With br_netfilter, packets
// translated back to the same port are forwarded without routing, and a bridge drops such
// packets unless its port is in hairpin mode, see bridge(8). CNI plugins set the same
// mode.
func (h *Host) plugPod(port netlink.Link, bridge string) error {
	if err := h.plug(port, bridge); err != nil {
		return err
	}
	if err := h.link.LinkSetHairpin(port, true); err != nil {
		return fmt.Errorf("%s: let %s send back to itself: %w", h.Name, port.Attrs().Name, err)
	}
	return nil
}

// addAddrs adds addresses that may be used at once, without duplicate address detection.
func (h *Host) addAddrs(dev string, addrs []netip.Prefix) error {
	link, err := h.link.LinkByName(dev)
	if err != nil {
		return fmt.Errorf("%s: find interface %s: %w", h.Name, dev, err)
	}
	for _, p := range addrs {
		addr := &netlink.Addr{IPNet: ipNet(p)}
		if p.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := h.link.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("%s: add address %s to %s: %w", h.Name, p, dev, err)
		}
	}
	return nil
}

// addLinkRoutes makes prefixes reachable on dev without a gateway.
func (h *Host) addLinkRoutes(dev string, prefixes []netip.Prefix) error {
	link, err := h.link.LinkByName(dev)
	if err != nil {
		return fmt.Errorf("%s: find interface %s: %w", h.Name, dev, err)
	}
	for _, p := range prefixes {
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(p), Scope: netlink.SCOPE_LINK}
		if err := h.link.RouteAdd(route); err != nil {
			return fmt.Errorf("%s: add route to %s: %w", h.Name, p, err)
		}
	}
	return nil
}

func (h *Host) addDefault(via *Host) error {
	return h.addRoutes(defaultRoutes, via)
}

func (h *Host) addRoutes(prefixes []netip.Prefix, via *Host) error {
	for _, p := range prefixes {
		gateway := via.IPv4
		if p.Addr().Is6() {
			gateway = via.IPv6
		}
		if err := h.link.RouteAdd(&netlink.Route{Dst: ipNet(p), Gw: gateway.AsSlice()}); err != nil {
			return fmt.Errorf("%s: add route to %s via %s: %w", h.Name, p, gateway, err)
		}
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// linkTimeout is how long interfaces may take to start. The kernel has one work queue for
// that and much else.
const linkTimeout = time.Minute

// awaitLinks waits until every interface can transmit. A link starts asynchronously and
// drops packets until then, so that the first request of a test might be answered a
// second late.
func (l *Lab) awaitLinks() error {
	deadline := time.Now().Add(linkTimeout)
	for _, h := range l.hosts {
		if err := h.awaitLinks(deadline, h.notReady); err != nil {
			return err
		}
	}
	return nil
}

// awaitLinks waits until waiting names no interface any more.
func (h *Host) awaitLinks(deadline time.Time, waiting func() (string, error)) error {
	for ; ; time.Sleep(time.Millisecond) {
		name, err := waiting()
		switch {
		case errors.Is(err, netlink.ErrDumpInterrupted):
			name = "whose addresses change" // interrupted; the next call reads again
		case err != nil:
			return err
		case name == "":
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: interface %s did not come up within %s", h.Name, name, linkTimeout)
		}
	}
}

// notReady names an interface of h that is not up, has no IPv6 link-local address, or has
// a tentative one. It returns "" if there is none.
func (h *Host) notReady() (string, error) {
	links, err := h.link.LinkList()
	if err != nil {
		return "", fmt.Errorf("%s: list interfaces: %w", h.Name, err)
	}
	for _, link := range links {
		attrs := link.Attrs()
		if attrs.Flags&net.FlagLoopback != 0 || empty(link, links) {
			continue
		}
		if attrs.OperState != netlink.OperUp {
			return attrs.Name, nil
		}
		addrs, err := h.link.AddrList(link, netlink.FAMILY_V6)
		if err != nil {
			return "", fmt.Errorf("%s: list addresses of %s: %w", h.Name, attrs.Name, err)
		}
		if ok, err := h.routed(addrs); err != nil || !ok || !usable(addrs) {
			return attrs.Name, err
		}
	}
	return "", nil
}

// empty returns whether link is a bridge without ports, which never comes up.
func empty(link netlink.Link, all []netlink.Link) bool {
	if link.Type() != "bridge" {
		return false
	}
	for _, port := range all {
		if port.Attrs().MasterIndex == link.Attrs().Index {
			return false
		}
	}
	return true
}

// usable returns whether addrs include a link-local address and none of them is
// tentative.
func usable(addrs []netlink.Addr) bool {
	own := false
	for _, a := range addrs {
		if a.Flags&unix.IFA_F_TENTATIVE != 0 {
			return false
		}
		own = own || a.IP.IsLinkLocalUnicast()
	}
	return own
}

// routed returns whether packets to any of addrs are accepted. The kernel adds the local
// route asynchronously after the address. Until then an answer to the address, such as a
// refusal, is lost.
func (h *Host) routed(addrs []netlink.Addr) (bool, error) {
	for _, a := range addrs {
		if a.IP.IsLinkLocalUnicast() {
			continue
		}
		routes, err := h.link.RouteGet(a.IP)
		if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("%s: look for the route to %s: %w", h.Name, a.IP, err)
		}
		if len(routes) == 0 || routes[0].Type != unix.RTN_LOCAL {
			return false, nil
		}
	}
	return true, nil
}
