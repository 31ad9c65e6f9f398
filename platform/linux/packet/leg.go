// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"kubeproxy/common/explain"
	"kubeproxy/common/service"
)

// Leg is a packet at a routing decision of the node.
type Leg struct {
	From, To netip.Addr // From is invalid if the node chooses it
	In       Link       // the zero value for what the node sends
	Mark     uint32
	Reply    bool
	// marked means that the mark is not known.
	marked bool
}

// Road is what the kernel decided for a Leg.
type Road struct {
	Type    uint8
	Out     Link
	Gateway netip.Addr // invalid if the destination is on the link
	Source  netip.Addr // of what the node sends
	Table   uint32
}

// Policy is a rule that chooses a table of routes, or refuses, see ip-rule(8).
type Policy struct {
	Priority   int
	From, To   netip.Prefix // invalid for all
	In         string
	Mark, Mask uint32
	Not        bool
	Narrow     bool // it asks for more, such as ports
	Table      uint32
	Refuses    bool // in place of leading to a table
}

// Refusal is why the kernel refuses a Leg.
type Refusal uint8

// The refusals. Each but the last has an error of the kernel (kernel: net/ipv4/route.c,
// ip_route_input_slow, and net/ipv4/fib_semantics.c, fib_props).
const (
	Unreachable Refusal = iota + 1 // EHOSTUNREACH: forwarding is off, or a route says so
	Invalid                        // EINVAL and EXDEV: a source that is not from there, or a blackhole
	Prohibited                     // EACCES
	NoRoute                        // ENETUNREACH
	Failed                         // any other
)

// Neighbour is an entry of the table of neighbours, see ip-neighbour(8).
type Neighbour struct {
	Failed, Asking bool
	Age            time.Duration // since it is so
	At             string        // the interface at which it answers instead, if that is one alone
}

// Security is an IPsec policy that does not let packets pass as they are. Text is empty for none.
type Security struct {
	Text   string
	Blocks bool
}

// Device is what matters of an interface.
type Device struct {
	Bridge, NoCarrier bool
	Master            string
	Networks          []netip.Prefix // of the addresses of a bridge
	// Doubts are what may drop packets there, and is not followed.
	Doubts []explain.Doubt
}

// Roads is what a Node may implement: it answers as the kernel does for a packet.
type Roads interface {
	// Road returns the route of a packet. The refusal is 0 if there is one.
	Road(Leg) (Road, Refusal)
	// ByDefault reports whether only the default route matches an address.
	ByDefault(netip.Addr) bool
	// Policies lists the rules of a family in their order.
	Policies(service.Family) []Policy
	// Refuses returns type and prefix of the route in a table for an address, type 0 for none.
	Refuses(table uint32, to netip.Addr) (typ uint8, prefix netip.Prefix)
	// Setting returns a setting below net, "" if there is none.
	Setting(name string) string
	Device(name string) Device
	Neighbour(Link, netip.Addr) Neighbour
	// Secures returns the IPsec policy for a packet to, or from, a port of an endpoint.
	Secures(*Leg, service.Protocol, uint16) Security
	// Listens reports whether a program listens, and whether that is known.
	Listens(service.Protocol, netip.AddrPort) (listens, known bool)
}

// Names of the tables that a node has without any rule (linux/rtnetlink.h).
const (
	tableDefault = 253
	tableMain    = 254
	tableLocal   = 255
)

// refusing are the types of routes that refuse, by the names of ip-route(8).
var refusing = map[uint8]string{6: "blackhole", unreachable: "unreachable", 8: "prohibit", 9: "throw"}

// Selects reports whether p is for l.
func (p *Policy) Selects(l *Leg) Match {
	in := l.In.Name
	if l.In == (Link{}) {
		in = Loopback().Name
	}
	fits := (!p.From.IsValid() || p.From.Bits() == 0 || p.From.Contains(l.From)) && (!p.To.IsValid() || p.To.Contains(l.To)) &&
		(p.In == "" || p.In == in) && l.Mark&p.Mask == p.Mark
	switch {
	case p.Narrow && fits != p.Not, p.Mask != 0 && l.marked:
		return Maybe
	}
	return matches(fits != p.Not)
}

