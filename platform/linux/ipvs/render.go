// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipset"
	"kubeproxy/platform/linux/iptables"
)

// Document is what a node would hold in one family.
type Document struct {
	Family    string          `json:"family"`
	Device    string          `json:"device"`
	Addresses []Address       `json:"addresses"`
	Servers   []VirtualServer `json:"virtualServers"`
	Sets      []Set           `json:"sets"`
	Chains    iptables.Tables `json:"chains"`

	family      service.Family
	lacksDevice bool
	portOf      func(comment string) service.PortName // of elements of sets
}

// Set is a set with its elements, each in the format of ipset.
type Set struct {
	Name     string     `json:"name"`
	Type     ipset.Type `json:"type"`
	Elements []Element  `json:"elements,omitempty"`

	set     ipset.Set
	members []ipset.Member
}

// Element is an element of a set, with its Service if it belongs to a single one.
type Element struct {
	Element string `json:"element"`
	Service string `json:"service,omitempty"`
}

// Address has a local route.
type Address struct {
	Addr   netip.Addr `json:"address"`
	Source netip.Addr `json:"source,omitzero"` // of the node's own connections
}

// VirtualServer is the virtual server of one address and port.
type VirtualServer struct {
	Service      string           `json:"service"`
	Protocol     string           `json:"protocol"`
	Address      netip.AddrPort   `json:"address"`
	Scheduler    string           `json:"scheduler"`
	Flags        []string         `json:"flags,omitempty"`
	Persistent   uint32           `json:"persistent,omitempty"` // seconds
	Destinations []netip.AddrPort `json:"destinations"`

	remarks []string // lines, in text only
	port    service.PortName
	key     service.Address
}

// schedulerWords are what ipvsadm(8) calls flags whose meaning depends on the scheduler.
var schedulerWords = map[uint32]map[string]string{
	flagSched1: {"mh": "mh-fallback", "sh": "sh-fallback"},
	flagSched2: {"mh": "mh-port", "sh": "sh-port"},
}

// Render returns what a node would hold for want in both families after a start from nothing, with
// exactly the addresses of the snapshot. The text has parts for each family, each under the command
// that accepts it: ip, ipvsadm, which takes no comments, ipset, and iptables or ip6tables, in the
// format of ipvsadm -S, ipset save and iptables-save. The document has it in lists.
func Render(want *service.Snapshot, o Options) (reconcile.Objects, any) {
	return reconcile.Families(func(f service.Family) Document { return NewDocument(f, want, o) })
}

// NewDocument returns what a node would hold in family f.
func NewDocument(f service.Family, want *service.Snapshot, o Options) Document {
	d := Document{Family: f.String(), Device: Device, family: f, portOf: service.ParsePortName, Chains: iptables.Document(f, want, o.chains(f))}
	counts, members := map[netip.Addr]int{}, nodeMembers(want.Node, f)
	source, at := nodeView{node: want.Node}.source(f), newLocalNode(want, f)
	for p := range want.Ports(f) {
		countAddrs(counts, p, want.Node, 1)
		for _, s := range o.servers(p, at) {
			if len(s.endpoints) > 0 {
				d.Servers = append(d.Servers, newVirtualServer(p, s))
				members[virtualServerSet] = append(members[virtualServerSet], ipset.Member{Entry: entryOf(s.key)})
			}
		}
	}
	for _, a := range slices.SortedFunc(maps.Keys(counts), netip.Addr.Compare) {
		d.Addresses = append(d.Addresses, Address{a, source})
	}
	d.Sets = wantedSets(f, want, members, nil)
	return d
}

// nodeMembers returns the members of the set of the node's addresses, by the set's name.
func nodeMembers(node *service.Node, f service.Family) map[string][]ipset.Member {
	all := map[string][]ipset.Member{}
	for _, a := range ownAddrs(node, f) {
		all[nodeIPSet] = append(all[nodeIPSet], ipset.Member{Entry: ipset.Entry{Addr: a}})
	}
	return all
}

// wantedSets returns the sets for want. members are those of the two sets that depend on
// virtual servers, and held the existing elements.
func wantedSets(f service.Family, want *service.Snapshot, members map[string][]ipset.Member, held map[element]use) []Set {
	_, uses := countUses(f, want, held)
	for e := range uses {
		members[e.set] = append(members[e.set], ipset.Member{Entry: e.Entry, Comment: uses[e].comment})
	}
	var sets []Set
	for _, name := range allNames() {
		sets = append(sets, newSet(setOf(f, name), members[name]))
	}
	return sets
}

