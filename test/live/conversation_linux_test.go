// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"errors"
	"net/netip"
	"os"
	"testing"

	"kubeproxy/test/judge"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// conversations are open conversations, each with the server that answered first.
type conversations []conversation

type conversation struct {
	conn   *netlab.Conn
	name   string
	server string
}

// converse opens count conversations with each kind of address of a in both
// families, from a pod, from outside and from the node.
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

// open is talk before anybody has said anything.
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

// extendUDPTimeout has the node's kernel know UDP flows for longer than any test takes.
// It forgets one after half a minute or two of silence, which a busy machine may let
// pass between two questions, and who is forgotten may get another server.
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

// port is the client's own port of the next conversation. No other connection
// gets it: IPVS would take the answers for that one's, if the same client
// reached the same endpoint by another address.
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

// checkSameServer asks in each conversation and wants the answer of the same server as
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

// checkAnswered asks in each conversation and wants an answer, whoever gives it.
func (all conversations) checkAnswered(t *testing.T) {
	t.Helper()
	for _, o := range all {
		a, err := o.conn.Ask(t.Context())
		if err != nil || a.Outcome != netlab.Answered {
			t.Errorf("%s: %s, %v; want an answer", o.name, a.Outcome, err)
		}
	}
}

// pollTimeout is how long a conversation that is polled waits for an answer, which may
// not be due yet.
const pollTimeout = 5 * netlab.SilenceTimeout

// await waits until each conversation, over UDP, has met with ok.
func (all conversations) await(t *testing.T, what string, ok func(conversation, netlab.Answer) bool) {
	t.Helper()
	for _, o := range all {
		program.Await(t, o.name+" "+what, func() bool {
			a, err := o.conn.AskFor(t.Context(), pollTimeout)
			if err != nil {
				t.Fatalf("%s: %v", o.name, err)
			}
			return ok(o, a)
		})
	}
}
