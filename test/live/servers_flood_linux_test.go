// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// TestServersUnderFlood opens idle connections, endless requests and responses that are
// not read. Other clients are still served, memory stays low, and rules follow changes.
func TestServersUnderFlood(t *testing.T) {
	t.Parallel()
	total, changes := 600, 3
	if kit.Nightly() {
		total, changes = 5000, 31
	}
	for _, most := range []int{256, 4096} {
		t.Run(fmt.Sprint(most, " files"), func(t *testing.T) {
			c := newCluster(t, defaultMode())
			c.variant(t, 0) // many Services, for a long response
			p := program.Start(t, c.Node, limited(c.command(append(c.mode.flags, "--manifests="+c.dir, "--iptables-min-sync-period=0")...), most))
			c.awaitProgrammed(t)
			p.Fetch(t, program.MetricsAddr, "/services")
			before := memory(t, p)
			quiet := c.changeTimes(t, "quiet", changes)
			all := openConns{host: c.Node}
			all.openTotal(t, total)
			if n := files(t, p); n > most-64 {
				t.Errorf("%d files are open of %d", n, most)
			}
			slowest := quiet + quiet/10 + 5*time.Millisecond
			busy := c.changeTimes(t, "busy", changes)
			for try := 0; kit.Nightly() && busy > slowest && try < 3; try++ { // the machine may have much else to do
				busy = min(busy, c.changeTimes(t, "busy", changes))
			}
			if kit.Nightly() && busy > slowest {
				t.Errorf("half of %d changes took more than %s, want at most %s", changes, busy, slowest)
			}
			t.Logf("half of %d changes took less than %s alone, and than %s under %d hostile connections", changes, quiet, busy, total)
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
			all.closeAll()
		})
	}
}

// changeTimes moves a Service to another address several times, and returns the median of
// the times until it answered there.
func (c *cluster) changeTimes(t *testing.T, name string, times int) time.Duration {
	t.Helper()
	var took []time.Duration
	for i := range times {
		a := app{name: name, number: 20 + i}.on(c.webs()...)
		start := time.Now()
		c.save(t, a)
		kit.Until(t, "a Service at its new address", func() bool {
			got, err := c.Host("shopper").Ask(t.Context(), netlab.Query{Proto: "tcp", To: a.at(service.ClusterIP, service.IPv4), Timeout: netlab.SilenceTimeout})
			return err == nil && got.Outcome == netlab.Answered
		})
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	return took[len(took)/2]
}

// openConns holds connections to the servers.
type openConns struct {
	host *netlab.Host
	mu   sync.Mutex
	all  []net.Conn
}

func (x *openConns) openTotal(t *testing.T, total int) {
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
				ctx, cancel := context.WithTimeout(t.Context(), program.ReplyTimeout)
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

func (x *openConns) closeAll() {
	for _, c := range x.all {
		_ = c.Close()
	}
}