// newSet sorts members.
func newSet(s ipset.Set, members []ipset.Member) Set {
	slices.SortFunc(members, func(a, b ipset.Member) int { return a.Entry.Compare(b.Entry) })
	x := Set{Name: s.Name, Type: s.Type, set: s, members: members}
	for _, m := range members {
		x.Elements = append(x.Elements, Element{s.Text(m.Entry), m.Comment})
	}
	return x
}

func newVirtualServer(p *service.Port, s desiredServer) VirtualServer {
	v := VirtualServer{
		port: p.Name, key: s.key, Service: p.Name.String(), Protocol: s.key.Protocol.String(), Address: netip.AddrPortFrom(s.key.Addr, s.key.Port),
		Scheduler: s.scheduler, Persistent: s.timeout, Flags: flagWords(s.server),
	}
	for _, e := range s.endpoints {
		v.Destinations = append(v.Destinations, e.Addr)
	}
	return v
}

// flagWords returns the flags of s as ipvsadm(8) calls them.
func flagWords(s server) []string {
	var words []string
	for _, bit := range []uint32{flagSched1, flagSched2} {
		if s.flags&bit != 0 {
			words = append(words, cmp.Or(schedulerWords[bit][s.scheduler], fmt.Sprintf("flag-%d", bit)))
		}
	}
	return words
}

// Objects returns d as text.
func (d Document) Objects() reconcile.Objects {
	var all reconcile.Objects
	ip := "ip"
	if d.family == service.IPv6 {
		ip = "ip -6"
	}
	all.Add("# for %s -batch -\n", ip)
	switch {
	case d.lacksDevice:
		all.Add("# there is no interface %s\n", Device)
	case d.family == service.IPv4:
		all.Add("link add %s type dummy\nlink set %s up\n", Device, Device)
	}
	for _, a := range d.Addresses {
		src := ""
		if a.Source.IsValid() {
			src = " src " + a.Source.String()
		}
		all.Add("route replace local %s dev %s table local proto 107 metric 1024%s\n", a.Addr, Device, src)
	}
	all.Add("# for grep ^- | ipvsadm -R\n")
	for _, s := range d.Servers {
		all.AddFor(s.port, "%s", s.text())
	}
	all.Add("# for ipset restore\n")
	for _, s := range d.Sets {
		s.set.Write(s.members, func(line, comment string) { all.AddFor(d.portOf(comment), "%s", line) })
	}
	return append(all, d.Chains.Objects()...)
}

// at returns the ipvsadm options that identify s.
func (s VirtualServer) at() string {
	return map[string]string{"tcp": "-t ", "udp": "-u ", "sctp": "--sctp-service "}[s.Protocol] + s.Address.String()
}

// String returns the line of ipvsadm -S -n for s, without destinations.
func (s VirtualServer) String() string {
	text := fmt.Sprintf("-A %s -s %s", s.at(), s.Scheduler)
	if s.Persistent > 0 {
		text += fmt.Sprintf(" -p %d", s.Persistent)
	}
	if len(s.Flags) > 0 {
		text += " -b " + strings.Join(s.Flags, ",")
	}
	return text
}

// text returns s in the format of ipvsadm -S -n, after its Service.
func (s VirtualServer) text() string {
	text := fmt.Sprintf("# %s\n%s\n", s.Service, s)
	for _, a := range s.Destinations {
		text += fmt.Sprintf("-a %s -r %s -m -w 1\n", s.at(), a)
	}
	for _, r := range s.remarks {
		text += r + "\n"
	}
	return text
}

// ReadBack returns what the kernel holds, and what it would hold for want, in the text and
// order of Render. Destinations that drain are left out, because they get no connections.
func (b *Backend) ReadBack(ctx context.Context, want *service.Snapshot) (held, wanted reconcile.Objects, err error) {
	view, err := b.view(ctx, want)
	if err != nil {
		return nil, nil, err
	}
	s, err := b.driver.Read(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("list what IPVS has: %w", err)
	}
	would := NewDocument(b.family, view, b.options)
	have := Document{Family: would.Family, Device: Device, family: b.family, lacksDevice: !s.device}
	for _, r := range s.routes {
		have.Addresses = append(have.Addresses, Address{r.addr, r.source})
	}
	slices.SortFunc(have.Addresses, func(x, y Address) int { return x.Addr.Compare(y.Addr) })
	if have.Servers, err = b.readServers(ctx, s, would.Servers); err != nil {
		return nil, nil, err
	}
	if err := b.rules.(*rules).readBack(ctx, view, b.serverElements(view, s), &have, &would); err != nil {
		return nil, nil, err
	}
	return have.Objects(), would.Objects(), nil
}

