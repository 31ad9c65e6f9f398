// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// cell is one sort of connection: who connects to what.
type cell struct {
	from   *netlab.Host
	iface  string // by which node-a sees it come in, empty for node-a itself
	to     netip.AddrPort
	toNode bool
	proto  service.Protocol
	name   string
}

func (x cell) String() string {
	return fmt.Sprintf("%s connects to %s, %s %s", x.from.Name, x.name, x.to, x.proto)
}

func (x cell) conn(from netip.Addr) route.Conn {
	return route.Conn{Protocol: x.proto, From: from, To: x.to, Interface: x.iface, ToNode: x.toNode}
}

// kinds are the four ways to an app.
var kinds = []service.Kind{service.ClusterIP, service.NodePort, service.ExternalIP, service.LoadBalancerIP}

// cells returns everything that each of hosts can dial of apps.
func (c *cluster) cells(hosts []*netlab.Host, apps ...app) []cell {
	var all []cell
	for _, a := range apps {
		for _, k := range kinds {
			for _, f := range service.Families {
				all = append(all, c.dials(hosts, a, k, f)...)
			}
		}
	}
	return all
}

func (c *cluster) dials(hosts []*netlab.Host, a app, k service.Kind, f service.Family) []cell {
	var all []cell
	for _, h := range hosts {
		for _, p := range []service.Protocol{service.TCP, service.UDP} {
			x := cell{from: h, iface: c.iface(h), to: a.at(k, f), toNode: k == service.NodePort, proto: p}
			x.name = fmt.Sprintf("%s of %s", k, a.name)
			all = append(all, x)
		}
	}
	return all
}

func (c *cluster) iface(h *netlab.Host) string {
	switch {
	case h == c.Node:
		return ""
	case !isLocal(h.IPv4):
		return "eth0"
	case c.mode.bridge != "":
		return c.mode.bridge
	}
	return "veth-" + h.Name
}

const (
	fewest = 4   // connections to each address, so that a stray answer shows
	most   = 300 // until each of a handful of endpoints has answered

	// atOnce is how late a refusal may be: who hears of it only when trying
	// again, after a second, was not refused at once.
	atOnce = 900 * time.Millisecond
)

// check makes the connections of all cells, several at a time, and compares
// what comes of them with the judge's opinion.
func (c *cluster) check(t *testing.T, want *service.Snapshot, cells []cell) {
	t.Helper()
	if len(cells) == 0 {
		t.Fatal("nothing to check")
	}
	work := make(chan cell)
	var asking sync.WaitGroup
	for range 8 {
		asking.Go(func() {
			for x := range work {
				if err := c.try(t.Context(), want, x); err != nil {
					t.Errorf("%s: %v", x, err)
				}
			}
		})
	}
	for _, x := range cells {
		work <- x
	}
	close(work)
	asking.Wait()
}

// try makes the connections of one cell.
func (c *cluster) try(ctx context.Context, want *service.Snapshot, x cell) error {
	v := route.Decide(want, x.conn(x.from.Addr(x.to.Addr())))
	switch v.Action {
	case route.Forward:
		return c.tryForward(ctx, want, x, v)
	case route.Reject:
		return x.refused(ctx, v)
	case route.Drop:
		a, err := x.from.Ask(ctx, netlab.Query{Proto: x.proto.String(), To: x.to, Timeout: netlab.Silence})
		if err == nil && a.Outcome != netlab.TimedOut {
			err = fmt.Errorf("%s %s, want silence: %s", a.Outcome, a.Backend, v.Reason)
		}
		return err
	}
	a, err := x.from.Ask(ctx, netlab.Query{Proto: x.proto.String(), To: x.to})
	if err == nil && (a.Outcome == netlab.Answered || a.Outcome == netlab.TimedOut) {
		err = fmt.Errorf("%s %s, want nobody to know the address: %s", a.Outcome, a.Backend, v.Reason)
	}
	return err
}

func (x cell) refused(ctx context.Context, v route.Verdict) error {
	for range fewest {
		a, err := x.from.Ask(ctx, netlab.Query{Proto: x.proto.String(), To: x.to, Timeout: program.Patience})
		switch {
		case err != nil:
			return err
		case a.Outcome != netlab.Refused:
			return fmt.Errorf("%s %s, want refused: %s", a.Outcome, a.Backend, v.Reason)
		case a.Took > atOnce:
			return fmt.Errorf("refused only after %s", a.Took)
		}
	}
	return nil
}

// tryForward asks until all endpoints have answered. With affinity it is one
// and the same that answers.
func (c *cluster) tryForward(ctx context.Context, want *service.Snapshot, x cell, v route.Verdict) error {
	seen := map[netip.AddrPort]bool{}
	least, enough := fewest, len(v.Endpoints)
	if v.Port.Affinity > 0 {
		least, enough = 3*fewest, 1
	}
	for n := 0; n < least || len(seen) < enough; n++ {
		if n == most {
			return fmt.Errorf("of %d endpoints only %d answered in %d connections: %s", enough, len(seen), n, v.Reason)
		}
		a, err := x.from.Ask(ctx, netlab.Query{Proto: x.proto.String(), To: x.to})
		if err != nil {
			return err
		}
		if a.Outcome != netlab.Answered {
			return fmt.Errorf("%s in connection %d, want an answer: %s", a.Outcome, n+1, v.Reason)
		}
		if err := c.compare(route.Decide(want, x.conn(a.From.Addr())), a); err != nil {
			return err
		}
		seen[a.At] = true
	}
	if len(seen) > enough {
		return fmt.Errorf("%d endpoints answered, want %d: %s", len(seen), enough, v.Reason)
	}
	return nil
}

// compare holds an answer against a verdict.
func (c *cluster) compare(v route.Verdict, a netlab.Answer) error {
	i := slices.IndexFunc(v.Endpoints, func(e service.Endpoint) bool { return e.Addr == a.At })
	if i < 0 {
		return fmt.Errorf("%s at %s answered, who should not: %s", a.Backend, a.At, v.Reason)
	}
	seen := a.From.Addr()
	if v.Masquerades(v.Endpoints[i]) {
		seen = c.nodeTowards(a.At.Addr())
	}
	if a.Client.Addr() != seen {
		return fmt.Errorf("%s at %s saw the client %s as %s, want %s: %s", a.Backend, a.At, a.From, a.Client, seen, v.Reason)
	}
	return nil
}

// nodeTowards returns the address that node-a has on the way to a pod.
func (c *cluster) nodeTowards(a netip.Addr) netip.Addr {
	switch {
	case !isLocal(a):
		return c.Node.Addr(a)
	case a.Is4():
		return netip.MustParseAddr("10.244.1.1")
	}
	return netip.MustParseAddr("fd00:10:244:1::1")
}
