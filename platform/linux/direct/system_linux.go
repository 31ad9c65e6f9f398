// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package direct

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/conntrack"
	"kubeproxy/platform/linux/nftables"
	"kubeproxy/platform/linux/sysctl"
)

const (
	// protocol identifies our routes and rules, as in mode ipvs.
	protocol = 107
	// alias shows that we made the device.
	alias = "direct return of Services, by kube-proxy"
	// preference puts our rules before those of others, except for that of local addresses. The rules of
	// nodes follow in groups, see rules.
	preference, groups = 50, 16
	// overhead is what the tunnel adds to a packet: IPv6, UDP and VXLAN-GPE.
	overhead = 40 + 8 + 8
)

// anyAddress is one that nobody asks for.
var anyAddress = net.IPv4(169, 254, 107, 112).To4()

// Kernel is the System of one family and of the proxy of a name, in the network namespace of the
// calling thread.
type Kernel struct {
	table nftables.DirectTable
	index int // of the device that the routes use
	// filters are the values of rp_filter that the settings of the device are for.
	filters [2]string
}

// NewKernel returns a Kernel.
func NewKernel(f service.Family, proxyName string) *Kernel {
	return &Kernel{table: nftables.DirectTable{Leftovers: nftables.DirectPlace(f, proxyName)}}
}

// String names what the layer leaves on a node.
func (k *Kernel) String() string { return k.table.String() + " with tunnel " + Device }

// SetRules implements System.
func (k *Kernel) SetRules(ctx context.Context, r *nftables.DirectRules) error {
	return k.table.Set(ctx, r)
}

// Translated implements System. What the rules translate to another node, they masquerade.
func (k *Kernel) Translated(ctx context.Context, to map[service.Address]bool) (all []conntrack.Flow, err error) {
	err = conntrack.Netlink{}.Dump(ctx, conntrack.Filter{Family: k.table.Family, Translated: true}, func(f conntrack.Flow) {
		if to[service.AddressOf(f.Protocol, f.Dst)] && f.Src != f.ReplyDst {
			all = append(all, f)
		}
	})
	return all, err
}

// Senders implements System.
func (k *Kernel) Senders() ([]netip.Addr, error) { return k.table.SendersThere() }

// Forget implements System.
func (k *Kernel) Forget() { k.table.Forget() }

// family is the number of the family in netlink.
func (k *Kernel) family() int {
	if k.table.Family == service.IPv6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// device returns the tunnel, nil if there is none.
func device() (netlink.Link, error) {
	l, err := netlink.LinkByName(Device)
	var none netlink.LinkNotFoundError
	switch {
	case errors.As(err, &none):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("look for device %s: %w", Device, err)
	case l.Type() != "vxlan" || l.Attrs().Alias != alias:
		return nil, fmt.Errorf("device %s is not ours: want none of this name", Device)
	}
	return l, nil
}

// addDevice makes the tunnel. The library does not know VXLAN-GPE, which carries IP without Ethernet
// (kernel: include/uapi/linux/if_link.h, IFLA_VXLAN_GPE).
func addDevice() error {
	const gpe = 27
	r := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	r.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	r.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(Device)))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("vxlan"))
	data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	data.AddRtAttr(nl.IFLA_VXLAN_FLOWBASED, nl.Uint8Attr(1))
	data.AddRtAttr(nl.IFLA_VXLAN_LEARNING, nl.Uint8Attr(0))
	data.AddRtAttr(nl.IFLA_VXLAN_PORT, binary.BigEndian.AppendUint16(nil, Port))
	data.AddRtAttr(nl.IFLA_VXLAN_UDP_ZERO_CSUM6_RX, nl.Uint8Attr(1)) // the route sends none
	data.AddRtAttr(gpe, nil)
	r.AddData(info)
	_, err := r.Execute(unix.NETLINK_ROUTE, 0)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return sysctl.Missing(fmt.Errorf("make a tunnel of type vxlan: %w", err), "vxlan")
	}
	l, err := netlink.LinkByName(Device)
	if err == nil && l.Attrs().Alias == "" {
		err = netlink.LinkSetAlias(l, alias)
	}
	return err
}

