// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"flag"
	"sync"
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/userspace"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

var connectionCount = flag.Int("connections", 1000, "TCP connections at once through mode userspace, and a tenth of that of UDP clients")

// TestUserspaceManyConnections opens many connections at once, each of which answers
// twice, and measures their memory.
func TestUserspaceManyConnections(t *testing.T) {
	// Clients and servers are in this process, so it needs as many files as the proxy
	// does.
	if _, err := userspace.RaiseFileLimit(); err != nil {
		t.Fatal(err)
	}
	m := inUserspace("nft")
	m.flags = append(m.flags, "--udp-timeout=10m")
	c := newCluster(t, m)
	web := app{name: "web", number: 10}.on(c.webs()...)
	c.save(t, web)
	p := c.start(t)
	for _, x := range []struct {
		proto string
		count int
	}{{"tcp", *connectionCount}, {"udp", *connectionCount / 10}} {
		before, files := memory(t, p), metric(t, p, "process_open_fds")
		all := c.openMany(t, x.proto, web, x.count)
		after := memory(t, p)
		t.Logf("%d %s clients at once: %.1f kB resident memory and %.1f open files each",
			x.count, x.proto, (after-before)/1024/float64(x.count), (metric(t, p, "process_open_fds")-files)/float64(x.count))
		all.checkSameServer(t)
		for _, o := range all {
			_ = o.conn.Close()
		}
	}
}

// openMany opens a number of conversations from outside, several in parallel.
func (c *cluster) openMany(t *testing.T, proto string, a app, count int) conversations {
	t.Helper()
	all := make(conversations, count)
	next := make(chan int)
	var asking sync.WaitGroup
	for range 16 {
		asking.Go(func() {
			for i := range next {
				f := service.Families[i%2]
				q := netlab.Query{Proto: proto, To: a.at(service.ClusterIP, f), Timeout: program.ReplyTimeout}
				conn, answer, err := c.Host("customer").Open(t.Context(), q)
				if err == nil && answer.Outcome == netlab.Answered {
					answer, err = conn.Ask(t.Context())
				}
				if err != nil || answer.Outcome != netlab.Answered {
					t.Errorf("%s client %d: %s, %v", proto, i, answer.Outcome, err)
					continue
				}
				all[i] = conversation{conn, q.To.String(), answer.Backend}
			}
		})
	}
	for i := range count {
		next <- i
	}
	close(next)
	asking.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return all
}

func metric(t *testing.T, p *program.Proxy, name string) float64 {
	t.Helper()
	v, found := p.Metric(t, name)
	if !found {
		t.Fatalf("there is no metric %s", name)
	}
	return v
}

func memory(t *testing.T, p *program.Proxy) float64 {
	t.Helper()
	return metric(t, p, "process_resident_memory_bytes")
}
