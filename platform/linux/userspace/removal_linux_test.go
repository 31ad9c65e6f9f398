// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"kubeproxy/common/service"
)

// reach returns which server answers at a listener.
func reach(t *testing.T, at netip.AddrPort) string {
	t.Helper()
	c, err := net.Dial("tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(15 * time.Second))
	return answers(t, c)
}

// TestListenerThatLeavesServes checks that a listener serves clients while rules
// redirect to it and connections are arriving, after the policy has changed from Local
// and while the tables cannot be changed yet.
func TestListenerThatLeavesServes(t *testing.T) {
	e := newEcho(t)
	n := newNode(t, Options{}, 4096)
	n.relay.arrivalGrace = time.Hour
	local, all := port("web", service.TCP, e.at), port("web", service.TCP, e.at)
	local.Internal, local.Local = service.PolicyLocal, local.Cluster
	if err := n.apply(t, local); err != nil {
		t.Fatal(err)
	}
	l := n.listeners[key{local.Name, service.PolicyLocal}]
	at := netip.AddrPortFrom(here, l.port())
	t.Cleanup(l.close)
	n.tables.err = errors.New("somebody has the lock")
	if err := n.apply(t, all); err == nil {
		t.Fatal("a round without the tables succeeded")
	}
	if got := reach(t, at); got != e.at.String() {
		t.Errorf("with rules that lead there, %q answers", got)
	}
	n.tables.err = nil
	if err := n.apply(t, all); err != nil {
		t.Fatal(err)
	}
	if n.listeners[key{local.Name, service.PolicyLocal}] != nil {
		t.Error("the listener for policy Local stays")
	}
	if got := reach(t, at); got != e.at.String() {
		t.Errorf("on the way there, %q answers", got)
	}
}

// TestServiceThatLeavesServes checks the same for a deleted Service, over UDP.
func TestServiceThatLeavesServes(t *testing.T) {
	e := newEcho(t)
	n := newNode(t, Options{}, 4096)
	n.relay.arrivalGrace = time.Hour
	dns := port("dns", service.UDP, e.at)
	if err := n.apply(t, dns); err != nil {
		t.Fatal(err)
	}
	l := n.listeners[key{dns.Name, service.PolicyCluster}]
	t.Cleanup(l.close)
	c, err := net.Dial("udp", n.at(t, dns).String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := n.apply(t); err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(15 * time.Second))
	b := make([]byte, 100)
	_, _ = io.WriteString(c, "x")
	if m, err := c.Read(b); err != nil || string(b[:m]) != e.at.String()+" x" {
		t.Errorf("on the way there: %q, %v", b[:m], err)
	}
}

// localWeb returns a Service port with an internal policy, an endpoint on another node,
// and perhaps one on this node.
func localWeb(proto service.Protocol, policy service.Policy, there netip.AddrPort, local ...service.Endpoint) *service.Port {
	p := port("web", proto, there)
	p.Internal, p.Cluster = policy, append(p.Cluster, local...)
	slices.SortFunc(p.Cluster, func(a, b service.Endpoint) int { return a.Addr.Compare(b.Addr) })
	if policy == service.PolicyLocal { // the Tracker fills it for this policy only
		p.Local = local
	}
	return p
}

// asks returns who answers a client at a listener, "" if nobody does.
func asks(t *testing.T, proto service.Protocol, at netip.AddrPort) string {
	t.Helper()
	if proto == service.UDP {
		return callerOf(t, at).ask(t, "x", 50*time.Millisecond)
	}
	c, err := net.Dial("tcp", at.String())
	if err != nil {
		return ""
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(long))
	line, _ := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(line)
}

// localStep is a state of a Service port. The zero value is a deleted Service.
type localStep struct {
	policy service.Policy
	here   bool // an endpoint is on this node
}

// localSteps has a Service with an endpoint on this node now and then, and one on another node.
type localSteps struct {
	*node
	proto       service.Protocol
	mine, other *echo
	old         []caller // UDP clients from before
}

func (l *localSteps) ports(s localStep) []*service.Port {
	switch {
	case s == localStep{}:
		return nil
	case s.here:
		return []*service.Port{localWeb(l.proto, s.policy, l.other.at, service.Endpoint{Addr: l.mine.at, Local: true})}
	}
	return []*service.Port{localWeb(l.proto, s.policy, l.other.at)}
}

// check asks at a listener, as clients whose policy is Local.
func (l *localSteps) check(t *testing.T, at netip.AddrPort, s localStep) {
	t.Helper()
	want := ""
	if s.here {
		want = l.mine.at.String()
	}
	for range 4 {
		if got := asks(t, l.proto, at); got != want {
			t.Errorf("%q answers, want %q", got, want)
		}
	}
	for _, c := range l.old {
		if got := c.ask(t, "x", 50*time.Millisecond); got != want {
			t.Errorf("%q answers a client of before, want %q", got, want)
		}
	}
}

// TestNoOtherNodeForPolicyLocal checks that no client of policy Local reaches an endpoint of
// another node while the tables cannot be changed, whatever changes meanwhile and whichever
// listener the rules lead to.
func TestNoOtherNodeForPolicyLocal(t *testing.T) {
	const all, local = service.PolicyCluster, service.PolicyLocal
	for name, steps := range map[string][]localStep{
		"the last one leaves":                   {{local, true}, {local, false}},
		"it leaves, comes and leaves":           {{local, true}, {local, false}, {local, true}, {local, false}},
		"policy Cluster for a while":            {{local, true}, {all, true}, {local, false}},
		"policy Local begins":                   {{all, true}, {local, true}, {local, false}},
		"policy Local begins without endpoints": {{all, true}, {local, false}},
		"the Service is deleted for a while":    {{local, true}, {}, {local, false}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, proto := range []service.Protocol{service.TCP, service.UDP} {
				t.Run(proto.String(), func(t *testing.T) { checkLocalSteps(t, proto, steps) })
			}
		})
	}
}

func checkLocalSteps(t *testing.T, proto service.Protocol, steps []localStep) {
	l := &localSteps{node: newNode(t, Options{UDPIdle: time.Minute}, 4096), proto: proto, mine: newEcho(t), other: newEcho(t)}
	first := l.ports(steps[0])
	if err := l.apply(t, first...); err != nil {
		t.Fatal(err)
	}
	at := netip.AddrPortFrom(here, l.listeners[key{first[0].Name, steps[0].policy}].port())
	for range 4 {
		if proto == service.UDP {
			c := callerOf(t, at)
			c.ask(t, "x", long)
			l.old = append(l.old, c)
		}
	}
	l.tables.err = errors.New("somebody has the lock")
	for _, s := range steps[1:] {
		if err := l.apply(t, l.ports(s)...); err == nil {
			t.Fatal("a round without the tables succeeded")
		}
		if s.policy == service.PolicyLocal {
			l.check(t, at, s)
		}
	}
}
