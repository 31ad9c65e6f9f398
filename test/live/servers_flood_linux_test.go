// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// Idle connections, requests that never end and answers that nobody reads keep
// nobody from asking, hold little memory, and rules follow changes.
func TestServersUnderFlood(t *testing.T) {
	t.Parallel()
	total := 600
	if nightly() {
		total = 5000
	}
	for _, most := range []int{256, 4096} {
		t.Run(fmt.Sprint(most, " files"), func(t *testing.T) {
			c := newCluster(t, usual())
			c.variant(t, 0) // many Services, for a long answer
			p := program.Start(t, c.Node, limited(c.command(append(c.mode.flags, "--manifests="+c.dir)...), most))
			c.settle(t)
			p.Fetch(t, program.MetricsAddr, "/services")
			before := memory(t, p)
			calm := c.change(t, 20)
			all := crowding{host: c.Node}
			all.come(t, total)
			if n := files(t, p); n > most-64 {
				t.Errorf("%d files are open of %d", n, most)
			}
			busy := c.change(t, 21)
			t.Logf("a change took %s alone and %s under %d hostile connections", calm, busy, total)
			if s := p.Status(t, program.HealthAddr, "/healthz"); s != http.StatusOK {
				t.Errorf("/healthz answers %d", s)
			}
			if s := p.Status(t, program.MetricsAddr, "/services"); s != http.StatusOK {
				t.Errorf("/services answers %d", s)
			}
			if grown := (memory(t, p) - before) / (1 << 20); grown > 32 {
				t.Errorf("the process has grown by %.0f MB", grown)
			} else {
				t.Logf("the process has grown by %.0f MB", grown)
			}
			all.leave()
		})
	}
}

// change adds a Service and returns when it answered.
func (c *cluster) change(t *testing.T, number int) time.Duration {
	t.Helper()
	a := app{name: fmt.Sprint("late-", number), number: number}.on(c.webs()...)
	start := time.Now()
	c.save(t, a)
	program.Await(t, "a new Service", func() bool {
		got, err := c.Host("shopper").Ask(t.Context(), netlab.Query{Proto: "tcp", To: a.at(service.ClusterIP, service.IPv4), Timeout: netlab.Silence})
		return err == nil && got.Outcome == netlab.Answered
	})
	return time.Since(start)
}

// crowding holds connections to the servers.
type crowding struct {
	host *netlab.Host
	mu   sync.Mutex
	all  []net.Conn
}

func (x *crowding) come(t *testing.T, total int) {
	t.Helper()
	get := func(path string) string { return "GET " + path + " HTTP/1.1\r\nHost: node\r\n" }
	var coming sync.WaitGroup
	for i := range 8 {
		coming.Go(func() {
			for n := i; n < total; n += 8 {
				to, text := program.HealthAddr, []string{"", get("/healthz"), get("/healthz") + "\r\n"}[n%3]
				if n%2 == 1 {
					to, text = program.MetricsAddr, []string{get("/services") + "\r\n", get("/metrics") + "\r\n", get("/services")}[n%3]
				}
				ctx, cancel := context.WithTimeout(t.Context(), program.Reply)
				conn, err := x.host.Dial(ctx, "tcp", to)
				cancel()
				if err != nil {
					continue // it was closed at once
				}
				_, _ = io.WriteString(conn, text)
				x.mu.Lock()
				x.all = append(x.all, conn)
				x.mu.Unlock()
			}
		})
	}
	coming.Wait()
}

func (x *crowding) leave() {
	for _, c := range x.all {
		_ = c.Close()
	}
}
