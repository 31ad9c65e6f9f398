// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package direct

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/nftables"
)

// mostPeers is how many nodes are asked about for one connection.
const mostPeers = 8

// Inspector looks at what a layer has in the kernel.
type Inspector struct {
	Layer  *Backend
	Kernel *Kernel
}

// Trace adds to w, which is what the rules do with the first packet of c, what the layer does: the half of the node by
// which it comes in, and that of the endpoint's node if this one has endpoints.
func (i Inspector) Trace(ctx context.Context, want *service.Snapshot, c route.Conn, local func(netip.Addr) bool, w *explain.Walk) error {
	v := route.Decide(want, c)
	if v.Action != route.Forward || !v.Port.LeadsDirectly(*v.Frontend) || c.Interface == "" || want.Node.Pods.Contains(c.From, c.Interface) || local(c.To.Addr()) {
		return nil
	}
	x := &inspection{state: i.Layer.state(want), port: v.Port, conn: c, walk: w}
	rules := x.rules
	rules.Tunnel.MSS = mss(i.Layer.family, underlay(x.roads)-overhead)
	table, err := nftables.New(i.Layer.family, nftables.Options{Table: i.Kernel.table.Table})
	if err != nil {
		return err
	}
	defer table.Close()
	if x.coming, x.arriving, err = table.TraceDirect(ctx, &rules, v.Port.Name, c, local); err != nil {
		return err
	}
	x.device()
	x.add()
	return nil
}

// inspection is one run of Trace.
type inspection struct {
	*state
	port             *service.Port
	conn             route.Conn
	walk             *explain.Walk
	coming, arriving nftables.DirectPath
}

// device adds what is wrong with the tunnel.
func (x *inspection) device() {
	w := x.walk
	l, err := device()
	switch {
	case err != nil:
		w.Faults = append(w.Faults, err.Error())
	case l == nil:
		w.Faults = append(w.Faults, "device "+Device+", the tunnel for direct return, is missing")
	case l.Attrs().Flags&net.FlagUp == 0:
		w.Obstacles = append(w.Obstacles, explain.Obstacle{What: "device " + Device + ", the tunnel for direct return, is down", Look: "ip -d link show " + Device})
	}
	if why := x.why[x.port.Name]; why != "" {
		w.Faults = append(w.Faults, fmt.Sprintf("direct return of %s is off, so the rules translate: %s", x.port.Name, why))
	}
	w.Faults = append(w.Faults, x.coming.Faults...)
}

// add adds both halves.
func (x *inspection) add() {
	w, here := x.walk, map[netip.AddrPort]bool{}
	for _, e := range x.coming.Here {
		here[e] = false
	}
	led := len(x.coming.Slots) > 0
	w.DirectReturn = led || len(here) > 0
	rest := maps.Clone(w.Targets)
	if led {
		rest, w.Action = nil, route.Forward
		w.Hops, w.Remembered = nil, netip.AddrPort{}
	}
	w.Targets = maps.Clone(here)
	for e, masqueraded := range rest {
		if _, is := here[e]; !is {
			w.Targets[e] = masqueraded
		}
	}
	own := []explain.Part{{Conn: x.conn, Targets: maps.Clone(w.Targets)}}
	if len(w.Targets) == 0 {
		own = nil
	}
	w.Parts = append(own, x.lead()...)
	hops := named(x.coming.Hops)
	if len(x.coming.Here) > 0 {
		hops = append(hops, explain.Hop{Object: Device + " map locals", Does: "translate it to " + explain.OneOf("endpoints", x.coming.Here) + " here, and keep the client's address"})
	}
	if led {
		hops = append(hops, explain.Hop{Object: Device + " map marks", Does: x.shares()})
	}
	w.Hops = append(hops, w.Hops...)
	x.arrive()
	w.Hops = slices.Compact(w.Hops)
}

func named(hops []explain.Hop) (all []explain.Hop) {
	for _, h := range hops {
		all = append(all, explain.Hop{Object: Device + " " + h.Object, Does: h.Does})
	}
	return all
}

// lead adds the endpoints of other nodes that get the packet through the tunnel. It returns the packets that do that.
func (x *inspection) lead() (parts []explain.Part) {
	marks, routes := x.rules.Ports[x.port.Name].Marks, map[netip.Addr]string{}
	for i, e := range x.port.Cluster {
		node := x.port.Direct.Nodes[i]
		if m := marks[node]; !e.Local && m != 0 && x.coming.Slots[m] > 0 {
			x.walk.Targets[e.Addr] = false
			routes[e.Addr.Addr()] = fmt.Sprintf("through tunnel %s to node %s, %s, which translates it and answers the client", Device, node, x.roads[m])
		}
	}
	x.walk.AddRoutes(routes, map[netip.Addr]string{})
	for _, m := range slices.Sorted(maps.Keys(x.coming.Slots)) {
		to := netip.AddrPortFrom(x.roads[m], Port)
		if len(parts) == 2*mostPeers || !to.IsValid() {
			continue
		}
		parts = append(parts, explain.Part{Conn: x.conn, Targets: map[netip.AddrPort]bool{x.conn.To: false}, Mark: m},
			explain.Part{Conn: route.Conn{Protocol: service.UDP, From: x.from, To: to}, Targets: map[netip.AddrPort]bool{to: false}})
	}
	return parts
}

// shares says how many slots lead to which node.
func (x *inspection) shares() string {
	var all []string
	names := map[uint32]string{}
	for n, m := range x.rules.Ports[x.port.Name].Marks {
		names[m] = n
	}
	for _, m := range slices.Sorted(maps.Keys(x.coming.Slots)) {
		all = append(all, fmt.Sprintf("%d to node %s, %s", x.coming.Slots[m], names[m], x.roads[m]))
	}
	return fmt.Sprintf("of %d slots, by the client's address and port, lead %s, as they are, through the tunnel", x.port.Consistent.Slots, strings.Join(all, "; "))
}

// arrive adds what other nodes send through the tunnel to endpoints here.
func (x *inspection) arrive() {
	w := x.walk
	if len(x.arriving.Here) == 0 {
		return
	}
	w.Hops = append(append(w.Hops, named(x.arriving.Hops)...), explain.Hop{
		Object: "from device " + Device,
		Does: fmt.Sprintf("what other nodes send through the tunnel for this client is translated to %s; the answer leaves this node directly, with source %s",
			explain.OneOf("endpoints", x.arriving.Here), x.conn.To),
	})
	c, targets := x.conn, map[netip.AddrPort]bool{}
	for _, e := range x.arriving.Here {
		targets[e] = false
	}
	c.Interface = Device
	w.Parts = append(w.Parts, explain.Part{Conn: c, Targets: targets})
	own := netip.AddrPortFrom(x.from, Port)
	for i, sender := range x.rules.Senders {
		if i < mostPeers && sender != x.from && own.IsValid() {
			w.Parts = append(w.Parts, explain.Part{
				Conn: route.Conn{Protocol: service.UDP, From: sender, Interface: "by the route to it", To: own, ToNode: true}, Targets: map[netip.AddrPort]bool{own: false},
			})
		}
	}
}
