// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"errors"
	"net/netip"
	"os"
	"testing"

	"kubeproxy/test/judge"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
)

// conversations are open connections, each with the server of its first answer.
type conversations []conversation

type conversation struct {
	conn   *netlab.Conn
	name   string
	server string
}

// converse opens count conversations with each kind of address of a in both families,
// from a pod, from outside and from the node, and sends a request on each.
func (c *cluster) converse(t *testing.T, proto string, a app, count int) conversations {
	t.Helper()
	all := c.open(t, proto, a, count)
	for i := range all {
		answer, err := all[i].conn.Ask(t.Context())
		if err != nil || answer.Outcome != netlab.Answered {
			t.Fatalf("%s: %s, %v", all[i].name, answer.Outcome, err)
		}
		all[i].server = answer.Backend
	}
	return all
}

// open is converse without requests.
func (c *cluster) open(t *testing.T, proto string, a app, count int) conversations {
	t.Helper()
	if proto == "udp" {
		c.extendUDPTimeout(t)
	}
	var all conversations
	for _, x := range c.cells([]*netlab.Host{c.Host("shopper"), c.Host("customer"), c.Node}, a) {
		for range count {
			if x.Proto.String() == proto {
				all = append(all, open(t, x, c.port()))
			}
		}
	}
	return all
}

// extendUDPTimeout makes the node's conntrack timeouts of UDP longer than any test. By
// default an entry expires after 30 or 120 seconds without packets. A busy machine may
// pause that long between two requests, and the client may get another server then. See
// https://docs.kernel.org/networking/nf_conntrack-sysctl.html
func (c *cluster) extendUDPTimeout(t *testing.T) {
	t.Helper()
	err := c.Node.Do(func() error {
		const setting = "/proc/sys/net/netfilter/nf_conntrack_udp_timeout"
		return errors.Join(os.WriteFile(setting, []byte("600"), 0), os.WriteFile(setting+"_stream", []byte("600"), 0))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// port is the client's own port of the next conversation. No other connection gets it:
// IPVS would take the answers for those of another connection if the same client reached
// the same endpoint by another address.
func (c *cluster) port() uint16 { return uint16(20000 + c.opened.Add(1)) }

// open opens one conversation from a port of the client.
func open(t *testing.T, x judge.Call, port uint16) conversation {
	t.Helper()
	q := netlab.Query{Proto: x.Proto.String(), To: x.To, From: netip.AddrPortFrom(netip.Addr{}, port)}
	conn, a, err := x.From.Open(t.Context(), q)
	if err != nil || a.Outcome != netlab.Answered {
		t.Fatalf("%s: %s, %v", x, a.Outcome, err)
	}
	t.Cleanup(func() { conn.Close() })
	return conversation{conn: conn, name: x.String()}
}

// checkSameServer sends a request in each conversation and requires the same server as
// before.
func (all conversations) checkSameServer(t *testing.T) {
	t.Helper()
	for _, o := range all {
		a, err := o.conn.Ask(t.Context())
		if err != nil || a.Backend != o.server {
			t.Errorf("%s: %s %s, %v; want %s to go on", o.name, a.Outcome, a.Backend, err, o.server)
		}
	}
}

// checkAnswered sends a request in each conversation and requires an answer of any
// server.
func (all conversations) checkAnswered(t *testing.T) {
	t.Helper()
	for _, o := range all {
		a, err := o.conn.Ask(t.Context())
		if err != nil || a.Outcome != netlab.Answered {
			t.Errorf("%s: %s, %v; want an answer", o.name, a.Outcome, err)
		}
	}
}

// pollTimeout is how long a polled conversation waits for an answer, which may not arrive
// yet.
const pollTimeout = 5 * netlab.SilenceTimeout

// await polls each conversation, over UDP, until ok.
func (all conversations) await(t *testing.T, what string, ok func(conversation, netlab.Answer) bool) {
	t.Helper()
	for _, o := range all {
		kit.Until(t, o.name+" "+what, func() bool {
			a, err := o.conn.AskFor(t.Context(), pollTimeout)
			if err != nil {
				t.Fatalf("%s: %v", o.name, err)
			}
			return ok(o, a)
		})
	}
}
