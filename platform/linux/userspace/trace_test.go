// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/userspace"
	"kubeproxy/test/backendtest"
	"kubeproxy/test/generate"
)

// traceCase is a connection to a node in mode userspace.
type traceCase struct {
	*backendtest.Traced
	n *node
}

// TestTraceFindsTampering compares what rules and listeners do with what route decides,
// and takes away what the connection needs.
func TestTraceFindsTampering(t *testing.T) {
	cluster := func(w generate.Cluster) backendtest.Cluster { return generate.WithoutServiceCIDRs{Cluster: w} }
	backendtest.TraceTampering(t, cluster, func(w generate.Cluster, x *backendtest.Traced) func() {
		n := newNodeFor(x.T, w.Family, drawBound(w))
		local := func(a netip.Addr) bool { return generate.IsNodeLocal(a) || a == userspace.Addrs[w.Family] }
		x.State = n.tables.Text
		x.Follow = func(ctx context.Context) (*explain.Walk, error) {
			return n.TraceWith(ctx, n.tables, x.Want, x.Conn, local)
		}
		x.Hairpin = func(service.Endpoint) bool { return true }
		n.round(x.T, x.Want)
		return traceCase{x, n}.tamper
	})
}

func (c traceCase) tamper() {
	c.RequireAgreement()
	c.n.addr = false
	c.RequireNamed("no interface has the address")
	c.n.addr = true
	hook := "PREROUTING"
	if c.Conn.Interface == "" {
		hook = "OUTPUT"
	}
	jumps := c.n.tables.Tables["nat"][hook]
	c.n.tables.Tables["nat"][hook] = nil
	c.RequireNamed(fmt.Sprintf("chain %s of table nat lacks", hook))
	c.n.tables.Tables["nat"][hook] = jumps
	v := route.Decide(c.Want, c.Conn)
	if v.Action != route.Forward || v.Port.Name.Protocol == service.SCTP {
		return
	}
	// The rules lead to the listener of before, which has other endpoints than there should be.
	one := *v.Port
	one.Cluster = []service.Endpoint{{Addr: netip.AddrPortFrom(c.Conn.To.Addr(), 1)}}
	one.Local = one.Cluster
	old := c.Want
	c.Want = c.Want.With(2, c.Want.Node, []service.Change{{Old: v.Port, New: &one}})
	c.RequireNamed("the node never sends it to " + one.Cluster[0].Addr.String())
	c.Want = old
	c.n.Close()
	c.RequireNamed("kube-proxy has no listener at")
	c.n.Forget()
	c.RequireNamed("nothing has been programmed yet")
	c.n.relayNode = newSiteWith(c.n.family, c.n.tables, c.n.options)
	c.n.round(c.T, c.Want)
}
