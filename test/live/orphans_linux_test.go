// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/platform/linux/conntrack"
	"kubeproxy/platform/linux/nftables"
	"kubeproxy/platform/linux/sysctl"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// TestOrphans checks what becomes of established connections whose endpoint leaves.
func TestOrphans(t *testing.T) { withNFTables(t, orphans) }

func TestIPTablesOrphans(t *testing.T)  { eachVariant(t, orphans) }
func TestIPVSOrphans(t *testing.T)      { withIPVS(t, orphans) }
func TestUserspaceOrphans(t *testing.T) { withUserspace(t, orphans) }

// dies makes a host drop all that comes to its endpoints.
func dies(t *testing.T, h *netlab.Host) {
	nft(t, h, "add table inet dead\nadd chain inet dead input { type filter hook input priority 0; tcp dport 8080 drop; }\n")
}

func orphans(t *testing.T, m mode) {
	m.plain = true // a socket that was taken has no entry of a Service
	c := newCluster(t, m)
	web, old, next := app{name: "web", number: 10}, app{name: "old", number: 11}, app{name: "next", number: 12}
	one, two, three, four := c.Host("web-1"), c.Host("web-2"), c.Host("web-3"), c.Host("web-4")
	p := c.start(t, web.on(one, three, four), old.on(two), next.on(one))
	lines, moved := c.converse(t, "tcp", web, 3), c.converse(t, "tcp", old, 1)
	c.awaitProgrammed(t, web.on(one, four).with(three, ended), old.on(one), next.on(two))
	moved.checkSameServer(t)
	lines.checkSameServer(t) // those that terminate, too
	lines, lost := lines.split("web-3")
	dies(t, three)
	dies(t, two) // changed the Service
	c.awaitProgrammed(t, web.on(one, four))
	p.AwaitLogs(t, `"Ending connections to an endpoint"`, "it does not answer", "FAMILY")
	lost.checkEnd(t, maxEnd)
	lines.checkSameServer(t)
	c.awaitLeft(t, "gone", false)
	kit.Until(t, "the count of connections that ended", func() bool { return int(metric(t, p, "kubeproxy_orphans_ended_total")) == len(lost) })
	nft(t, two, "delete table inet dead\n")
	moved.checkSameServer(t)
	p.Stop(t)
}

// split returns the conversations with other servers and with one.
func (all conversations) split(server string) (others, with conversations) {
	for _, x := range all {
		if x.server == server {
			with = append(with, x)
		} else {
			others = append(others, x)
		}
	}
	return others, with
}

// maxEnd is how long the client of an endpoint that is gone waits at most.
const maxEnd = 2 * time.Second

// checkEnd sends a request in each conversation and requires that it ends within a time.
func (all conversations) checkEnd(t *testing.T, within time.Duration) {
	t.Helper()
	kit.Need(t, len(all) != 0, "no conversation with the endpoint")
	var clients sync.WaitGroup
	var mu sync.Mutex
	var longest time.Duration
	for _, x := range all {
		clients.Go(func() {
			start := time.Now()
			a, err := x.conn.AskFor(t.Context(), within)
			kit.Check(t, err == nil && a.Outcome == netlab.Broken,
				"%s: %s, %v; want it to end", x.name, a.Outcome, err)
			mu.Lock()
			defer mu.Unlock()
			longest = max(longest, time.Since(start))
		})
	}
	clients.Wait()
	t.Logf("%d connections ended, at most %s after the client sent", len(all), longest.Round(time.Millisecond))
}

// TestDeadNode checks connections to an endpoint on a node that died: its pods do not serve
// and may stay in the slice for good. One that lives has the same conditions, and keeps its
// connections.
func TestDeadNode(t *testing.T) { inModes(t, faultModes, deadNode) }