// readBack sets in have the sets and chains of the kernel, and in would what it would hold for
// want, in one order. members are those of sets that depend on virtual servers.
func (r *rules) readBack(ctx context.Context, want *service.Snapshot, members map[string][]ipset.Member, have, would *Document) error {
	have.portOf = want.Commented(r.family, func(n service.PortName) string { return ipset.Comment(n.String()) })
	would.portOf = have.portOf
	elements := map[element]use{}
	for _, name := range allNames() {
		s := setOf(r.family, name)
		held, err := r.sets.Members(s)
		if errors.Is(err, ipset.ErrMissing) {
			continue
		}
		if err != nil {
			return fmt.Errorf("list ipset %s: %w", s.Name, err)
		}
		for _, m := range held {
			elements[element{name, m.Entry}] = use{1, m.Comment}
		}
		have.Sets = append(have.Sets, newSet(s, held))
	}
	would.Sets = wantedSets(r.family, want, members, elements)
	var err error
	have.Chains, would.Chains, err = r.chains.ReadTables(ctx, want)
	return err
}

// serverElements returns the elements of the sets that depend on servers, those of others, too.
func (b *Backend) serverElements(view *service.Snapshot, s *state) map[string][]ipset.Member {
	all, at := nodeMembers(view.Node, b.family), newLocalNode(view, b.family)
	served := map[service.Address]bool{}
	for p := range view.Ports(b.family) {
		for _, w := range b.options.servers(p, at) {
			if len(w.endpoints) > 0 {
				served[w.key] = true
			}
		}
	}
	for k, l := range s.servers {
		if !l.owned() || b.options.excludes(k.Addr) {
			served[k] = true
		}
	}
	for k := range served {
		all[virtualServerSet] = append(all[virtualServerSet], ipset.Member{Entry: entryOf(k)})
	}
	return all
}

// readServers returns our virtual servers, those that are wanted first and in their order.
func (b *Backend) readServers(ctx context.Context, s *state, wanted []VirtualServer) ([]VirtualServer, error) {
	var all []VirtualServer
	seen := map[service.Address]bool{}
	add := func(k service.Address, of string, port service.PortName) error {
		l := s.servers[k]
		if l == nil || seen[k] {
			return nil
		}
		seen[k] = true
		dests := l.dests
		if !l.destsKnown {
			var err error
			if dests, err = b.driver.Dests(ctx, k); err != nil {
				return fmt.Errorf("list the endpoints of virtual server %s: %w", nameOf(k), err)
			}
		}
		v := observedVirtualServer(k, l, of, dests)
		v.port = port
		all = append(all, v)
		return nil
	}
	for _, w := range wanted {
		if err := add(w.key, w.Service, w.port); err != nil {
			return nil, err
		}
	}
	for _, k := range sortedKeys(s.servers) {
		if !s.servers[k].owned() {
			continue
		}
		if err := add(k, "of no Service", service.PortName{}); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func observedVirtualServer(k service.Address, l *observedServer, of string, dests []dest) VirtualServer {
	o := l.server.normalized()
	v := VirtualServer{
		Service: of, Protocol: k.Protocol.String(), Address: netip.AddrPortFrom(k.Addr, k.Port),
		Scheduler: o.scheduler, Flags: flagWords(o), Persistent: o.timeout,
	}
	if !l.owned() {
		v.Service += ", made by another program"
	}
	for _, d := range dests {
		switch {
		case d.wrongMode:
			v.remarks = append(v.remarks, fmt.Sprintf("# %s is not masqueraded", d.addr))
		case d.weight > 0:
			v.Destinations = append(v.Destinations, d.addr)
		}
	}
	return v
}

// In mode ipvs, kube-proxy assigns the addresses of Services to the interface Device. It
// has virtual servers on these addresses and, for NodePorts, on the node's addresses.
// Its iptables rules match ipsets, which contain the NodePorts.

// upstreamState is what kube-proxy's mode ipvs left for one family, without servers.
type upstreamState struct {
	addrs map[netip.Addr]bool      // on Device
	node  map[netip.Addr]bool      // on other interfaces
	ports map[service.Address]bool // of the node, without family
	sets  []string                 // names
}

// owns reports whether kube-proxy made the server k, as far as can be told.
func (u *upstreamState) owns(k service.Address) bool {
	return u.addrs[k.Addr] || u.node[k.Addr] && u.ports[service.Address{Port: k.Port, Protocol: k.Protocol}]
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

// longestSet bounds the name of an ipset (kernel: include/uapi/linux/netfilter/ipset/ip_set.h,
// IPSET_MAXNAMELEN).
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
		if l := s.servers[k]; !l.owned() && u.owns(k) && !o.excludes(k.Addr) {
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
