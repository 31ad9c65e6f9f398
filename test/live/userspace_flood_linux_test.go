// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// flooding is how long hostile clients go on.
func flooding() time.Duration {
	if kit.Nightly() {
		return time.Minute
	}
	return 3 * time.Second
}

// limited limits the open files of cmd, and removes its privilege to raise the limit.
func limited(cmd *exec.Cmd, files int) *exec.Cmd {
	cmd.Args = append([]string{"prlimit", fmt.Sprintf("--nofile=%d:%d", files, files),
		"setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource", cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/usr/bin/prlimit"
	return cmd
}

// files counts the open files of a process.
func files(t *testing.T, p *program.Proxy) int {
	t.Helper()
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// awaitFilesClosed waits until a process has about as many files open as before. That
// must be soon.
func awaitFilesClosed(t *testing.T, p *program.Proxy, before int) {
	t.Helper()
	const soon, few = 5 * time.Second, 8 // for what the proxy itself does
	for deadline := time.Now().Add(soon); files(t, p) > before+few; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("%d files are open %s after the clients left, and were %d", files(t, p), soon, before)
			return
		}
	}
}

// connectDuring connects repeatedly while do runs, and returns the durations, the longest
// last.
func (c *cluster) connectDuring(t *testing.T, to netip.AddrPort, do func()) []time.Duration {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	var all []time.Duration
	for over := false; !over; {
		start := time.Now()
		a, err := c.Host("shopper").Ask(t.Context(), netlab.Query{Proto: "tcp", To: to, Timeout: program.ReplyTimeout})
		if err != nil || a.Outcome != netlab.Answered {
			t.Errorf("a neighbour: %s, %v", a.Outcome, err)
		}
		all = append(all, time.Since(start))
		select {
		case <-done:
			over = true
		case <-time.After(5 * time.Millisecond):
		}
	}
	slices.Sort(all)
	return all
}

// checkPrompt requires that the client was served as without the flood.
func checkPrompt(t *testing.T, took []time.Duration) {
	t.Helper()
	p99 := took[(len(took)-1)*99/100]
	t.Logf("a neighbour made %d connections: half of them within %s, 99 %% within %s", len(took), took[len(took)/2], p99)
	most := time.Second // on a machine that may run other tests
	if kit.Nightly() {
		most = 50 * time.Millisecond
	}
	if p99 > most {
		t.Errorf("99 %% of a neighbour's connections took up to %s, want %s", p99, most)
	}
}

// manifestTo returns the manifest of a with another address and port as its endpoints.
func manifestTo(t *testing.T, a app, to netip.Addr, port uint16) []byte {
	text := bytes.ReplaceAll(a.yaml(t), []byte("10.244.1.11"), []byte(to.String()))
	return bytes.ReplaceAll(text, []byte("port: 8080"), fmt.Appendf(nil, "port: %d", port))
}

// TestUserspaceLoop has a Service on each of two nodes, whose endpoint is the Service on
// the other node. Connections are cut off after a few rounds, without an effect on other
// clients.
func TestUserspaceLoop(t *testing.T) {
	t.Parallel()
	const most = 4096
	c := newCluster(t, inUserspace("nft"))
	web := app{name: "web", number: 10}.on(c.webs()...)
	there := app{name: "there", number: 91}.on(c.Host("web-1"))
	back := app{name: "back", number: 92}.on(c.Host("web-1"))
	c.save(t, web)
	c.write(t, "loop.yaml", manifestTo(t, there, c.Other.IPv4, back.nodePort()))
	p := program.Start(t, c.Node, limited(c.command(append(c.mode.flags, "--manifests="+c.dir)...), most))
	other := &cluster{Lab: c.Lab, dir: t.TempDir(), mode: c.mode, commands: c.commands}
	other.write(t, "loop.yaml", manifestTo(t, back, c.Node.IPv4, there.nodePort()))
	other.write(t, "node.yaml", bytes.ReplaceAll(bytes.ReplaceAll(program.Manifest[any](t, node()),
		[]byte("192.0.2.10"), []byte("192.0.2.11")), []byte("2001:db8:2::10"), []byte("2001:db8:2::11")))
	q := program.Start(t, c.Other, limited(other.command(append(c.mode.flags, "--manifests="+other.dir, "--hostname-override="+netlab.OtherName)...), most))
	for _, x := range []*program.Proxy{p, q} {
		x.AwaitLog(t, `"Programmed"`, "userspace IPv4")
		x.AwaitLog(t, `"Programmed"`, "userspace IPv6")
	}
	before, beforeOther := files(t, p), files(t, q)
	for _, proto := range []string{"tcp", "udp"} {
		query := netlab.Query{Proto: proto, To: netip.AddrPortFrom(c.Node.IPv4, there.nodePort()), Timeout: 2 * time.Second}
		start, peak := time.Now(), 0
		took := c.connectDuring(t, web.at(service.ClusterIP, service.IPv4), func() {
			conn, a, err := c.Host("customer").Open(t.Context(), query)
			if err != nil {
				t.Error(err)
				return
			}
			if a.Outcome == netlab.Answered {
				a, err = conn.Ask(t.Context())
			}
			t.Logf("%s: %s after %s, %v", proto, a.Outcome, time.Since(start), err)
			peak = max(files(t, p)-before, files(t, q)-beforeOther)
			if conn != nil { // it was refused
				_ = conn.Close()
			}
		})
		t.Logf("%s: a neighbour had to wait %s at most", proto, took[len(took)-1])
		if peak > 40 {
			t.Errorf("%s: one client has %d files opened", proto, peak)
		}
		awaitFilesClosed(t, p, before)
		awaitFilesClosed(t, q, beforeOther)
	}
	took := c.connectDuring(t, web.at(service.ClusterIP, service.IPv4), func() {
		ctx, cancel := context.WithTimeout(t.Context(), flooding())
		defer cancel()
		load := c.Host("customer").Load(ctx, netlab.LoadConfig{
			Query:   netlab.Query{Proto: "tcp", To: netip.AddrPortFrom(c.Node.IPv4, there.nodePort()), Timeout: time.Second},
			Workers: 4, Pause: time.Millisecond,
		})
		<-ctx.Done()
		t.Logf("loops: %s", load.Stop())
	})
	checkPrompt(t, took)
	awaitFilesClosed(t, p, before)
	awaitFilesClosed(t, q, beforeOther)
	checkLoopReported(t, p, q)
}

// checkLoopReported looks for the loop where an operator would.
func checkLoopReported(t *testing.T, p, q *program.Proxy) {
	t.Helper()
	page := string(p.Fetch(t, program.HealthAddr, "/healthz").Body) + string(q.Fetch(t, program.HealthAddr, "/healthz").Body)
	if !strings.Contains(page, "came through relays too often") || strings.Contains(page, "shop") {
		t.Errorf("health says %s", page)
	}
	n, _ := p.Metric(t, "kubeproxy_relay_refused_total", "reason", "loop")
	m, _ := q.Metric(t, "kubeproxy_relay_refused_total", "reason", "loop")
	if n+m == 0 {
		t.Error("no loop is counted")
	}
}

// TestUserspaceFewFiles checks a process with few files. Neither idle connections nor
// many UDP clients of one host block others, and rules follow changes.
func TestUserspaceFewFiles(t *testing.T) {
	t.Parallel()
	const most = 256
	c := newCluster(t, inUserspace("nft"))
	web, greedy := app{name: "web", number: 10}.on(c.webs()...), app{name: "greedy", number: 11}.on(c.Host("web-2"))
	c.save(t, web, greedy)
	p := program.Start(t, c.Node, limited(c.command(append(c.mode.flags, "--manifests="+c.dir)...), most))
	c.awaitProgrammed(t)
	before := files(t, p)
	to := greedy.at(service.ClusterIP, service.IPv4)
	var idle []net.Conn
	took := c.connectDuring(t, web.at(service.ClusterIP, service.IPv4), func() {
		for range 150 {
			if conn, err := c.Host("customer").Dial(t.Context(), "tcp", to.String()); err == nil { // else it was reset at once
				idle = append(idle, conn)
			}
		}
		c.flood(t, to)
	})
	checkPrompt(t, took)
	if n := files(t, p); n > most {
		t.Errorf("%d files are open", n)
	}
	late := app{name: "late", number: 12}.on(c.webs()...)
	c.save(t, late)
	c.awaitProgrammed(t)
	a, err := c.Host("shopper").Ask(t.Context(), netlab.Query{Proto: "tcp", To: late.at(service.ClusterIP, service.IPv4)})
	if err != nil || a.Outcome != netlab.Answered {
		t.Errorf("a new Service: %s, %v", a.Outcome, err)
	}
	page := string(p.Fetch(t, program.HealthAddr, "/healthz").Body)
	if !strings.Contains(page, "clients are refused") || strings.Contains(page, "192.0.2.100") {
		t.Errorf("health says %s", page)
	}
	page = string(p.Fetch(t, program.MetricsAddr, "/services").Body)
	if !strings.Contains(page, "192.0.2.100") {
		t.Error("status does not say who is refused")
	}
	for _, conn := range idle {
		_ = conn.Close()
	}
	awaitFilesClosed(t, p, before+4) // listeners of the new Service
}

// flood sends to a Service from 400 ports for a while.
func (c *cluster) flood(t *testing.T, to netip.AddrPort) {
	var all sync.WaitGroup
	for range 400 {
		conn, err := c.Host("customer").Dial(t.Context(), "udp", to.String())
		if err != nil {
			t.Error(err)
			return
		}
		all.Go(func() {
			defer conn.Close()
			for end := time.Now().Add(flooding()); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
				_, _ = conn.Write([]byte("x\n"))
			}
		})
	}
	all.Wait()
}
