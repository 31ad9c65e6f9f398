// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/test/backendtest"
	"kubeproxy/test/generate"
	"kubeproxy/test/xtables"
)

// tracer evaluates the chains and virtual servers of a fake for a packet, in the order
// of the kernel.
type tracer struct {
	*xtables.Tracer
	kernel *fake
}

func trace(k *fake, c route.Conn) backendtest.Outcome { return newTracer(k, c).run() }

func newTracer(k *fake, c route.Conn) *tracer {
	local := func(a netip.Addr) bool {
		_, routed := k.routes[a]
		return routed || generate.IsNodeLocal(a)
	}
	return &tracer{&xtables.Tracer{System: k.tables, Conn: c, Local: local, Loops: generate.IsNodeLocal}, k}
}

// runBeforeIPVS evaluates what precedes IPVS and may redirect the packet. It reports
// whether the packet continues.
func (t *tracer) runBeforeIPVS(hook string) bool {
	if t.Hook("mangle", hook); t.Out.Action != route.Pass {
		return false
	}
	t.Hook("nat", hook)
	switch t.Out.Action {
	case route.Pass:
		return true
	case route.Forward:
		t.Tracer = t.AfterDNAT(t.Out.Targets[0])
		return true
	}
	return false
}

func (t *tracer) run() backendtest.Outcome {
	if t.Conn.Interface == "" {
		return t.runOutput()
	}
	if !t.runBeforeIPVS("PREROUTING") {
		return t.Out
	}
	if !t.Local(t.Conn.To.Addr()) {
		t.hooks("filter FORWARD", "nat POSTROUTING")
		return t.Out
	}
	t.hooks("filter INPUT")
	if s := t.server(); s != nil && t.Out.Action == route.Pass {
		return t.runServer(s)
	}
	return t.Out
}

// runOutput evaluates a packet of the node itself. IPVS handles it before it leaves,
// wherever its address is routed.
func (t *tracer) runOutput() backendtest.Outcome {
	if !t.runBeforeIPVS("OUTPUT") {
		return t.Out
	}
	if s := t.server(); s != nil {
		return t.runServer(s)
	}
	t.hooks("filter OUTPUT", "nat POSTROUTING")
	if t.Local(t.Conn.To.Addr()) {
		t.hooks("filter INPUT")
	}
	if t.Out.Action != route.Pass {
		return backendtest.Outcome{Action: t.Out.Action}
	}
	return t.Out
}

// hooks evaluates built-in chains until one decides.
func (t *tracer) hooks(all ...string) {
	for _, h := range all {
		if t.Out.Action != route.Pass {
			return
		}
		table, chain, _ := strings.Cut(h, " ")
		t.Hook(table, chain)
	}
}

// server returns the virtual server of ours that accepts the packet, if there is one.
func (t *tracer) server() *fakeServer {
	s := t.kernel.servers[addressAt(t.Conn.To.Addr(), t.Conn.To.Port(), t.Conn.Protocol)]
	if s == nil || !s.owned() {
		return nil
	}
	return s
}

// runServer sends the packet to each destination of s. It leaves like a packet of the
// node itself, except for translating rules.
func (t *tracer) runServer(s *fakeServer) backendtest.Outcome {
	o := backendtest.Outcome{Action: route.Reject, Masq: map[netip.AddrPort]bool{}}
	for a, x := range s.dests {
		if x.weight > 0 {
			o.Action = route.Forward
			o.Targets = append(o.Targets, a)
		}
	}
	if o.Action == route.Reject {
		return backendtest.Outcome{Action: route.Reject}
	}
	slices.SortFunc(o.Targets, netip.AddrPort.Compare)
	for _, a := range o.Targets {
		x := &tracer{t.AfterDNAT(a), t.kernel}
		x.Translated, x.Conn.Interface = t.Translated, ""
		x.hooks("mangle OUTPUT", "filter OUTPUT", "nat POSTROUTING")
		if x.Out.Action != route.Pass {
			o.Action = x.Out.Action
		}
		o.Masq[a] = x.Out.Masq != nil
	}
	return o
}

// TestOnlyAnswersPass checks that packets to an address of a Service that no virtual
// server accepts are rejected, except for replies: with kube-proxy, connections had that
// source.
func TestOnlyAnswersPass(t *testing.T) {
	p := web(0, 1, service.TCP)
	p.Frontends = append(p.Frontends, service.Frontend{Kind: service.ExternalIP, Addr: netip.MustParseAddr("203.0.113.1"), Port: 80})
	k := newFake(service.IPv4)
	apply(t, newBackendWithRules(service.IPv4, k, Options{MasqueradeBit: 14}), snapshot(p))
	for _, to := range []string{"10.96.0.0:9999", "203.0.113.1:9999"} {
		for answers, want := range map[bool]route.Action{false: route.Reject, true: route.Pass} {
			c := route.Conn{Protocol: service.TCP, From: netip.MustParseAddr("192.0.2.7"), To: netip.MustParseAddrPort(to), Interface: "eth0"}
			x := newTracer(k, c)
			x.Reply = answers
			if x.Hook("filter", "INPUT"); x.Out.Action != want {
				t.Errorf("to %s, an answer %t: %s, want %s", to, answers, x.Out.Action, want)
			}
		}
	}
}
