// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// affinityClients is a number of clients on one host, each with an address of its own.
type affinityClients struct {
	*cluster
	app    app
	addrs  []netip.Addr
	server map[netip.Addr]string // the server of each client's first answer
	asked  map[netip.Addr]time.Time
}

func newAffinityClients(t *testing.T, c *cluster, a app) *affinityClients {
	t.Helper()
	h := &affinityClients{cluster: c, app: a, server: map[netip.Addr]string{}, asked: map[netip.Addr]time.Time{}}
	for _, format := range []string{"192.0.2.2%02d", "2001:db8:2::2%02d"} {
		for i := range 8 {
			addr := netip.MustParseAddr(fmt.Sprintf(format, i))
			if err := c.Host("customer").AddAddr(addr); err != nil {
				t.Fatal(err)
			}
			h.addrs = append(h.addrs, addr)
		}
	}
	for _, p := range h.addrs {
		h.server[p] = h.askServer(t, p, service.ClusterIP)
	}
	return h
}

// checkServer sends a request of one client to one kind of address. It returns the
// server, and whether that is another one than before. A client whose affinity has
// expired may get another server, and so may one for which a relay waited too long for
// its server.
func (h *affinityClients) checkServer(t *testing.T, client netip.Addr, k service.Kind) (server string, moved bool) {
	t.Helper()
	before := h.asked[client]
	server = h.askServer(t, client, k)
	late := h.mode.userspace && time.Since(h.asked[client]) >= relayDialTimeout
	if server != h.server[client] && (late || time.Since(before) >= h.affinityTimeout()) {
		h.server[client] = server
	}
	return server, server != h.server[client]
}

// relayDialTimeout is how long mode userspace waits for an endpoint before it tries
// another one.
const relayDialTimeout = 250 * time.Millisecond

// affinityTimeout is how long the affinity of a client lasts.
func (h *affinityClients) affinityTimeout() time.Duration {
	return time.Duration(h.app.sticky) * time.Second
}

// askServer is checkServer for the first request.
func (h *affinityClients) askServer(t *testing.T, client netip.Addr, k service.Kind) string {
	t.Helper()
	h.asked[client] = time.Now()
	q := netlab.Query{Proto: "tcp", From: netip.AddrPortFrom(client, 0), To: h.app.at(k, service.FamilyOf(client))}
	a, err := h.Host("customer").Ask(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	if a.Outcome != netlab.Answered {
		t.Fatalf("%s to %s: %s", client, q.To, a.Outcome)
	}
	return a.Backend
}

// movedClients lists the clients that another server answers now.
func (h *affinityClients) movedClients(t *testing.T) map[netip.Addr]string {
	t.Helper()
	moved := map[netip.Addr]string{}
	for _, p := range h.addrs {
		if now, away := h.checkServer(t, p, service.ClusterIP); away {
			moved[p] = now
		}
	}
	return moved
}

// affinityEntries counts the affinity entries in the kernel.
func (h *affinityClients) affinityEntries(t *testing.T) int {
	t.Helper()
	n := 0
	err := h.Node.Do(func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
			sets, err := conn.GetSets(&nftables.Table{Name: "kube-services", Family: family})
			if err != nil {
				return err
			}
			for _, s := range sets {
				if !strings.HasPrefix(s.Name, "clients") {
					continue
				}
				elements, err := conn.GetSetElements(s)
				if err != nil {
					return err
				}
				n += len(elements)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestAffinity follows a Service with an affinity timeout of two seconds through its
// life.
func TestAffinity(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	web := app{name: "web", number: 10, sticky: 2}.on(c.webs()...)
	c.save(t, web)
	c.start(t)
	h := newAffinityClients(t, c, web)

	t.Run("one server for all ways in", h.checkFrontendKinds)
	t.Run("who comes back is remembered longer", func(t *testing.T) {
		for begin := time.Now(); time.Since(begin) < h.affinityTimeout()+500*time.Millisecond; {
			if moved := h.movedClients(t); len(moved) > 0 {
				t.Fatalf("after %s other servers answer: %v", time.Since(begin), moved)
			}
		}
	})
	t.Run("all are forgotten", func(t *testing.T) {
		first, last := h.asked[h.addrs[0]], h.asked[h.addrs[len(h.addrs)-1]]
		if n := h.affinityEntries(t); n != len(h.addrs) && time.Since(first) < h.affinityTimeout() {
			t.Errorf("%d clients remembered, want %d", n, len(h.addrs))
		}
		kit.Until(t, "no client is remembered", func() bool { return h.affinityEntries(t) == 0 })
		if took := time.Since(last); took < h.affinityTimeout()*3/4 || took > program.ReplyTimeout {
			t.Errorf("forgotten after %s, want %s", took, h.affinityTimeout())
		}
		moved := 0
		for _, p := range h.addrs {
			if h.askServer(t, p, service.ClusterIP) != h.server[p] {
				moved++
			}
		}
		if moved == 0 {
			t.Errorf("all %d clients happen to have the servers they had", len(h.addrs))
		}
	})
}

// TestAffinityWithServerThatLeaves checks that the clients of a removed server move at
// once, whatever their timeout, and that other clients keep their server.
func TestAffinityWithServerThatLeaves(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	web := app{name: "web", number: 10, sticky: 600}.on(c.webs()...)
	c.save(t, web)
	c.start(t)
	h := newAffinityClients(t, c, web)
	gone := h.server[h.addrs[0]]
	c.save(t, web.on(slices.DeleteFunc(c.webs(), func(w *netlab.Host) bool { return w.Name == gone })...))
	c.awaitProgrammed(t)
	kit.Until(t, "every client of the server moves", func() bool { return h.allMovedFrom(t, gone) })
	if moved := h.movedClients(t); len(moved) > 0 {
		t.Errorf("moved once more: %v", moved)
	}
	c.save(t, web)
	c.awaitProgrammed(t)
	if moved := h.movedClients(t); len(moved) > 0 {
		t.Errorf("moved because somebody came: %v", moved)
	}
}

func (h *affinityClients) checkFrontendKinds(t *testing.T) {
	for _, p := range h.addrs {
		for _, k := range kinds {
			if got, moved := h.checkServer(t, p, k); moved {
				t.Errorf("%s at the %s is answered by %s, want %s", p, k, got, h.server[p])
			}
		}
	}
}

// allMovedFrom returns whether all clients of the server gone have moved. It fails the
// test if another client moves.
func (h *affinityClients) allMovedFrom(t *testing.T, gone string) bool {
	t.Helper()
	for p, now := range h.movedClients(t) {
		if h.server[p] != gone {
			t.Fatalf("%s moved from %s to %s, though %s left", p, h.server[p], now, gone)
		}
		h.server[p] = now
	}
	return !slices.Contains(slices.Collect(maps.Values(h.server)), gone)
}
