// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"errors"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/conntrack"
	"kubeproxy/test/judge"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
)

// TestClientsThatWait checks a client whose first packet went to an endpoint that never
// answers. Its retransmission must reach another endpoint once that one was removed. By
// default the kernel would keep the first translation for two minutes, see
// nf_conntrack_tcp_timeout_syn_sent in
// https://docs.kernel.org/networking/nf_conntrack-sysctl.html
func TestClientsThatWait(t *testing.T) {
	t.Parallel()
	clientsThatWait(t, defaultMode(), service.TCP)
}

func TestIPTablesClientsThatWait(t *testing.T) {
	eachVariant(t, func(t *testing.T, m mode) { clientsThatWait(t, m, service.TCP) })
}

func TestUserspaceClientsThatWait(t *testing.T) {
	withUserspace(t, func(t *testing.T, m mode) { clientsThatWait(t, m, service.TCP) })
}

func TestIPVSClientsThatWait(t *testing.T) {
	withIPVS(t, func(t *testing.T, m mode) { clientsThatWait(t, m, service.TCP) })
}

func TestSCTPClientsThatWait(t *testing.T) {
	t.Parallel()
	if !netlab.SCTP() {
		t.Skip("this kernel has no sockets for SCTP")
	}
	clientsThatWait(t, defaultMode(), service.SCTP)
}

func TestIPTablesSCTPClientsThatWait(t *testing.T) {
	if !netlab.SCTP() {
		t.Skip("this kernel has no sockets for SCTP")
	}
	eachVariant(t, func(t *testing.T, m mode) { clientsThatWait(t, m, service.SCTP) })
}

func clientsThatWait(t *testing.T, m mode, p service.Protocol) {
	c := newCluster(t, m)
	deaf := c.Host("web-3")
	nft(t, deaf, "add table inet deaf\nadd chain inet deaf input { type filter hook input priority 0; meta l4proto { tcp, sctp } drop; }\n")
	web := app{name: "web", number: 10}
	c.save(t, web.on(deaf))
	c.start(t)
	if p == service.SCTP {
		c.extendSCTPTimeout(t)
	}
	calls := only(p, c.cells([]*netlab.Host{c.Host("shopper"), c.Host("customer"), c.Node}, web))
	if c.accelerated { // a connect that was taken stays with its endpoint
		calls = slices.DeleteFunc(calls, func(x judge.Call) bool { return x.Name == "ClusterIP of web" && x.From != c.Host("customer") })
	}
	other, otherDone := c.established(t, p)
	var clients sync.WaitGroup
	for i := range calls {
		clients.Go(func() { c.checkLateAnswer(t, calls[i]) })
	}
	kit.Until(t, "all clients wait", func() bool { return c.opening(t, deaf, p) >= len(calls) })
	c.save(t, web.on(c.Host("web-1"), c.Host("web-4")))
	clients.Wait()
	other.checkSameServer(t)
	otherDone()
}

// extendSCTPTimeout raises the conntrack timeout of an SCTP connection's first packet to
// that of TCP: a client retransmits it only after some seconds.
func (c *cluster) extendSCTPTimeout(t *testing.T) {
	t.Helper()
	const setting = "/proc/sys/net/netfilter/nf_conntrack_sctp_timeout_"
	err := c.Node.Do(func() error {
		return errors.Join(os.WriteFile(setting+"closed", []byte("120"), 0), os.WriteFile(setting+"cookie_wait", []byte("120"), 0))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// checkLateAnswer makes one connection, and requires an answer. The timeout is shorter
// than the kernel's timeout for a first packet, and long enough for retransmissions,
// which come after 1, 3, 7, 15 and 31 seconds.
func (c *cluster) checkLateAnswer(t *testing.T, x judge.Call) {
	q := x.Query()
	q.Timeout = time.Minute
	a, err := x.From.Ask(t.Context(), q)
	if err != nil || a.Outcome != netlab.Answered {
		t.Errorf("%s: %s, %v; want an answer from an endpoint that came later", x, a.Outcome, err)
	}
}

// established opens connections to another Service, whose endpoints change, too. The
// returned function requires that they go on without their endpoint.
func (c *cluster) established(t *testing.T, p service.Protocol) (conversations, func()) {
	t.Helper()
	cart := app{name: "cart", number: 11}
	c.save(t, cart.on(c.Host("web-2")))
	c.awaitProgrammed(t)
	all := c.converse(t, p.String(), cart, 1)
	return all, func() {
		t.Helper()
		c.save(t, cart.on(c.Host("web-1")))
		c.awaitProgrammed(t)
		all.checkSameServer(t)
	}
}

// opening counts the connections to h that it has not answered yet.
func (c *cluster) opening(t *testing.T, h *netlab.Host, p service.Protocol) int {
	t.Helper()
	n := 0
	for _, f := range service.Families {
		err := c.Node.Do(func() error {
			return conntrack.Netlink{}.Dump(t.Context(), conntrack.Filter{Family: f}, func(x conntrack.Flow) {
				if x.Protocol == p && !x.Answered && x.ReplySrc.Addr() == h.Addr(x.ReplySrc.Addr()) {
					n++
				}
			})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return n
}
