// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package judge makes real connections in a netlab network and compares the results with
// package route: which endpoints may answer, which client address they see, how soon a
// refusal arrives. The caller passes in what should be in force.
package judge

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// Judge holds what node-a of a lab should forward.
type Judge struct {
	Lab  *netlab.Lab
	Want *service.Snapshot
	// Bridge is the interface through which node-a sees its pods, empty if each has one
	// of its own.
	Bridge string
	// Relayed is whether every endpoint sees the node as its client, as connections end
	// at the node and a relay opens new ones.
	Relayed bool
	// Accelerated is whether socket acceleration is on, and Taken counts the answered
	// connections that it must have taken.
	Accelerated bool
	Taken       *atomic.Uint64
}

// Call is one kind of connection: a client and a destination.
type Call struct {
	From   *netlab.Host
	To     netip.AddrPort
	ToNode bool // To is an address of node-a
	Proto  service.Protocol
	Name   string // of the destination, for messages
}

// String describes the call in messages.
func (x Call) String() string {
	return fmt.Sprintf("%s connects to %s, %s %s", x.From.Name, x.Name, x.To, x.Proto)
}

// Query returns the call as a request to an echo server.
func (x Call) Query() netlab.Query { return netlab.Query{Proto: x.Proto.String(), To: x.To} }

func (j Judge) decide(x Call, from netip.Addr) route.Verdict {
	return route.Decide(j.Want, route.Conn{Protocol: x.Proto, From: from, To: x.To, Interface: j.iface(x.From), ToNode: x.ToNode})
}

// iface returns the interface by which node-a sees h, empty for node-a itself.
func (j Judge) iface(h *netlab.Host) string {
	switch {
	case h == j.Lab.Node:
		return ""
	case !OnNode(h.IPv4):
		return "eth0"
	case j.Bridge != "":
		return j.Bridge
	}
	return "veth-" + h.Name
}

// OnNode returns whether a is the address of a pod on node-a.
func OnNode(a netip.Addr) bool {
	return netip.MustParsePrefix("10.244.1.0/24").Contains(a) || netip.MustParsePrefix("fd00:10:244:1::/64").Contains(a)
}

const (
	fewest = 4   // connections to each address, to detect a rare wrong answer
	most   = 300 // until each of a handful of endpoints has answered

	// atOnce is how late a refusal may be. A client that gets it only for its
	// retransmission, after a second, was not refused at once. On a busy machine a single
	// refusal may be late by chance, but not all.
	atOnce = 900 * time.Millisecond
)

// Check makes the connections of all calls, several in parallel, and fails the test for
// each unexpected result.
func (j Judge) Check(t testing.TB, calls []Call) {
	t.Helper()
	if len(calls) == 0 {
		t.Fatal("nothing to check")
	}
	work := make(chan Call)
	var asking sync.WaitGroup
	for range 8 {
		asking.Go(func() {
			for x := range work {
				err := j.Try(t.Context(), x)
				if err != nil && x.Proto == service.TCP && j.Relayed {
					// On a busy machine, a relay may give up an endpoint and select
					// another one.
					err = j.Try(t.Context(), x)
				}
				if err != nil {
					t.Errorf("%s: %v", x, err)
				}
			}
		})
	}
	for _, x := range calls {
		work <- x
	}
	close(work)
	asking.Wait()
}

// Try makes the connections of one call, and returns what is wrong with their results.
func (j Judge) Try(ctx context.Context, x Call) error {
	v := j.decide(x, x.From.Addr(x.To.Addr()))
	switch v.Action {
	case route.Forward:
		return j.tryForward(ctx, x, v)
	case route.Reject:
		return x.refused(ctx, v)
	case route.Drop:
		a, err := x.From.Ask(ctx, netlab.Query{Proto: x.Proto.String(), To: x.To, Timeout: netlab.SilenceTimeout})
		if err == nil && a.Outcome != netlab.TimedOut {
			err = fmt.Errorf("%s %s, want silence: %s", a.Outcome, a.Backend, v.Reason)
		}
		return err
	}
	a, err := x.From.Ask(ctx, netlab.Query{Proto: x.Proto.String(), To: x.To})
	if err == nil && (a.Outcome == netlab.Answered || a.Outcome == netlab.TimedOut) {
		err = fmt.Errorf("%s %s, want nobody to know the address: %s", a.Outcome, a.Backend, v.Reason)
	}
	return err
}

