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
	"kubeproxy/test/generate"
	"kubeproxy/test/xtables"
)

// tracer walks a packet through the chains and virtual servers of a fake, in the
// order in which the kernel does.
type tracer struct {
	*xtables.Tracer
	kernel *fake
}

func trace(k *fake, c route.Conn) xtables.Outcome { return newTracer(k, c).run() }

func newTracer(k *fake, c route.Conn) *tracer {
	local := func(a netip.Addr) bool {
		_, routed := k.routes[a]
		return routed || generate.IsNodeLocal(a)
	}
	return &tracer{&xtables.Tracer{System: k.tables, Conn: c, Local: local, Loops: generate.IsNodeLocal}, k}
}

// runBeforeIPVS runs what comes before IPVS and may lead the packet somewhere else. It
// reports that the packet goes on.
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

func (t *tracer) run() xtables.Outcome {
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

// runOutput is run for what the node itself sends. IPVS sees it before it leaves,
// wherever its address leads.
func (t *tracer) runOutput() xtables.Outcome {
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
		return xtables.Outcome{Action: t.Out.Action}
	}
	return t.Out
}

// hooks runs chains of the system until one decides.
func (t *tracer) hooks(all ...string) {
	for _, h := range all {
		if t.Out.Action != route.Pass {
			return
		}
		table, chain, _ := strings.Cut(h, " ")
		t.Hook(table, chain)
	}
}

// server returns the virtual server of ours that takes the packet, if one does.
func (t *tracer) server() *fakeServer {
	s := t.kernel.servers[key{t.Conn.To.Addr(), t.Conn.To.Port(), t.Conn.Protocol}]
	if s == nil || !s.owned() {
		return nil
	}
	return s
}

// runServer sends the packet to each destination of s. It leaves as if the node itself
// had sent it, but for what translates.
func (t *tracer) runServer(s *fakeServer) xtables.Outcome {
	o := xtables.Outcome{Action: route.Reject, Masq: map[netip.AddrPort]bool{}}
	for a, x := range s.dests {
		if x.weight > 0 {
			o.Action = route.Forward
			o.Targets = append(o.Targets, a)
		}
	}
	if o.Action == route.Reject {
		return xtables.Outcome{Action: route.Reject}
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

// What comes to an address of a Service and no virtual server took is refused, but
// for answers: under kube-proxy, connections came from there.
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
