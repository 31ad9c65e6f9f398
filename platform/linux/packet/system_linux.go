// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	ebpflink "github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kubeproxy/common/explain"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/proc"
)

// System asks the running system.
type System struct {
	// IsLocal reports whether an address belongs to the node.
	IsLocal func(netip.Addr) bool
	routes  map[netip.Addr]system
	roads
}

type system struct {
	link   Link
	typ    uint8
	direct bool // no gateway is between
}

// Local implements Node. Mode ipvs makes addresses of Services local by routes alone.
func (s *System) Local(a netip.Addr) bool {
	_, typ := s.Route(a)
	return typ == Local || s.IsLocal(a)
}

// Route implements Node. It asks once for each address.
func (s *System) Route(a netip.Addr) (Link, uint8) {
	r := s.route(a)
	return r.link, r.typ
}

func (s *System) route(a netip.Addr) system {
	if r, known := s.routes[a]; known {
		return r
	}
	r := system{}
	if all, err := s.kernel().RouteGet(a.AsSlice()); err == nil && len(all) > 0 {
		r = system{s.link(all[0].LinkIndex), uint8(all[0].Type), all[0].Gw == nil && all[0].Via == nil}
	}
	if s.routes == nil {
		s.routes = map[netip.Addr]system{}
	}
	s.routes[a] = r
	return r
}

func link(index int) Link {
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return Link{Unknown: true}
	}
	return Link{Name: l.Attrs().Name, Index: uint32(index)}
}

// Entry returns the interface by which packets of a client enter the node: the one of a
// name, or else the one by which the node reaches the client. If it would reach it there without a
// gateway, but knows it as a neighbour at another interface alone, routes lead answers astray, and it is that one.
func (s *System) Entry(name string, client netip.Addr) Link {
	if l, err := netlink.LinkByName(name); err == nil {
		return Link{Name: name, Index: uint32(l.Attrs().Index)}
	}
	r := s.route(client)
	if r.link.Index == 0 {
		return Link{Unknown: true}
	}
	if at := s.heard(client); r.direct && r.typ != Local && len(at) == 1 && at[0] != int(r.link.Index) {
		return s.link(at[0])
	}
	return r.link
}

// heard returns the interfaces at which an address has told its link address.
func (s *System) heard(a netip.Addr) (at []int) {
	const heard = unix.NUD_REACHABLE | unix.NUD_STALE | unix.NUD_DELAY | unix.NUD_PROBE
	for _, n := range s.neighboursAt(0, service.FamilyOf(a)) {
		if n.State&heard != 0 && n.Flags&unix.NTF_PROXY == 0 && addrOf(n.IP) == a {
			at = append(at, n.LinkIndex)
		}
	}
	return at
}

// LegacyNames lists the tables of iptables-legacy in this thread's network namespace. Root of the
// namespace owns the file that it reads, with mode 0440 (kernel: net/netfilter/x_tables.c,
// xt_proto_init): others need CAP_DAC_READ_SEARCH
// (https://man7.org/linux/man-pages/man7/capabilities.7.html).
func LegacyNames(f service.Family) ([]string, error) {
	file := "/proc/thread-self/net/ip_tables_names"
	if f == service.IPv6 {
		file = "/proc/thread-self/net/ip6_tables_names"
	}
	names, err := os.ReadFile(file)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, nil
	case errors.Is(err, os.ErrPermission):
		return nil, fmt.Errorf("%w: run as root, because only user 0 may read it, or with the right CAP_DAC_READ_SEARCH besides CAP_NET_ADMIN and CAP_NET_RAW", err)
	}
	return strings.Fields(string(names)), err
}

// LegacyTables reads the tables of iptables-legacy that exist.
func LegacyTables(ctx context.Context, f service.Family) ([]*Legacy, error) {
	names, err := LegacyNames(f)
	if err != nil {
		return nil, fmt.Errorf("list tables of iptables-legacy: %w", err)
	}
	var all []*Legacy
	for _, name := range names {
		l := &Legacy{Family: f, Name: name}
		command := strings.Fields(l.command())
		out, err := exec.CommandContext(ctx, command[0], command[1:]...).Output()
		if err == nil {
			l.Tables = Parse(string(out))
		} else if !errors.Is(err, exec.ErrNotFound) {
			return nil, fmt.Errorf("%s: %w", l.command(), err)
		}
		all = append(all, l)
	}
	return all, nil
}