// String shows p as ip rule does.
func (p *Policy) String() string {
	words := []string{"from all"}
	if p.From.IsValid() && p.From.Bits() > 0 {
		words[0] = "from " + bare(p.From)
	}
	if p.Not {
		words[0] = "not " + words[0]
	}
	if p.To.IsValid() {
		words = append(words, "to "+bare(p.To))
	}
	if p.Mask != 0 {
		mark := fmt.Sprintf("fwmark %#x", p.Mark)
		if p.Mask != ^uint32(0) {
			mark += fmt.Sprintf("/%#x", p.Mask)
		}
		words = append(words, mark)
	}
	if p.In != "" {
		words = append(words, "iif "+p.In)
	}
	if !p.Refuses {
		words = append(words, "lookup "+tableName(p.Table))
	}
	return strings.Join(words, " ")
}

func bare(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

func tableName(n uint32) string {
	if name, known := map[uint32]string{tableDefault: "default", tableMain: "main", tableLocal: "local"}[n]; known {
		return name
	}
	return fmt.Sprint(n)
}

// ways is what was found on the ways of a connection and its answers.
type ways struct {
	Roads
	proto  service.Protocol
	here   func(netip.AddrPort) bool // may be nil
	routes map[netip.Addr]string
	// replies are as in explain.Walk.
	replies map[netip.Addr]string
	found   []*found
	links   []string // on the way
}

// found is an obstacle, or a doubt, that several addresses may share.
type found struct {
	explain.Obstacle // What has a verb for about
	doubt            bool
	about            []string
}

// add records an obstacle. text has %s for the addresses that it is about.
func (w *ways) add(o explain.Obstacle, about netip.Addr) *found {
	i := slices.IndexFunc(w.found, func(f *found) bool { return f.What == o.What })
	if i < 0 {
		i, w.found = len(w.found), append(w.found, &found{Obstacle: o})
	}
	f := w.found[i]
	if text := about.String(); !slices.Contains(f.about, text) {
		f.about = append(f.about, text)
	}
	return f
}

// text names the first addresses.
func (f *found) text() string { return strings.Replace(f.What, "%s", explain.Some(f.about), 1) }

func (w *ways) report() (all []explain.Obstacle, doubts []explain.Doubt) {
	for _, f := range w.found {
		if f.doubt {
			doubts = append(doubts, explain.Doubt{Rule: f.text(), Look: f.Look})
			continue
		}
		f.What = f.text()
		all = append(all, f.Obstacle)
	}
	return all, doubts
}

// take asks for the road of l, and records what is wrong with it. of is the endpoint that the
// packet goes to, invalid for another destination, or whose answer it is.
func (w *ways) take(l Leg, of netip.AddrPort) (Road, bool) {
	r, refusal := w.Road(l)
	w.pass(l.In)
	if w.disabled6(&l, l.In.Name) {
		return r, false
	}
	if refusal != 0 {
		if !w.disabled6(&l, "all") {
			w.refused(&l, refusal)
		}
		return r, false
	}
	w.pass(r.Out)
	if r.Type != Local && w.disabled6(&l, r.Out.Name) {
		return r, false
	}
	if !of.IsValid() {
		return r, true
	}
	w.describe(&l, &r, of)
	if r.Type == Local {
		return r, l.Reply || w.listener(of)
	}
	return r, w.forwards6(&l) && w.strays(&l, &r, of) && w.allowed(&l, of) && w.next(&l, &r)
}

// pass remembers an interface.
func (w *ways) pass(l Link) {
	if l.Name != "" && !slices.Contains(w.links, l.Name) {
		w.links = append(w.links, l.Name)
	}
}

// describe keeps the text of a route.
func (w *ways) describe(l *Leg, r *Road, of netip.AddrPort) {
	text := r.describe()
	if by := w.selected(l, r.Table); by != nil && r.Table < tableDefault || by != nil && r.Table > tableLocal {
		text += fmt.Sprintf(", table %d by rule %q", r.Table, by)
	}
	if l.Reply {
		w.replies[of.Addr()] = "answers to " + l.To.String() + ": " + text
	} else {
		w.routes[of.Addr()] = text
	}
}

func (r *Road) describe() string {
	if r.Type == Local {
		return "to the node itself"
	}
	text := "direct"
	if r.Gateway.IsValid() {
		text = "via " + r.Gateway.String()
	}
	if r.Out.Name != "" {
		text += ", interface " + r.Out.Name
	}
	if r.Source.IsValid() {
		text += ", source " + r.Source.String()
	}
	return text
}

// selected returns the rule that led to a table, nil if that is unknown.
func (w *ways) selected(l *Leg, table uint32) *Policy {
	all := w.Policies(service.FamilyOf(l.To))
	for i := range all {
		if p := &all[i]; p.Table == table && p.Selects(l) != No {
			return p
		}
	}
	return nil
}

// subject names the packets of l, with %s for the address that an obstacle is about.
func (l *Leg) subject() string {
	switch {
	case l.Reply:
		return "answers of %s to " + l.To.String()
	case l.From.IsValid():
		return "packets of " + l.From.String() + " to %s"
	}
	return "packets to %s"
}

// about is the address that an obstacle of l is about: the endpoint.
func (l *Leg) about() netip.Addr {
	if l.Reply {
		return l.From
	}
	return l.To
}

// refused says why the kernel refuses l.
func (w *ways) refused(l *Leg, refusal Refusal) {
	look := l.command()
	if refusal == Unreachable && l.In.Name != "" && w.forwardingOff(l) {
		return
	}
	if by := w.refusingRoute(l, refusal); by != "" {
		w.add(explain.Obstacle{What: "the node has no route for " + l.subject() + ": " + by, Look: look}, l.about())
		return
	}
	if filter := w.filter(l.In.Name); refusal == Invalid && filter > 0 {
		w.filtered(l, filter)
		return
	}
	why := map[Refusal]string{Unreachable: "no route to host", Invalid: "the kernel takes the source for impossible there", Prohibited: "prohibited", NoRoute: "network is unreachable"}[refusal]
	if why == "" {
		why = "the kernel names none"
	}
	f := w.add(explain.Obstacle{What: "the node has no route for " + l.subject() + ": " + why, Look: look}, l.about())
	byMark := func(p Policy) bool { return l.marked && p.Mask != 0 }
	f.doubt = refusal == Failed || slices.ContainsFunc(w.Policies(service.FamilyOf(l.To)), byMark)
}

// command shows what the kernel decides for l.
func (l *Leg) command() string {
	words := []string{"ip route get", l.To.String()}
	if l.From.IsValid() {
		words = append(words, "from", l.From.String())
	}
	if l.In.Name != "" {
		words = append(words, "iif", l.In.Name)
	}
	if l.Mark != 0 {
		words = append(words, "mark", fmt.Sprintf("%#x", l.Mark))
	}
	return strings.Join(words, " ")
}

// forwardingOff reports whether forwarding of IPv4 is off where l enters, and says so.
func (w *ways) forwardingOff(l *Leg) bool {
	name := "ipv4/conf/" + l.In.Name + "/forwarding"
	if l.To.Is6() || w.Setting(name) != "0" {
		return false
	}
	if w.Setting("ipv4/ip_forward") == "0" {
		w.add(explain.Obstacle{What: "net.ipv4.ip_forward is 0, so the node forwards nothing, also no " + l.subject(), Fix: "sysctl -w net.ipv4.ip_forward=1"}, l.about())
		return true
	}
	w.add(explain.Obstacle{
		What: dotted(name) + " is 0, so the node forwards nothing that comes in by " + l.In.Name + ", also no " + l.subject(), Fix: sysctlWrite(name, "1"),
	}, l.about())
	return true
}

// dotted is the name of a setting as sysctl shows it.
func dotted(name string) string {
	if strings.Contains(name, ".") {
		return "net/" + name
	}
	return "net." + strings.ReplaceAll(name, "/", ".")
}

func sysctlWrite(name, value string) string { return "sysctl -w " + dotted(name) + "=" + value }

// forwards6 reports whether IPv6 is forwarded. The kernel decides that after the route, for all
// interfaces at once (kernel: net/ipv6/ip6_output.c, ip6_forward).
func (w *ways) forwards6(l *Leg) bool {
	const name = "ipv6/conf/all/forwarding"
	if l.To.Is4() || l.In == (Link{}) || w.Setting(name) != "0" || w.Setting("ipv6/conf/"+l.In.Name+"/force_forwarding") == "1" {
		return true
	}
	w.add(explain.Obstacle{What: dotted(name) + " is 0, so the node forwards nothing, also no " + l.subject(), Fix: sysctlWrite(name, "1")}, l.about())
	return false
}

// disabled6 reports whether IPv6 is off on an interface, and says so. The kernel drops what comes in
// there, and what is to leave (kernel: net/ipv6/ip6_input.c, ip6_rcv_core, and
// net/ipv6/ip6_output.c, ip6_output). Those of "all" were off when that was written, and may be on.
func (w *ways) disabled6(l *Leg, on string) bool {
	name := "ipv6/conf/" + on + "/disable_ipv6"
	if l.To.Is4() || on == "" || w.Setting(name) != "1" {
		return false
	}
	w.add(explain.Obstacle{
		What: dotted(name) + " is 1, so the node has no addresses and routes of IPv6 there and drops its packets, also " + l.subject(), Fix: sysctlWrite(name, "0"), Look: "ip -6 addr",
	}, l.about())
	return true
}

// refusingRoute names the rule or the route that refuses l, "" if there is none.
func (w *ways) refusingRoute(l *Leg, refusal Refusal) string {
	kind := map[Refusal]string{Unreachable: "unreachable", Invalid: "blackhole", Prohibited: "prohibit"}[refusal]
	all := w.Policies(service.FamilyOf(l.To))
	for i := range all {
		p := &all[i]
		if p.Selects(l) != Yes {
			continue
		}
		if p.Refuses {
			return fmt.Sprintf("%s, by rule %q", kind, p.String()+" "+kind)
		}
		typ, prefix := w.Refuses(p.Table, l.To)
		name := refusing[typ]
		switch {
		case typ == 0 || name == "throw":
			continue
		case name == "":
			return ""
		case p.Table == tableMain || p.Table == tableDefault || p.Table == tableLocal:
			return fmt.Sprintf("%s %s", name, prefix)
		}
		return fmt.Sprintf("%s %s of table %d, by rule %q", name, prefix, p.Table, p)
	}
	return ""
}

// filter returns how strict the reverse path filter of an interface is, 0 for none. The higher
// of two settings counts (https://docs.kernel.org/networking/ip-sysctl.html, rp_filter).
func (w *ways) filter(in string) int {
	most := 0
	for _, name := range []string{"all", in} {
		if s := w.Setting("ipv4/conf/" + name + "/rp_filter"); len(s) == 1 && in != "" {
			most = max(most, int(s[0]-'0'))
		}
	}
	return most
}

const strict = 1

// filtered says that the reverse path filter drops l. The filter asks for the way back as if
// the answer came in where l goes out (kernel: net/ipv4/fib_frontend.c, fib_validate_source).
func (w *ways) filtered(l *Leg, filter int) {
	name := "ipv4/conf/" + l.In.Name + "/rp_filter"
	back, refusal := w.Road(Leg{To: l.From})
	way := "has no route to it"
	if refusal == 0 {
		way = "reaches it by " + back.Out.Name
	}
	if out, refused := w.Road(Leg{To: l.To, Mark: l.Mark}); refused == 0 {
		if by := w.refusingRoute(&Leg{From: l.To, To: l.From, In: out.Out, Mark: l.Mark}, Invalid); by != "" {
			way = "has no route for answers that come in by " + out.Out.Name + ": " + by
		}
	}
	o := explain.Obstacle{Look: "ip route get " + l.From.String()}
	if filter == strict {
		o.What = fmt.Sprintf("rp_filter of interface %s is 1 (strict), and the node %s: it drops packets of %s that come in by %s", l.In.Name, way, l.From, l.In.Name)
		if refusal == 0 {
			o.Fix = sysctlWrite(name, "2")
		}
	} else {
		o.What = fmt.Sprintf("rp_filter of interface %s is %d, and the node %s: it drops packets of %s", l.In.Name, filter, way, l.From)
	}
	w.add(o, l.about())
}

// listener reports whether a program listens at an endpoint that is an address of the node.
func (w *ways) listener(at netip.AddrPort) bool {
	listens, known := w.Listens(w.proto, at)
	if listens || !known {
		return true
	}
	ss := map[service.Protocol]string{service.TCP: "ss -lntp", service.UDP: "ss -lnup"}[w.proto]
	w.add(explain.Obstacle{What: fmt.Sprintf("no program listens at %s/%s, which is an address of this node: it refuses connections", at, w.proto),
		Look: fmt.Sprintf("%s sport = :%d", ss, at.Port())}, at.Addr())
	return false
}

// strays says where a rule or a missing route sends packets another way than the node's own. For
// what is on this node that is an obstacle, for others a doubt.
func (w *ways) strays(l *Leg, r *Road, of netip.AddrPort) bool {
	ours := func() bool { return !l.Reply && w.here != nil && w.here(of) }
	if r.Table == tableMain && !l.Reply && w.ByDefault(l.To) && ours() {
		w.add(explain.Obstacle{What: "%s is an endpoint on this node, and only the default route leads there, " + (&Road{Gateway: r.Gateway, Out: r.Out}).describe() + ": its interface is down or gone", Look: l.command()}, l.about())
		return false
	}
	if r.Table == tableMain || r.Table == 0 {
		return true
	}
	plain, refusal := w.Road(Leg{To: l.To})
	by := w.selected(l, r.Table)
	if refusal != 0 || plain.Out == r.Out && plain.Gateway == r.Gateway || by == nil || l.marked {
		return true
	}
	atHome := !plain.Gateway.IsValid() && !w.ByDefault(l.To)
	f := w.add(explain.Obstacle{
		What: fmt.Sprintf("rule %q sends %s to table %d: %s, and not %s", by, l.subject(), r.Table, r.describe(), (&Road{Gateway: plain.Gateway, Out: plain.Out}).describe()),
		Look: "ip rule; ip route show table " + tableName(r.Table),
	}, l.about())
	f.doubt = !atHome || !l.Reply && !ours()
	return f.doubt
}

// allowed says where an IPsec policy blocks l, or wants it encrypted.
func (w *ways) allowed(l *Leg, of netip.AddrPort) bool {
	p := w.Secures(l, w.proto, of.Port())
	switch {
	case p.Text == "":
	case p.Blocks:
		w.add(explain.Obstacle{What: "the IPsec policy " + p.Text + " blocks " + l.subject(), Look: "ip xfrm policy"}, l.about())
	default:
		w.add(explain.Obstacle{What: "the IPsec policy " + p.Text + " takes " + l.subject() + ", which needs a security association", Look: "ip xfrm policy; ip xfrm state"}, l.about()).doubt = true
	}
	return !p.Blocks
}

// neighbourAge is how long the kernel says that nobody is there, before a packet makes it ask.
const neighbourAge = time.Minute

// next looks at the interface by which l leaves, and at who takes it there.
func (w *ways) next(l *Leg, r *Road) bool {
	if w.Device(r.Out.Name).NoCarrier {
		w.add(explain.Obstacle{What: "interface " + r.Out.Name + " has no carrier, its other end is down or unplugged: nothing carries " + l.subject(), Look: "ip link show " + r.Out.Name}, l.about())
		return false
	}
	hop, who := r.Gateway, "the next hop of "+l.subject()
	if !hop.IsValid() {
		hop, who = l.To, "the receiver of "+l.subject()
	}
	n := w.Neighbour(r.Out, hop)
	if !n.Failed && !n.Asking {
		return true
	}
	question := "ARP"
	if hop.Is6() {
		question = "neighbour solicitations"
	}
	where, look := "it is down, or elsewhere", fmt.Sprintf("ip neighbour show %s dev %s", hop, r.Out.Name)
	if n.At != "" {
		where, look = "it answers on "+n.At+", and the route leads astray", fmt.Sprintf("ip neighbour show %s; ip route get %s", hop, hop)
	}
	f := w.add(explain.Obstacle{
		What: fmt.Sprintf("nobody answers %s for %s on interface %s, %s: %s", question, hop, r.Out.Name, who, where), Look: look,
	}, l.about())
	f.doubt = n.At == "" && (n.Asking || n.Age > neighbourAge)
	return f.doubt
}

// bridged says that two ports of one bridge talk beside netfilter, so that answers are not
// translated back.
// They do if they take each other for neighbours, as in a network of the bridge.
func (w *ways) bridged(in, out Link, client netip.Addr, of netip.AddrPort) {
	bridge := w.bridgeOf(in.Name)
	if bridge == "" || bridge != w.bridgeOf(out.Name) {
		return
	}
	setting := "bridge/bridge-nf-call-iptables"
	if of.Addr().Is6() {
		setting = "bridge/bridge-nf-call-ip6tables"
	}
	o := explain.Obstacle{
		What: "the client and %s are on bridge " + bridge + ", and " + dotted(setting) + " is 0: between its ports, answers go past the rules and are not translated back, so the client takes none",
		Fix:  sysctlWrite(setting, "1"),
	}
	switch w.Setting(setting) {
	case "":
		o.What = strings.Replace(o.What, dotted(setting)+" is 0", "the module br_netfilter is not loaded", 1)
		o.Fix = "modprobe br_netfilter && " + o.Fix
	case "0":
	default:
		return
	}
	f := w.add(o, of.Addr())
	f.doubt = !slices.ContainsFunc(w.Device(bridge).Networks, func(n netip.Prefix) bool {
		return n.Contains(client) && n.Contains(of.Addr()) && !n.IsSingleIP()
	})
}

// bridgeOf returns the bridge that an interface is, or is a port of.
func (w *ways) bridgeOf(name string) string {
	if name == "" {
		return ""
	}
	d := w.Device(name)
	if d.Bridge {
		return name
	}
	if d.Master != "" && w.Device(d.Master).Bridge {
		return d.Master
	}
	return ""
}

// Unfollowed is a table with base chains that are not followed: of bridges, or of devices.
type Unfollowed struct {
	Family, Table string
	Devices       []string // of family netdev
}

// unfollowed records the tables that are on the way, and what interfaces have.
func (w *ways) unfollowed(all []Unfollowed) (doubts []explain.Doubt) {
	for _, link := range w.links {
		doubts = append(doubts, w.Device(link).Doubts...)
	}
	for _, u := range all {
		if slices.ContainsFunc(w.links, func(link string) bool { return w.concerns(&u, link) }) {
			name := u.Family + " " + u.Table
			doubts = append(doubts, explain.Doubt{Rule: "table " + name, Does: explain.Drops, Why: "its base chains are not followed", Look: "nft list table " + name})
		}
	}
	return doubts
}

// concerns reports whether packets that pass an interface may pass base chains of u.
func (w *ways) concerns(u *Unfollowed, link string) bool {
	if u.Family == "bridge" {
		return w.bridgeOf(link) != ""
	}
	return slices.ContainsFunc(u.Devices, func(d string) bool { return d == link || w.Device(d).Master == link })
}
