// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"fmt"
	"slices"
	"strings"

	"kubeproxy/common/service"
)

// For each load balancer without direct server return, HNS allocates a block of ports
// from the node's dynamic port range. If none is left, HNS returns the same error as for
// a port that a program listens on (MicrosoftDocs/Virtualization-Documentation, "Load
// balancers are plumbed inconsistently across the cluster nodes").
const (
	// PortBlockSize is the size that portReservationTest.ps1 of microsoft/SDN uses to
	// imitate HNS.
	PortBlockSize = 64
	// UsualDynamicPorts is the size of the range by default: 49152 to 65535.
	UsualDynamicPorts = 16384
)

// PortBlocks counts the load balancers in l with the family and protocol of k that have a
// block of ports.
func (l *Listing) PortBlocks(k Key) int {
	n := 0
	for i := range l.LoadBalancers {
		if lb := &l.LoadBalancers[i]; !lb.DSR && portPoolOf(lb.Key) == portPoolOf(k) {
			n++
		}
	}
	return n
}

// portPool is the source of ports for the load balancers of a family and protocol.
type portPool struct {
	family   service.Family
	protocol service.Protocol
}

func portPoolOf(k Key) portPool { return portPool{k.Family, k.Protocol} }

// OnShortage sets the function that receives reports about a lack of ports, and "" once
// there are enough. Call it before the first sync.
func (h *Host) OnShortage(f func(text string)) { h.onShortage = f }

// portsShort reports whether HNS recently lacked ports for a load balancer like lb, so
// that another attempt is pointless.
func (h *Host) portsShort(lb *LoadBalancer) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !lb.DSR && h.now().Before(h.portBackoff[portPoolOf(lb.Key)].until)
}

// recordPortShortage records that HNS lacks ports.
func (h *Host) recordPortShortage(of portPool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.portBackoff[of] = h.portBackoff[of].next(h.now(), minBackoff)
}

// reportShortage reports the lack of ports in a sync of family f, "" if there was none.
func (h *Host) reportShortage(f service.Family, text string) {
	h.mu.Lock()
	before := h.shortageTexts
	h.shortageTexts[f] = text
	now := h.shortageTexts
	h.mu.Unlock()
	if now != before && h.onShortage != nil {
		all := slices.DeleteFunc(now[:], func(s string) bool { return s == "" })
		h.onShortage(strings.Join(all, "; "))
	}
}

// checkPortShortage returns an error if HNS rejected lb, with the error for a port in
// use, because of a lack of dynamic ports.
func (p *pass) checkPortShortage(lb *LoadBalancer) error {
	if lb.DSR || !p.portsExhausted(lb.Key) {
		return nil
	}
	p.host.recordPortShortage(portPoolOf(lb.Key))
	return p.portShortageError(lb)
}

// portsExhausted reports whether no block of ports is left. If the system does not report
// that, it counts the load balancers that need one, as if each had a block of its own.
func (p *pass) portsExhausted(k Key) bool {
	left, err := p.driver.PortsLeft(p.ctx, k)
	if err == nil {
		return !left
	}
	holders := p.balancers(func(lb *LoadBalancer) bool { return !lb.DSR && portPoolOf(lb.Key) == portPoolOf(k) })
	return (len(holders)+1)*PortBlockSize > UsualDynamicPorts
}

// portShortageError returns the error for lb, which is not created now.
func (p *pass) portShortageError(lb *LoadBalancer) error {
	p.missingByPool[portPoolOf(lb.Key)]++
	return postponedError(fmt.Sprintf("HNS refuses load balancer %s: no %d dynamic %s ports of the node are left; %s; it is tried again in a while",
		lb.Key, PortBlockSize, strings.ToUpper(lb.Protocol.String()), p.site.portShortageHint(lb.Key)))
}

// portShortageHint returns the remedy for a lack of ports.
func (s *Site) portShortageHint(k Key) string {
	family, netsh := "ipv4", ""
	if k.Family == service.IPv6 {
		family = "ipv6"
	}
	netsh = fmt.Sprintf("netsh int %s set dynamicportrange %s start=FIRST num=COUNT widens the range", family, k.Protocol)
	switch {
	case !s.Version.Features().DSR:
		return fmt.Sprintf("HNS %s has no direct server return, which needs none: %s", s.Version, netsh)
	case !s.Options.DSR:
		return "--enable-dsr or winkernel.enableDSR serves ClusterIPs without them, and externalTrafficPolicy Local other addresses; " + netsh
	}
	return "externalTrafficPolicy Local serves other addresses than ClusterIPs without them; " + netsh
}

// shortageText describes the lack of ports in the pass, without names of Services. For a
// nil pass it returns "".
func (p *pass) shortageText() string {
	if p == nil {
		return ""
	}
	var all []string
	for _, protocol := range []service.Protocol{service.TCP, service.UDP} {
		k := Key{Family: p.family, Protocol: protocol}
		if n := p.missingByPool[portPoolOf(k)]; n > 0 {
			all = append(all, fmt.Sprintf("%d load balancers over %s and %s are missing: each one without direct server return takes %d dynamic ports of the node, and so many are not left; %s",
				n, p.family, strings.ToUpper(protocol.String()), PortBlockSize, p.site.portShortageHint(k)))
		}
	}
	return strings.Join(all, "; ")
}