// roads are what System remembers for Roads.
type roads struct {
	handle    *netlink.Handle // one socket for all questions, nil before the first
	asked     map[Leg]answer
	byDefault map[netip.Addr]bool
	policies  map[service.Family][]Policy
	devices   map[string]Device
	links     map[int]Link
	secured   map[service.Family][]netlink.XfrmPolicy
	listeners map[uint16][]proc.Listener // by port
	unlisted  error
	waited    bool // for neighbours
	// neighbours are those of an interface, by its index and the family.
	neighbours map[[2]int][]netlink.Neigh
}

// answer is that of Road.
type answer struct {
	road    Road
	refusal Refusal
}

// kernel returns the socket for questions.
func (s *System) kernel() *netlink.Handle {
	if s.handle == nil {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			h = &netlink.Handle{} // opens a socket for each question
		}
		s.handle = h
	}
	return s.handle
}

// Close closes what s has opened.
func (s *System) Close() {
	if s.handle != nil {
		s.handle.Close()
	}
}

// refusals are the errors of the kernel that say why there is no route.
var refusals = map[unix.Errno]Refusal{
	unix.EHOSTUNREACH: Unreachable, unix.EINVAL: Invalid, unix.EXDEV: Invalid, unix.EACCES: Prohibited, unix.ENETUNREACH: NoRoute,
}

// Road implements Roads. It asks once for each leg.
func (s *System) Road(l Leg) (Road, Refusal) {
	l.Reply = false // does not matter
	a, known := s.asked[l]
	if !known {
		a.road, a.refusal = s.ask(l)
		if s.asked == nil {
			s.asked = map[Leg]answer{}
		}
		s.asked[l] = a
	}
	return a.road, a.refusal
}

func (s *System) ask(l Leg) (Road, Refusal) {
	all, err := s.kernel().RouteGetWithOptions(l.To.AsSlice(), &netlink.RouteGetOptions{IifIndex: int(l.In.Index), SrcAddr: l.From.AsSlice(), Mark: l.Mark})
	for errno, refusal := range refusals {
		if errors.Is(err, errno) {
			return Road{}, refusal
		}
	}
	if err != nil || len(all) == 0 {
		return Road{}, Failed
	}
	r := &all[0]
	road := Road{Type: uint8(r.Type), Out: s.link(r.LinkIndex), Table: uint32(r.Table)}
	road.Gateway, _ = netip.AddrFromSlice(r.Gw)
	if via, is := r.Via.(*netlink.Via); is && !road.Gateway.IsValid() {
		road.Gateway, _ = netip.AddrFromSlice(via.Addr)
	}
	road.Source, _ = netip.AddrFromSlice(r.Src)
	road.Gateway, road.Source = road.Gateway.Unmap(), road.Source.Unmap()
	if l.In.Index != 0 {
		road.Source = netip.Addr{} // the kernel repeats that of the question
	}
	return road, 0
}

func (s *System) link(index int) Link {
	l, known := s.roads.links[index]
	if !known {
		l = link(index)
		if s.links == nil {
			s.links = map[int]Link{}
		}
		s.links[index] = l
	}
	return l
}

// ByDefault implements Roads.
func (s *System) ByDefault(to netip.Addr) bool {
	is, known := s.byDefault[to]
	if !known {
		all, err := s.kernel().RouteGetWithOptions(to.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
		is = err == nil && len(all) > 0 && (all[0].Dst == nil || prefixOf(all[0].Dst).Bits() == 0)
		if s.byDefault == nil {
			s.byDefault = map[netip.Addr]bool{}
		}
		s.byDefault[to] = is
	}
	return is
}

func prefixOf(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	a, _ := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), ones)
}