func deadNode(t *testing.T, m mode) {
	m.plain = true
	c := newCluster(t, m)
	web := app{name: "web", number: 10}
	one, two, three := c.Host("web-1"), c.Host("web-2"), c.Host("web-3")
	p := c.start(t, web.on(one, two, three))
	kept, lost := c.converse(t, "tcp", web, 3).split("web-3")
	dies(t, three)
	waiting, quiet := lost[:len(lost)/2], lost[len(lost)/2:]
	var clients sync.WaitGroup
	clients.Go(func() { waiting.checkEnd(t, 20*time.Second) })
	c.awaitWaiting(t, len(waiting))
	written := time.Now()
	c.save(t, web.on(one).with(two, ended).with(three, ended))
	clients.Wait()
	if took := time.Since(written); took > maxEnd {
		t.Errorf("%s after the write, want %s at most", took, maxEnd)
	} else {
		t.Logf("%s after the write", took.Round(time.Millisecond))
	}
	p.AwaitLogs(t, "it answers neither its clients nor the node, and is not ready", "FAMILY")
	quiet.checkEnd(t, maxEnd)
	kept.checkSameServer(t)
}

// TestLateClients checks clients of a dead node that send nothing before its endpoints do not
// serve. One of them is the only one of its Service. An endpoint that is only too busy for new
// connections keeps those it has.
func TestLateClients(t *testing.T) { inModes(t, faultModes, lateClients) }

func lateClients(t *testing.T, m mode) {
	m.plain = true
	c := newCluster(t, m)
	web, only := app{name: "web", number: 10}, app{name: "only", number: 11}
	one, two, three := c.Host("web-1"), c.Host("web-2"), c.Host("web-3")
	p := c.start(t, web.on(one, two, three), only.on(three))
	kept, lost := c.converse(t, "tcp", web, 3).split("web-3")
	lost = append(lost, c.converse(t, "tcp", only, 2)...)
	nft(t, two, "table inet busy { chain input { type filter hook input priority 0; tcp dport 8080 tcp flags & (syn | ack) == syn drop; }; }\n")
	nft(t, three, "table inet dead { chain input { type filter hook input priority 0; meta l4proto tcp drop; }; }\n")
	c.awaitConnections(t, "at which nothing was acknowledged for two seconds", len(kept)+len(lost), func(x conntrack.Flow) bool {
		return x.Expires <= sysctl.TCPTimeout(sysctl.Host(), "established")-2
	})
	c.save(t, web.on(one).with(two, ended).with(three, ended), only.with(three, ended))
	lost[:len(lost)/2].checkEnd(t, 2*maxEnd) // while the proxy finds out
	p.AwaitLogs(t, "nothing on its node answers, and it is not ready", "FAMILY")
	lost[len(lost)/2:].checkEnd(t, maxEnd)
	kept.checkSameServer(t)
}

// awaitWaiting waits until n connections have data that their endpoint has not acknowledged
// for a while: their clients send it for the fourth time.
func (c *cluster) awaitWaiting(t *testing.T, n int) {
	t.Helper()
	c.awaitConnections(t, "whose clients wait", n, func(x conntrack.Flow) bool { return x.Owed && x.Expires <= 298 })
}

// awaitConnections waits for n connections to endpoints.
func (c *cluster) awaitConnections(t *testing.T, what string, n int, are func(conntrack.Flow) bool) {
	t.Helper()
	kit.Until(t, "connections "+what, func() bool {
		found := 0
		kit.Must(t, c.Node.Do(func() error {
			for _, f := range service.Families {
				err := conntrack.Netlink{}.Dump(t.Context(), conntrack.Filter{Family: f, Protocol: service.TCP}, func(x conntrack.Flow) {
					if x.ReplySrc.Port() == 8080 && are(x) {
						found++
					}
				})
				if err != nil {
					return err
				}
			}
			return nil
		}))
		return found >= n
	})
}

// awaitLeft waits until the tables for both families are there, or are not.
func (c *cluster) awaitLeft(t *testing.T, what string, want bool) {
	t.Helper()
	if c.mode.userspace { // the relay ends connections itself
		return
	}
	for _, f := range service.Families {
		place := nftables.LeftPlace(f, "")
		kit.Until(t, place.String()+" is "+what, func() bool {
			found := ""
			kit.Must(t, c.Node.Do(func() (err error) {
				found, err = place.Find(t.Context())
				return err
			}))
			return (found != "") == want
		})
	}
}

// TestOrphansThatRead checks clients that send nothing.
func TestOrphansThatRead(t *testing.T) { withNFTables(t, orphansThatRead) }

