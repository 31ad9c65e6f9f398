// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"net/netip"
	"testing"
)

// TestSCTP checks the outcomes of requests over SCTP, and the client addresses that
// servers see.
func TestSCTP(t *testing.T) {
	if !SCTP() {
		t.Skip("this kernel has no sockets for SCTP")
	}
	lab := Start(t, Config{Pods: []string{"pod"}, Clients: []string{"client"}})
	pod, client := lab.Host("pod"), lab.Host("client")
	echo, err := pod.Echo("", 8080)
	if err != nil {
		t.Fatal(err)
	}
	rules(t, lab.Node, netip.AddrPortFrom(pod.IPv4, 8080)) // drop port 81
	vip := netip.MustParseAddr("10.96.0.10")
	for name, tc := range map[string]struct {
		to, from netip.AddrPort
		want     Outcome
	}{
		"IPv4":                 {to: netip.AddrPortFrom(pod.IPv4, 8080)},
		"IPv6":                 {to: netip.AddrPortFrom(pod.IPv6, 8080)},
		"port of choice":       {to: netip.AddrPortFrom(pod.IPv4, 8080), from: netip.AddrPortFrom(netip.Addr{}, 4711)},
		"address of choice":    {to: netip.AddrPortFrom(pod.IPv6, 8080), from: netip.AddrPortFrom(client.IPv6, 4712)},
		"nobody listens":       {to: netip.AddrPortFrom(pod.IPv4, 9), want: Refused},
		"nobody listens, IPv6": {to: netip.AddrPortFrom(pod.IPv6, 9), want: Refused},
		"dropped":              {to: netip.AddrPortFrom(pod.IPv4, 81), want: TimedOut},
		"nobody's address":     {to: netip.AddrPortFrom(vip, 82), want: Unreachable},
	} {
		t.Run(name, func(t *testing.T) {
			q := Query{Proto: "sctp", To: tc.to, From: tc.from}
			if tc.want == TimedOut {
				q.Timeout = SilenceTimeout
			}
			a := ask(t, client, q)
			if a.Outcome != tc.want {
				t.Fatalf("%s, want %s", a.Outcome, tc.want)
			}
			if tc.want != Answered {
				return
			}
			// The node masquerades IPv4.
			seen := client.IPv6
			if tc.to.Addr().Is4() {
				seen = netip.MustParseAddr("10.244.1.1")
			}
			if a.At != tc.to || a.Client.Addr() != seen || a.From.Addr() != client.Addr(seen) {
				t.Errorf("answer %+v", a)
			}
			if p := tc.from.Port(); p != 0 && a.Client.Port() != p {
				t.Errorf("port %d, want %d", a.Client.Port(), p)
			}
		})
	}
	converse(t, client, pod, echo)
}

// converse sends several requests over SCTP, until the server has gone.
func converse(t *testing.T, client, pod *Host, echo *Echo) {
	t.Helper()
	c, a, err := client.Open(t.Context(), Query{Proto: "sctp", To: netip.AddrPortFrom(pod.IPv6, 8080)})
	if err != nil || a.Outcome != Answered {
		t.Fatalf("open: %+v, %v", a, err)
	}
	defer c.Close()
	for range 3 {
		if a, err := c.Ask(t.Context()); err != nil || a.Backend != "pod" || a.From != a.Client {
			t.Errorf("ask: %+v, %v", a, err)
		}
	}
	if err := echo.Close(); err != nil {
		t.Error(err)
	}
	if a, err := c.Ask(t.Context()); err != nil || a.Outcome != Broken {
		t.Errorf("ask after the server closed: %s, %v, want broken", a.Outcome, err)
	}
}