// Prepare implements System.
func (k *Kernel) Prepare(roads map[uint32]netip.Addr, from netip.Addr) (mtu int, fault string, err error) {
	l, err := device()
	if l == nil && err == nil {
		if err = addDevice(); err == nil {
			l, err = device()
		}
	}
	if err != nil {
		return 0, "", err
	}
	mtu = underlay(roads) - overhead
	if l.Attrs().MTU != mtu {
		if err := netlink.LinkSetMTU(l, mtu); err != nil {
			return 0, "", fmt.Errorf("set the MTU of device %s to %d: %w", Device, mtu, err)
		}
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return 0, "", fmt.Errorf("set device %s up: is UDP port %d in use? %w", Device, Port, err)
	}
	if k.index != l.Attrs().Index {
		k.index = l.Attrs().Index
		k.Forget()
	}
	fault, err = k.settings(l)
	if err != nil {
		return 0, "", err
	}
	for _, m := range slices.Sorted(maps.Keys(roads)) {
		r := k.route(m)
		r.LinkIndex, r.Encap = k.index, &encap{roads[m], from}
		if err := netlink.RouteReplace(r); err != nil {
			return 0, "", fmt.Errorf("add a route to node %s through device %s: %w", roads[m], Device, err)
		}
	}
	for _, r := range k.rules(roads) {
		if err := netlink.RuleAdd(r); err != nil && !errors.Is(err, unix.EEXIST) {
			return 0, "", fmt.Errorf("add a routing rule for mark %#x: %w", r.Mark, err)
		}
	}
	return mtu, fault, nil
}

// settings lets the tunnel accept packets of any source, and returns what else does not.
func (k *Kernel) settings(l netlink.Link) (fault string, err error) {
	files := sysctl.Host() // which a pod may only read
	if k.table.Family == service.IPv6 {
		name := "proc/sys/net/ipv6/conf/" + Device + "/disable_ipv6"
		value, err := files.ReadFile(name)
		if err == nil && strings.TrimSpace(string(value)) != "0" {
			err = files.WriteFile(name, []byte("0"))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("have IPv6 on device %s: %w", Device, err)
		}
		return "", nil
	}
	_ = allowSources(l) // what is left of it is told below
	k.filters = filters()
	for i, where := range filtered {
		switch k.filters[i] {
		case "2": // is like 1 on a device without an address (kernel: net/ipv4/fib_frontend.c, __fib_validate_source)
			if err := netlink.AddrReplace(l, &netlink.Addr{IPNet: &net.IPNet{IP: anyAddress, Mask: net.CIDRMask(32, 32)}, Scope: unix.RT_SCOPE_LINK}); err != nil {
				return "", fmt.Errorf("give device %s the address %s: %w", Device, anyAddress, err)
			}
		case "1":
			return fmt.Sprintf("direct return of IPv4 to this node is off, as it drops what comes from clients through %s: want 0 or 2 in net.ipv4.conf.%s.rp_filter", Device, where), nil
		}
	}
	return "", nil
}

// filtered are the interfaces whose rp_filter counts for what comes through the tunnel.
var filtered = [...]string{Device, "all"}

func filters() (all [len(filtered)]string) {
	for i, where := range filtered {
		value, _ := sysctl.Host().ReadFile("proc/sys/net/ipv4/conf/" + where + "/rp_filter")
		all[i] = strings.TrimSpace(string(value))
	}
	return all
}