func familyOf(f service.Family) int {
	if f == service.IPv6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// Policies implements Roads.
func (s *System) Policies(f service.Family) []Policy {
	if all, known := s.policies[f]; known {
		return all
	}
	var all []Policy
	rules, _ := s.kernel().RuleList(familyOf(f)) // none: the kernel lacks rules
	for i := range rules {
		r := &rules[i]
		p := Policy{
			Priority: r.Priority, From: prefixOf(r.Src), To: prefixOf(r.Dst), In: r.IifName, Mark: r.Mark, Not: r.Invert, Table: uint32(r.Table), Refuses: r.Table == 0 && r.Goto <= 0,
			Narrow: r.OifName != "" || r.Dport != nil || r.Sport != nil || r.IPProto != 0 || r.UIDRange != nil || r.Tos != 0 || r.Goto > 0 ||
				r.SuppressPrefixlen >= 0 || r.SuppressIfgroup >= 0,
		}
		if r.Mask != nil {
			p.Mask = *r.Mask
		}
		// The rule of all VRFs looks like that, and the library does not tell them apart.
		p.Narrow = p.Narrow || p.Refuses && !p.From.IsValid() && !p.To.IsValid() && p.In == "" && p.Mask == 0
		all = append(all, p)
	}
	if s.policies == nil {
		s.policies = map[service.Family][]Policy{}
	}
	s.policies[f] = all
	return all
}

// Refuses implements Roads.
func (s *System) Refuses(table uint32, to netip.Addr) (typ uint8, best netip.Prefix) {
	all, _ := s.kernel().RouteListFiltered(familyOf(service.FamilyOf(to)), &netlink.Route{Table: int(table)}, netlink.RT_FILTER_TABLE)
	for i := range all {
		p := prefixOf(all[i].Dst)
		if !p.IsValid() {
			p = netip.PrefixFrom(to, 0).Masked()
		}
		if p.Contains(to) && (typ == 0 || p.Bits() > best.Bits()) {
			typ, best = uint8(all[i].Type), p
		}
	}
	return typ, best
}

// Setting implements Roads.
func (s *System) Setting(name string) string {
	text, err := os.ReadFile("/proc/sys/net/" + name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// Device implements Roads.
func (s *System) Device(name string) Device {
	if d, known := s.devices[name]; known {
		return d
	}
	var d Device
	if l, err := s.kernel().LinkByName(name); err == nil {
		d = Device{Bridge: l.Type() == "bridge", NoCarrier: l.Attrs().RawFlags&unix.IFF_LOWER_UP == 0}
		if l.Attrs().MasterIndex != 0 {
			d.Master = s.link(l.Attrs().MasterIndex).Name
		}
		if d.Bridge {
			d.Networks = s.networks(l)
		}
		d.Doubts = s.attached(l)
	}
	if s.devices == nil {
		s.devices = map[string]Device{}
	}
	s.devices[name] = d
	return d
}

// networks returns those of the addresses of an interface.
func (s *System) networks(l netlink.Link) (all []netip.Prefix) {
	addrs, _ := s.kernel().AddrList(l, unix.AF_UNSPEC) // none: no pods are in one
	for i := range addrs {
		all = append(all, prefixOf(addrs[i].IPNet))
	}
	return all
}

// resolving is how long the answer of a neighbour may take.
const resolving = 100 * time.Millisecond

// Neighbour implements Roads. While the kernel asks, it looks a second time, once for all.
func (s *System) Neighbour(on Link, a netip.Addr) Neighbour {
	n := s.neighbour(on, a)
	if n.Asking && !s.waited {
		time.Sleep(resolving)
		s.waited, s.neighbours = true, nil
		n = s.neighbour(on, a)
	}
	return n
}

// userHZ are a second's ticks for programs (kernel: include/asm-generic/param.h, USER_HZ).
const userHZ = 100

func (s *System) neighbour(on Link, a netip.Addr) Neighbour {
	for _, n := range s.neighboursAt(on.Index, service.FamilyOf(a)) {
		if addrOf(n.IP) == a {
			x := Neighbour{
				Failed: n.State&unix.NUD_FAILED != 0, Asking: n.State&unix.NUD_INCOMPLETE != 0,
				Age: time.Duration(n.Updated) * time.Second / userHZ,
			}
			if at := s.heard(a); len(at) == 1 && at[0] != int(on.Index) {
				x.At = link(at[0]).Name
			}
			return x
		}
	}
	return Neighbour{}
}

// neighboursAt returns those of an interface, of 0 for all.
func (s *System) neighboursAt(index uint32, f service.Family) []netlink.Neigh {
	key := [2]int{int(index), familyOf(f)}
	all, known := s.neighbours[key]
	if !known {
		all, _ = s.kernel().NeighList(key[0], key[1]) // none: nothing is known
		if s.neighbours == nil {
			s.neighbours = map[[2]int][]netlink.Neigh{}
		}
		s.neighbours[key] = all
	}
	return all
}

// addrOf returns an address of the library, the zero one for none.
func addrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// Listens implements Roads. The sockets of SCTP are not known.
func (s *System) Listens(p service.Protocol, at netip.AddrPort) (listens, known bool) {
	if p == service.SCTP {
		return false, false
	}
	if s.listeners == nil && s.unlisted == nil {
		var all []proc.Listener
		all, s.unlisted = proc.Listeners(os.DirFS("/proc/thread-self/net"))
		s.listeners = map[uint16][]proc.Listener{}
		for _, l := range all {
			s.listeners[l.Addr.Port()] = append(s.listeners[l.Addr.Port()], l)
		}
	}
	for _, l := range s.listeners[at.Port()] {
		if l.Protocol == p && l.ConflictsWith(at) {
			return true, true
		}
	}
	return false, s.unlisted == nil
}

// shapers are the queueing disciplines that drop packets beyond a limit, or for a test.
var shapers = map[string]bool{"tbf": true, "netem": true, "blackhole": true}

// attached returns what an interface has that may drop packets: XDP programs, filters and
// programs of tc, and shapers.
func (s *System) attached(l netlink.Link) (all []explain.Doubt) {
	name := l.Attrs().Name
	add := func(what, look string) {
		all = append(all, explain.Doubt{Rule: what + " of interface " + name, Does: explain.Drops, Why: "it is not followed", Look: look + name})
	}
	if x := l.Attrs().Xdp; x != nil && x.Attached {
		add("the XDP program", "ip -d link show ")
	}
	for _, side := range []struct {
		name   string
		parent uint32
		attach ebpf.AttachType
	}{{"ingress", netlink.HANDLE_MIN_INGRESS, ebpf.AttachTCXIngress}, {"egress", netlink.HANDLE_MIN_EGRESS, ebpf.AttachTCXEgress}} {
		if filters, err := s.kernel().FilterList(l, side.parent); err == nil && len(filters) > 0 {
			add("a tc filter at "+side.name, "tc -s filter show "+side.name+" dev ")
		}
		if programs, err := ebpflink.QueryPrograms(ebpflink.QueryOptions{Target: l.Attrs().Index, Attach: side.attach}); err == nil && len(programs.Programs) > 0 {
			add("a BPF program at "+side.name, "bpftool net show dev ")
		}
	}
	disciplines, _ := s.kernel().QdiscList(l) // none: nothing is known
	for _, q := range disciplines {
		if shapers[q.Type()] {
			add("queueing discipline "+q.Type(), "tc -s qdisc show dev ")
		}
	}
	return all
}

// Secures implements Roads. Of several policies the one with the least priority counts.
func (s *System) Secures(l *Leg, proto service.Protocol, port uint16) Security {
	f := service.FamilyOf(l.To)
	all, known := s.secured[f]
	if !known {
		all, _ = netlink.XfrmPolicyList(familyOf(f)) // none: the kernel lacks them
		slices.SortStableFunc(all, func(a, b netlink.XfrmPolicy) int { return cmp.Compare(a.Priority, b.Priority) })
		if s.secured == nil {
			s.secured = map[service.Family][]netlink.XfrmPolicy{}
		}
		s.secured[f] = all
	}
	for _, dir := range []netlink.Dir{netlink.XFRM_DIR_FWD, netlink.XFRM_DIR_OUT} {
		i := slices.IndexFunc(all, func(p netlink.XfrmPolicy) bool { return p.Dir == dir && secures(&p, l, proto, port) })
		if i < 0 || dir == netlink.XFRM_DIR_FWD && l.In == (Link{}) {
			continue
		}
		p := &all[i]
		if blocks := p.Action == netlink.XFRM_POLICY_BLOCK; blocks || len(p.Tmpls) > 0 {
			return Security{fmt.Sprintf("from %s to %s %s", prefixOf(p.Src), prefixOf(p.Dst), p.Dir), blocks}
		}
	}
	return Security{}
}

// secures reports whether p selects l (kernel: include/net/xfrm.h, xfrm_selector_match). A policy
// with a mark, an interface or the port of the client does not count.
func secures(p *netlink.XfrmPolicy, l *Leg, proto service.Protocol, port uint16) bool {
	has := func(n *net.IPNet, a netip.Addr) bool { return n == nil || !a.IsValid() || prefixOf(n).Contains(a) }
	endpoint, client := p.DstPort, p.SrcPort
	if l.Reply {
		endpoint, client = client, endpoint
	}
	return has(p.Src, l.From) && has(p.Dst, l.To) && (p.Proto == 0 || p.Proto == netlink.Proto(protocolNumbers[proto])) &&
		(endpoint == 0 || endpoint == int(port)) && client == 0 && p.Ifindex == 0 && p.Ifid == 0 && p.Mark == nil
}
