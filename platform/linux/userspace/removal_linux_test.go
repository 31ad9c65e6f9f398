// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"errors"
	"io"
	"net"
	"net/netip"
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