func TestIPTablesOrphansThatRead(t *testing.T)  { eachVariant(t, orphansThatRead) }
func TestIPVSOrphansThatRead(t *testing.T)      { withIPVS(t, orphansThatRead) }
func TestUserspaceOrphansThatRead(t *testing.T) { withUserspace(t, orphansThatRead) }

func orphansThatRead(t *testing.T, m mode) {
	m.plain = true
	c := newCluster(t, m)
	web := app{name: "web", number: 10}
	one, three := c.Host("web-1"), c.Host("web-3")
	c.start(t, web.on(three))
	lost := map[string]net.Conn{}
	for _, h := range []*netlab.Host{c.Host("shopper"), c.Host("customer"), c.Node} {
		for _, f := range service.Families {
			for _, k := range []service.Kind{service.ClusterIP, service.NodePort} {
				to := web.at(k, f).String()
				conn, err := h.Dial(t.Context(), "tcp", to)
				kit.Must(t, err)
				lost[h.Name+" to "+to] = conn
			}
		}
	}
	dies(t, three)
	c.awaitProgrammed(t, web.on(one))
	for name, conn := range lost {
		kit.Must(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
		n, err := conn.Read(make([]byte, 1))
		kit.Check(t, errors.Is(err, unix.ECONNRESET), "%s reads %d bytes, %v; want a reset", name, n, err)
		conn.Close()
	}
}

// TestLonelyOrphans checks connections to the only endpoint: nothing tells a dead one from
// one that a policy keeps from this node, but that its clients wait.
func TestLonelyOrphans(t *testing.T) { withNFTables(t, lonelyOrphans) }

func TestUserspaceLonelyOrphans(t *testing.T) {
	t.Parallel()
	lonelyOrphans(t, inUserspace(program.IPTablesVariants[0]))
}

func lonelyOrphans(t *testing.T, m mode) {
	m.plain = true
	c := newCluster(t, m)
	web := app{name: "web", number: 10}
	three := c.Host("web-3")
	c.start(t, web.on(three))
	quiet, lost := c.converse(t, "tcp", web, 1), c.converse(t, "tcp", web, 1)
	dies(t, three)
	c.awaitProgrammed(t, web)
	lost.checkEnd(t, 20*time.Second)
	nft(t, three, "delete table inet dead\n")
	quiet.checkSameServer(t)
}

// TestCloseConnections checks a Service that asks for the end of connections to endpoints
// that left, though they answer.
func TestCloseConnections(t *testing.T) { withNFTables(t, closesConnections) }

func TestIPTablesCloseConnections(t *testing.T)  { eachVariant(t, closesConnections) }
func TestIPVSCloseConnections(t *testing.T)      { withIPVS(t, closesConnections) }
func TestUserspaceCloseConnections(t *testing.T) { withUserspace(t, closesConnections) }

func closesConnections(t *testing.T, m mode) {
	m.plain = true
	c := newCluster(t, m)
	db, plain, all := app{name: "db", number: 10}, app{name: "plain", number: 11}, app{name: "all", number: 12}
	one, three := c.Host("web-1"), c.Host("web-3")
	c.saveAnnotated(t, db.on(three), track.AnnotationClose, track.CloseLeft)
	p := c.start(t, plain.on(three), all.on(one, three))
	lost, kept := c.converse(t, "tcp", db, 1), c.converse(t, "tcp", plain, 1)
	c.save(t, plain.on(one))
	c.saveAnnotated(t, db.on(one), track.AnnotationClose, track.CloseLeft)
	written := time.Now()
	p.AwaitLogs(t, `"Ending connections to an endpoint"`, "the Service asks for it", "FAMILY")
	t.Logf("decided %s after the write", time.Since(written).Round(time.Millisecond))
	lost.checkEnd(t, maxEnd)
	kept.checkSameServer(t)
	if again := c.converse(t, "tcp", db, 1); slices.ContainsFunc(again, func(x conversation) bool { return x.server != "web-1" }) {
		t.Errorf("clients that came back: %v", again)
	}
	c.awaitLeft(t, "gone", false)
	lost, _ = c.converse(t, "tcp", db, 1).split("")
	c.saveAnnotated(t, db.with(one, terminating).with(three, ready), track.AnnotationClose, track.CloseLeft)
	c.awaitProgrammed(t)
	lost.checkSameServer(t)
}

// TestOrphansLeaveNoTable checks that the table goes with the process, not when others delete
// it, and that what a killed one leaves goes with the next one or a cleanup.
func TestOrphansLeaveNoTable(t *testing.T) {
	t.Parallel()
	m := defaultMode()
	m.plain = true
	c := newCluster(t, m)
	web := app{name: "web", number: 10}
	two, three := c.Host("web-2"), c.Host("web-3")
	p := c.start(t, web.on(two, three))
	c.converse(t, "tcp", web, 4)
	nft(t, c.Node, "add table inet calm\nadd chain inet calm post { type filter hook postrouting priority 0; ct state untracked @th,32,64 0x6b7562656c656674 drop; }\n") // no nudges
	dies(t, three)
	c.awaitProgrammed(t, web.on(two))
	c.awaitLeft(t, "there", true)
	text := nft(t, c.Node, "list table ip "+nftables.LeftTableOf("")+"\n")
	kit.Check(t, strings.Count(text, "reject with tcp reset") == 3, "the table is\n%s", text)
	c.explain(t, asked{source: "10.244.1.12", destination: "10.96.0.10:80", want: []string{agrees}})
	for _, f := range service.Families { // as a firewall that flushes all rules
		nft(t, c.Node, "delete table "+nftables.LeftPlace(f, "").Name()+"\n")
	}
	c.awaitLeft(t, "there although others deleted it", true)
	p.Stop(t)
	c.awaitLeft(t, "gone at the end", false)
	p = c.launch(t) // finds the connections by itself
	c.awaitLeft(t, "there again", true)
	p.Kill()
	c.awaitLeft(t, "left by a process that was killed", true)
	out, err := program.Run(t, c.Node, c.command("--cleanup"))
	kit.Check(t, err == nil, "cleanup: %v\n%s", err, out)
	c.awaitLeft(t, "gone after a cleanup", false)
}

// TestRebalance checks a Service that asks for its connections to be spread after a
// scale-up, with clients that wait for something to read.
func TestRebalance(t *testing.T) { withNFTables(t, rebalances) }

func TestIPTablesRebalance(t *testing.T)  { eachVariant(t, rebalances) }
func TestIPVSRebalance(t *testing.T)      { withIPVS(t, rebalances) }
func TestUserspaceRebalance(t *testing.T) { withUserspace(t, rebalances) }

func rebalances(t *testing.T, m mode) {
	const clients = 40 // of each family
	m.plain = true
	c := newCluster(t, m)
	web, other := app{name: "web", number: 10}, app{name: "other", number: 11}
	hosts := []*netlab.Host{c.Host("web-1"), c.Host("web-2"), c.Host("web-3"), c.Host("web-4")}
	c.saveAnnotated(t, web.on(hosts[:2]...), track.AnnotationRebalance, "2s")
	p := c.start(t, other.on(hosts[:2]...))
	kept := c.converse(t, "tcp", other, 1)
	var crowds []*crowd
	for _, f := range service.Families {
		crowds = append(crowds, gather(t, c.Host("shopper"), web.at(service.ClusterIP, f).String(), clients))
	}
	c.saveAnnotated(t, web.on(hosts...), track.AnnotationRebalance, "2s")
	c.save(t, other.on(hosts...))
	c.awaitProgrammed(t)
	scaled, ends := time.Now(), 0
	for _, all := range crowds {
		share := clients / len(hosts)
		kit.Until(t, "each endpoint has its share", func() bool { return all.near(share) })
		t.Logf("%s: %v %s after the scale-up", all.to, all.counts(), time.Since(scaled).Round(time.Second))
	}
	open := 0
	for _, h := range hosts {
		open += connected(t, h)
	}
	// A server that does not hear of an end finds out after 15 s, by its own keepalive.
	if late := open - len(crowds)*clients - len(kept); late > clients/4 {
		t.Errorf("%d connections that ended are open at their servers", late)
	} else {
		t.Logf("%d connections that ended are open at their servers", late)
	}
	for _, all := range crowds {
		all.leave()
		all.checkPace(t, clients/20)
		ends += len(all.ends)
	}
	kept.checkSameServer(t)
	p.AwaitLogs(t, `"Rebalancing the connections of a Service"`, "FAMILY", "shop/web:lines")
	p.AwaitLogs(t, `"Ending connections to an endpoint"`, "it has more than its share", "FAMILY")
	kit.Until(t, "the count of connections that ended", func() bool { return int(metric(t, p, "kubeproxy_connections_rebalanced_total")) >= ends })
	n := metric(t, p, "kubeproxy_orphans_ended_total")
	kit.Check(t, n == 0, "%v orphans ended", n)
}

// connected returns how many connections the server on h has.
func connected(t *testing.T, h *netlab.Host) (n int) {
	t.Helper()
	const port, established = ":1F90 ", " 01 " // 8080
	kit.Must(t, h.Do(func() error {
		for _, name := range []string{"tcp", "tcp6"} {
			text, err := os.ReadFile("/proc/thread-self/net/" + name)
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(text)) {
				if local, rest, found := strings.Cut(line, port); found && len(strings.Fields(local)) == 2 && strings.Contains(rest, established) {
					n++
				}
			}
		}
		return nil
	}))
	return n
}

