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
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
)

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