// allowSources sets rp_filter of l to 0. The larger one of l and of all counts. (Kernel:
// include/uapi/linux/ip.h, IPV4_DEVCONF_RP_FILTER; include/uapi/linux/if_link.h, IFLA_INET_CONF.)
func allowSources(l netlink.Link) error {
	const settings, filter = 1, 8
	r := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	m := nl.NewIfInfomsg(unix.AF_UNSPEC)
	m.Index = int32(l.Attrs().Index)
	r.AddData(m)
	families := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	families.AddRtAttr(unix.AF_INET, nil).AddRtAttr(settings, nil).AddRtAttr(filter, nl.Uint32Attr(0))
	r.AddData(families)
	_, err := r.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// underlay returns the smallest MTU on the way to nodes.
func underlay(roads map[uint32]netip.Addr) int {
	mtu := 1500
	for _, a := range roads {
		routes, err := netlink.RouteGet(a.AsSlice())
		if err != nil || len(routes) == 0 {
			continue
		}
		if l, err := netlink.LinkByIndex(routes[0].LinkIndex); err == nil && l.Attrs().MTU < mtu {
			mtu = l.Attrs().MTU
		}
	}
	return mtu
}

func (k *Kernel) route(m uint32) *netlink.Route {
	bits, zero := 32, net.IPv4zero.To4()
	if k.table.Family == service.IPv6 {
		bits, zero = 128, net.IPv6zero
	}
	return &netlink.Route{Dst: &net.IPNet{IP: zero, Mask: net.CIDRMask(0, bits)}, Table: int(m), Protocol: protocol, Family: k.family()}
}

func (k *Kernel) rule(priority int, mark uint32) *netlink.Rule {
	r := netlink.NewRule()
	r.Family, r.Priority, r.Mark, r.Protocol = k.family(), priority, mark, protocol
	return r
}

// place tells our rules apart.
type place struct {
	priority int
	mark     uint32
}

// rules returns those for roads, none for nil. As a packet walks over all rules until one matches, others
// jump behind ours, and those for a node to the rules of its group.
func (k *Kernel) rules(roads map[uint32]netip.Addr) map[place]*netlink.Rule {
	all := map[place]*netlink.Rule{}
	add := func(r *netlink.Rule, table, to int, mask uint32) *netlink.Rule {
		r.Table, r.Goto, r.Mask = table, to, &mask
		all[place{r.Priority, r.Mark}] = r
		return r
	}
	const first, end = preference + 2, preference + 2 + groups
	for m := range roads {
		add(k.rule(first+int(m%groups), m), int(m), -1, ^uint32(0))
	}
	if roads == nil {
		return all
	}
	for i := range groups {
		add(k.rule(preference+1, base+uint32(i)), 0, first+i, ^most+groups-1)
	}
	add(k.rule(preference, base), 0, end, ^most).Invert = true
	add(k.rule(end, base), int(base), -1, ^uint32(0)) // matches nothing
	return all
}

// present returns the rules that there are.
func (k *Kernel) present() (map[place]*netlink.Rule, error) {
	list, err := netlink.RuleList(k.family())
	if err != nil {
		return nil, fmt.Errorf("list routing rules: %w", err)
	}
	all := map[place]*netlink.Rule{}
	for _, r := range list {
		if r.Protocol == protocol && r.Mark&^most == base {
			all[place{r.Priority, r.Mark}] = &r
		}
	}
	return all, nil
}

// Intact implements System.
func (k *Kernel) Intact(roads map[uint32]netip.Addr) (bool, error) {
	l, err := device()
	if err != nil || l == nil || l.Attrs().Index != k.index || l.Attrs().Flags&net.FlagUp == 0 {
		return false, nil // Prepare reports it
	}
	if k.table.Family == service.IPv4 && k.filters != filters() {
		return false, nil
	}
	have, err := k.present()
	return maps.EqualFunc(k.rules(roads), have, func(_, _ *netlink.Rule) bool { return true }), err
}

// Retain implements System.
func (k *Kernel) Retain(roads map[uint32]netip.Addr) error {
	have, err := k.present()
	want := k.rules(roads)
	for at, r := range have {
		if want[at] != nil {
			continue
		}
		err = errors.Join(err, netlink.RuleDel(r))
		if e := netlink.RouteDel(k.route(r.Mark)); e != nil && !errors.Is(e, unix.ESRCH) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// Find implements System.
func (k *Kernel) Find(ctx context.Context) (string, error) {
	found, err := k.table.Find(ctx)
	if err != nil || found != "" {
		return found, err
	}
	rules, err := k.present()
	if err != nil || len(rules) > 0 {
		return fmt.Sprintf("%d routing rules", len(rules)), err
	}
	if l, err := device(); l != nil && err == nil {
		return "device " + Device, nil
	}
	return "", nil // a device of others is none of ours
}

// Remove implements System. The tunnel goes with the last family.
func (k *Kernel) Remove(ctx context.Context) error {
	k.Forget()
	if err := k.table.Remove(ctx); err != nil {
		return err
	}
	if err := k.Retain(nil); err != nil {
		return fmt.Errorf("remove routes through device %s: %w", Device, err)
	}
	other := NewKernel(1-k.table.Family, "")
	other.table.Table = k.table.Table
	if left, err := other.table.Find(ctx); err != nil || left != "" {
		return err
	}
	if l, err := device(); l != nil && err == nil {
		return netlink.LinkDel(l)
	}
	return nil
}

// encap leads packets to a node through the tunnel. It implements netlink.Encap.
type encap struct{ to, from netip.Addr }

// Type implements netlink.Encap.
func (e *encap) Type() int {
	if e.to.Is6() {
		return nl.LWTUNNEL_ENCAP_IP6
	}
	return nl.LWTUNNEL_ENCAP_IP
}

// Encode implements netlink.Encap. The numbers are the same for IPv4 and IPv6 (kernel:
// include/uapi/linux/lwtunnel.h).
func (e *encap) Encode() ([]byte, error) {
	const hops = 64
	b := nl.NewRtAttr(nl.LWTUNNEL_IP6_ID, binary.BigEndian.AppendUint64(nil, Key)).Serialize()
	b = append(b, nl.NewRtAttr(nl.LWTUNNEL_IP6_DST, e.to.AsSlice()).Serialize()...)
	if e.from.IsValid() {
		b = append(b, nl.NewRtAttr(nl.LWTUNNEL_IP6_SRC, e.from.AsSlice()).Serialize()...)
	}
	return append(b, nl.NewRtAttr(nl.LWTUNNEL_IP6_HOPLIMIT, nl.Uint8Attr(hops)).Serialize()...), nil
}

// Decode implements netlink.Encap.
func (e *encap) Decode([]byte) error { return errors.ErrUnsupported }

// Equal implements netlink.Encap.
func (e *encap) Equal(x netlink.Encap) bool {
	o, is := x.(*encap)
	return is && *o == *e
}

// String implements netlink.Encap.
func (e *encap) String() string { return "to " + e.to.String() }