// crowd is clients that hold a connection each, and come back at once when it ends.
type crowd struct {
	to    string
	leave func()

	mu   sync.Mutex
	at   map[string]int // connections, by server
	ends []time.Time
}

// gather returns when all have a connection.
func gather(t *testing.T, from *netlab.Host, to string, clients int) *crowd {
	t.Helper()
	c := &crowd{to: to, at: map[string]int{}}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	c.leave = func() { cancel(); all.Wait() }
	t.Cleanup(c.leave)
	for range clients {
		all.Go(func() {
			for ctx.Err() == nil {
				if err := c.hold(ctx, from); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	kit.Until(t, "all clients are connected", func() bool {
		n := 0
		for _, k := range c.counts() {
			n += k
		}
		return n == clients || t.Failed()
	})
	return c
}

// hold connects and waits for the end.
func (c *crowd) hold(ctx context.Context, from *netlab.Host) error {
	conn, err := from.Dial(ctx, "tcp", c.to)
	if errors.Is(err, unix.ECONNRESET) { // the port of a connection that ended a moment before, to the same endpoint
		return nil
	}
	if err != nil {
		return ignoreAfter(ctx, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	lines := bufio.NewReader(conn)
	server, err := askName(conn, lines)
	if err != nil {
		return ignoreAfter(ctx, err)
	}
	c.change(server, 1)
	_, _ = lines.ReadByte()
	c.change(server, -1)
	if ctx.Err() == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.ends = append(c.ends, time.Now())
	}
	return nil
}

func askName(conn net.Conn, lines *bufio.Reader) (string, error) {
	if _, err := fmt.Fprintln(conn, "who"); err != nil {
		return "", err
	}
	line, err := lines.ReadString('\n')
	if err != nil {
		return "", err
	}
	return strings.Fields(line)[1], nil
}

func ignoreAfter(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (c *crowd) change(server string, by int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at[server] += by
}

func (c *crowd) counts() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.at)
}

// near reports whether each server is within 15 % of its share, or the next whole number.
func (c *crowd) near(share int) bool {
	all, some := c.counts(), (share*15+99)/100
	for _, n := range all {
		if n < share-some || n > share+some {
			return false
		}
	}
	return len(all) > 0
}

// checkPace requires that no more than most connections ended in a second, but for the time
// that it takes a client to hear of it.
func (c *crowd) checkPace(t *testing.T, most int) {
	t.Helper()
	kit.Check(t, len(c.ends) != 0, "%s: no connection ended", c.to)
	const seconds, late = 3, 500 * time.Millisecond
	for i := most * seconds; i < len(c.ends); i++ {
		took := c.ends[i].Sub(c.ends[i-most*seconds])
		kit.Check(t, took >= seconds*time.Second-late, "%s: %d connections ended within %s", c.to, most*seconds+1, took)
	}
}