func (x Call) refused(ctx context.Context, v route.Verdict) error {
	quickest := program.ReplyTimeout
	for range fewest {
		a, err := x.From.Ask(ctx, netlab.Query{Proto: x.Proto.String(), To: x.To, Timeout: program.ReplyTimeout})
		switch {
		case err != nil:
			return err
		case a.Outcome != netlab.Refused:
			return fmt.Errorf("%s %s, want refused: %s", a.Outcome, a.Backend, v.Reason)
		}
		quickest = min(quickest, a.Took)
	}
	if quickest > atOnce {
		return fmt.Errorf("refused only after %s, each of %d times", quickest, fewest)
	}
	return nil
}

// tryForward sends requests until all endpoints have answered. With affinity, a single
// endpoint must answer.
func (j Judge) tryForward(ctx context.Context, x Call, v route.Verdict) error {
	seen := map[netip.AddrPort]bool{}
	least, enough := fewest, len(v.Endpoints)
	if v.Port.Affinity > 0 {
		least, enough = 3*fewest, 1
	}
	for n := 0; n < least || len(seen) < enough; n++ {
		if n == most {
			return fmt.Errorf("of %d endpoints only %d answered in %d connections: %s", enough, len(seen), n, v.Reason)
		}
		a, err := x.From.Ask(ctx, netlab.Query{Proto: x.Proto.String(), To: x.To})
		if err != nil {
			return err
		}
		if a.Outcome != netlab.Answered {
			return fmt.Errorf("%s in connection %d, want an answer: %s", a.Outcome, n+1, v.Reason)
		}
		if err := j.compare(x, j.decide(x, a.From.Addr()), a); err != nil {
			return err
		}
		seen[a.At] = true
	}
	if len(seen) > enough {
		return fmt.Errorf("%d endpoints answered, want %d: %s", len(seen), enough, v.Reason)
	}
	return nil
}

// compare compares an answer with a verdict.
func (j Judge) compare(x Call, v route.Verdict, a netlab.Answer) error {
	i := slices.IndexFunc(v.Endpoints, func(e service.Endpoint) bool { return e.Addr == a.At })
	if i < 0 {
		return fmt.Errorf("%s at %s answered, who should not: %s", a.Backend, a.At, v.Reason)
	}
	seen := a.From.Addr()
	if j.takes(x, v) { // it is not translated
		j.Taken.Add(1)
	} else if j.Relayed || v.Masquerades(v.Endpoints[i]) {
		seen = j.NodeTowards(a.At.Addr())
	}
	if a.Client.Addr() != seen {
		return fmt.Errorf("%s at %s saw the client %s as %s, want %s: %s", a.Backend, a.At, a.From, a.Client, seen, v.Reason)
	}
	return nil
}

// takes reports whether socket acceleration takes a connection that is forwarded.
func (j Judge) takes(x Call, v route.Verdict) bool {
	return j.Accelerated && x.Proto == service.TCP && (x.From == j.Lab.Node || OnNode(x.From.IPv4)) &&
		v.Frontend.Kind == service.ClusterIP && v.Port.Affinity == 0 && !v.Port.SelectsConsistently(service.ClusterIP) && !j.Want.Node.MasqueradeAll
}

// NodeTowards returns the source address of node-a towards a pod.
func (j Judge) NodeTowards(a netip.Addr) netip.Addr {
	switch {
	case !OnNode(a):
		return j.Lab.Node.Addr(a)
	case a.Is4():
		return netip.MustParseAddr("10.244.1.1")
	}
	return netip.MustParseAddr("fd00:10:244:1::1")
}
