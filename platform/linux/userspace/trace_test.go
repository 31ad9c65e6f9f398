// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/userspace"
	"kubeproxy/test/backendtest"
	"kubeproxy/test/generate"
)

// traceCase is a connection to a node in mode userspace.
type traceCase struct {
	*node
	t    *rapid.T
	want *service.Snapshot
	conn route.Conn
}

// look compares what TraceWith finds with what route decides.
func (c traceCase) look() *explain.Explanation {
	local := func(a netip.Addr) bool { return generate.IsNodeLocal(a) || a == userspace.Addrs[c.family] }
	w, err := c.TraceWith(c.t.Context(), c.tables, c.want, c.conn, local)
	if err != nil {
		c.t.Fatal(err)
	}
	x := backendtest.Explain(route.Decide(c.want, c.conn), func(service.Endpoint) bool { return true })
	x.Compare(w.Path())
	return x
}

func (c traceCase) requireNamed(text string) {
	if x := c.look(); x.Verdict != explain.Differ || !slices.ContainsFunc(x.Differences, func(s string) bool { return strings.Contains(s, text) }) {
		c.t.Errorf("%+v: want %q, found %s %q\n%s", c.conn, text, x.Verdict, x.Differences, c.tables.Text())
	}
}

// TestTraceFindsTampering compares what rules and listeners do with what route decides,
// and takes away what the connection needs.
func TestTraceFindsTampering(t *testing.T) {
	for _, f := range service.Families {
		t.Run(f.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				w := generate.WithoutServiceCIDRs{Cluster: generate.Cluster{T: t, Family: f}}
				ports := w.Ports()
				n := newNodeFor(t, f, drawBound(w.Cluster))
				c := traceCase{node: n, t: t, want: service.New(1, w.Node(), ports)}
				n.round(t, c.want)
				for range 2 {
					c.conn = w.Conn(ports)
					c.tamper(ports)
				}
			})
		})
	}
}

func (c traceCase) tamper(ports []*service.Port) {
	if x := c.look(); x.Verdict != explain.Agree {
		c.t.Fatalf("%+v: %q before anything was changed\n%s", c.conn, x.Differences, c.tables.Text())
	}
	c.addr = false
	c.requireNamed("no interface has the address")
	c.addr = true
	hook := "PREROUTING"
	if c.conn.Interface == "" {
		hook = "OUTPUT"
	}
	jumps := c.tables.Tables["nat"][hook]
	c.tables.Tables["nat"][hook] = nil
	c.requireNamed(fmt.Sprintf("chain %s of table nat lacks", hook))
	c.tables.Tables["nat"][hook] = jumps
	v := route.Decide(c.want, c.conn)
	if v.Action != route.Forward || v.Port.Name.Protocol == service.SCTP {
		return
	}
	// The rules lead to the listener of before, which has other endpoints than there should be.
	one := *v.Port
	one.Cluster = []service.Endpoint{{Addr: netip.AddrPortFrom(c.conn.To.Addr(), 1)}}
	one.Local = one.Cluster
	old := c.want
	c.want = c.want.With(2, c.want.Node, []service.Change{{Old: v.Port, New: &one}})
	c.requireNamed("the node never sends it to " + one.Cluster[0].Addr.String())
	c.want = old
	c.Close()
	c.requireNamed("kube-proxy has no listener at")
	c.Forget()
	c.requireNamed("nothing has been programmed yet")
	c.node.relayNode = newSiteWith(c.family, c.tables, c.options)
	c.round(c.t, c.want)
}
