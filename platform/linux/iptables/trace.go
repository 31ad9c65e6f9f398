// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"net/netip"
	"strconv"
	"time"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/iptables/walk"
)

// Question is a connection to follow through the tables.
type Question struct {
	// Want is the snapshot that the chains are for.
	Want *service.Snapshot
	Conn route.Conn
	// Local reports whether an address belongs to the node.
	Local func(netip.Addr) bool
	// Observed and Expected are the companion objects of the chains in mode ipvs: as they
	// are, and as they should be. Both are nil in other modes.
	Observed, Expected Companion
}

// Companion is what IPVS and ipsets do with packets.
type Companion interface {
	// Local reports whether packets to an address are delivered to the node.
	Local(netip.Addr) bool
	// InSet reports whether fields of p, such as dst,src, are in a set.
	InSet(set, fields string, p walk.Packet) walk.Match
	// Server returns the destinations that take new connections of the virtual server
	// for p. found is false if there is none.
	Server(p walk.Packet) (to []netip.AddrPort, found bool)
}

// Trace reads the tables and returns what they do with the first packet of c. want is the
// snapshot that they are for. local reports whether an address belongs to the node.
func (b *Backend) Trace(ctx context.Context, want *service.Snapshot, c route.Conn, local func(netip.Addr) bool) (*explain.Walk, error) {
	return b.Follow(ctx, Question{Want: want, Conn: c, Local: local})
}

// Follow is Trace for modes with more than chains.
//
// Every chain of ours that the packet meets, or should meet, is compared with the one
// that we write, as far as rules concern such packets. Rules of others are followed, too.
// They are a fault if they decide what happens to the connection.
func (b *Backend) Follow(ctx context.Context, q Question) (*explain.Walk, error) {
	b.readSettings()
	text, t, err := b.list(ctx)
	if err != nil {
		return nil, err
	}
	want := b.withPendingNodePorts(q.Want, t)
	observed, expected := walk.Parse(text), b.expectedTables(want)
	for _, table := range t.dormant {
		observed.Remove(table)
	}
	lists := b.lists()
	have := newPath(b.layout, observed, b.node(q, q.Observed, lists))
	have.follow(q.Conn, q.Observed)
	plan := newPath(b.layout, expected, b.node(q, q.Expected, lists))
	plan.follow(q.Conn, q.Expected)
	c := &traceComparison{layout: b.layout, tables: t, have: have, plan: plan}
	w := have.walk()
	w.Followed, w.Served = b.driver.SavedTables(), b.isIPVS() && have.served
	w.Faults = c.faults()
	w.ByDesign = b.byDesign(q.Conn, want, w.Action)
	if b.needsLocalnet(q, want.Node, plan) {
		w.Faults = append(w.Faults, "net.ipv4.conf.all.route_localnet is 0, so the kernel routes no packet to a loopback address")
	}
	return w, nil
}

// Differences returns what the mode does with c otherwise than Kubernetes says, once all of want is in force.
func Differences(want *service.Snapshot, c route.Conn, o Options) []string {
	does := route.Decide(want, c).Action
	if does == route.Drop {
		does = route.Pass
	}
	if text := (layout{family: service.FamilyOf(c.To.Addr()), options: o}).byDesign(c, want, does); text != "" {
		return []string{text}
	}
	return nil
}

// byDesign returns why the chains differ from what package route decides, "" if they
// should not.
func (l layout) byDesign(c route.Conn, want *service.Snapshot, does route.Action) string {
	v := route.Decide(want, c)
	switch {
	case l.isIPVS() || v.Port != nil:
		return ""
	case v.Action == route.Drop && does == route.Pass:
		return "rules of iptables do not concern addresses of the Service range that no Service has"
	case v.Action == route.Pass && c.To.Addr().IsLoopback() && l.localhost(want.Node):
		return "on loopback addresses NodePorts answer programs of the node, see iptables.localhostNodePorts; explain node:PORT says what the Service does"
	}
	return ""
}

// needsLocalnet reports whether the connection needs route_localnet, which is off.
func (b *Backend) needsLocalnet(q Question, node *service.Node, plan *path) bool {
	return q.Conn.To.Addr().Is4() && q.Conn.To.Addr().IsLoopback() && !b.relays() &&
		b.localhost(node) && !b.localnetRouted && len(plan.targets) > 0
}

// expectedTables returns the tables as they should be.
func (b *Backend) expectedTables(want *service.Snapshot) *walk.Tables {
	t := walk.NewTables()
	for p := range want.Ports(b.family) {
		for _, c := range b.portChains(p, want.Node) {
			t.Append(walk.Chain{Table: c.table, Name: c.name}, c.rules...)
		}
	}
	for _, c := range b.shared(want.Node, want.Ports(b.family), nil) {
		t.Append(walk.Chain{Table: c.table, Name: c.name}, c.rules...)
	}
	for _, j := range b.jumps() {
		t.Append(walk.Chain{Table: j.from.table, Name: j.from.name}, j.rule)
	}
	return t
}

// node returns the answers for rules that depend on more than the headers of a packet.
func (b *Backend) node(q Question, c Companion, listed func(list, seconds string, p walk.Packet) walk.Match) walk.Node {
	hairpin := walk.Argument(walk.Split(b.hairpinMatch()+"-j"), "--bytecode")
	n := walk.Node{
		Local: q.Local, Listed: listed, AnyInterface: true,
		Bytecode: func(code string, p walk.Packet) walk.Match {
			switch {
			case code != hairpin:
				return walk.Unknown
			case p.From == p.To.Addr():
				return walk.Yes
			}
			return walk.No
		},
	}
	if c != nil {
		n.Local, n.InSet = c.Local, c.InSet
	}
	return n
}

// lists returns a function that reports whether a client is in a list of xt_recent. It
// reads each list once.
func (b *Backend) lists() func(list, seconds string, p walk.Packet) walk.Match {
	known := map[string]map[netip.Addr]time.Duration{}
	return func(list, seconds string, p walk.Packet) walk.Match {
		clients, asked := known[list]
		if !asked {
			var err error
			if clients, err = b.driver.Recent(list); err == nil && clients == nil {
				clients = map[netip.Addr]time.Duration{}
			}
			known[list] = clients // nil if they cannot be read
		}
		age, found := clients[p.From]
		limit, err := strconv.Atoi(seconds)
		switch {
		case clients == nil, err != nil && seconds != "":
			return walk.Chance
		case found && (seconds == "" || age < time.Duration(limit)*time.Second):
			return walk.Yes
		}
		return walk.No
	}
}
