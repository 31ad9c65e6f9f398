// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"bytes"
	"context"
	"flag"
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
	"kubeproxy/platform/linux/userspace"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// withUserspace runs test in mode userspace with each of the variants of iptables.
func withUserspace(t *testing.T, test func(*testing.T, mode)) {
	t.Parallel()
	for _, v := range variants(t) {
		t.Run(v, func(t *testing.T) {
			t.Parallel()
			test(t, inUserspace(v))
		})
	}
}

func TestUserspaceSecondDraw(t *testing.T) { withUserspace(t, secondDraw) }

// slowUDP gives an endpoint of UDP ten seconds for an answer: on a busy machine the
// default of 250 ms may pass before it has the request.
const slowUDP = "--udp-timeout=10s"

func inUserspace(variant string) mode {
	m := defaultMode()
	m.flags = append(m.flags, "--proxy-mode=userspace", "--iptables-localhost-nodeports=false", slowUDP)
	m.iptables, m.userspace = variant, true
	return m
}

// protocols lists those that c's mode forwards.
func (c *cluster) protocols() []service.Protocol {
	if c.mode.userspace {
		return slices.DeleteFunc(protocols(), func(p service.Protocol) bool { return p == service.SCTP })
	}
	return protocols()
}

func TestUserspaceEveryCell(t *testing.T) { withUserspace(t, everyCell) }
func TestUserspaceModes(t *testing.T)     { withUserspace(t, everyMode) }

func TestUserspaceBridge(t *testing.T) {
	withUserspace(t, func(t *testing.T, m mode) { onBridge(t, m.withoutPodDetection()) })
}

// listening is m with the listeners of f at the node's address, in a range.
func (m mode) listening(f service.Family) mode {
	m.bound.Ports = userspace.Range{First: 25000, Last: 25099}
	m.bound.Listen[f] = app{}.at(service.NodePort, f).Addr()
	m.flags = append(m.flags[:len(m.flags):len(m.flags)], "--proxy-port-range=25000-25099", "--bind-address="+m.bound.Listen[f].String(), "--metrics-bind-address="+program.MetricsAddr)
	return m
}

// eachBound runs test with listeners at the node's address of each family.
func eachBound(t *testing.T, test func(*testing.T, mode, service.Family)) {
	withUserspace(t, func(t *testing.T, m mode) {
		for _, f := range service.Families {
			t.Run(f.String(), func(t *testing.T) {
				t.Parallel()
				test(t, m.listening(f), f)
			})
		}
	})
}

func TestUserspaceBoundEveryCell(t *testing.T) {
	withUserspace(t, func(t *testing.T, m mode) { everyCell(t, m.listening(service.IPv4)) })
}

// Listeners are at the node's address if that is configured, and clients reach them only
// through their Service. Other programs of the node at that address are not affected.
func TestUserspaceBound(t *testing.T) {
	eachBound(t, func(t *testing.T, m mode, f service.Family) {
		c := newCluster(t, m)
		web := app{name: "web", number: 10, plain: true}.on(c.webs()...)
		p := c.start(t, web)
		c.check(t, c.awaitProgrammed(t), c.cells(c.clientHosts(), web))
		for _, port := range []uint16{24999, 25100} {
			_, err := c.Node.Echo("other", port)
			kit.Must(t, err)
		}
		for _, proto := range []string{"tcp", "udp"} {
			c.guarded(t, web, f, proto)
		}
		p.Stop(t)
		out, err := program.Run(t, c.Node, c.command("--cleanup"))
		kit.Need(t, err == nil, "cleanup: %v\n%s", err, out)
		left := c.listing(t)
		kit.Check(t, !strings.Contains(left, "KUBE-PORTALS"), "after the cleanup there is\n%s", left)
		if out, err := program.Run(t, c.Node, exec.Command("ip", "addr")); err != nil || !strings.Contains(out, " "+m.bound.Listen[f].String()+"/") {
			t.Errorf("the node's address is gone: %v\n%s", err, out)
		}
	})
}

// guarded dials where the listener of a is, and what is beside it.
func (c *cluster) guarded(t *testing.T, a app, f service.Family, proto string) {
	t.Helper()
	at := c.listenersOf(t, f, proto)
	if len(at) != 1 || at[0].Addr() != c.mode.bound.Listen[f] || at[0].Port() < 25000 || at[0].Port() > 25099 {
		t.Fatalf("the listeners are at %v", at)
	}
	ask := func(h *netlab.Host, q netlab.Query, want netlab.Outcome) {
		t.Helper()
		if q.Proto = proto; want == netlab.TimedOut {
			q.Timeout = netlab.SilenceTimeout
		}
		if got, err := h.Ask(t.Context(), q); err != nil || got.Outcome != want {
			t.Errorf("%s to %s over %s: %s, %v; want %s", h.Name, q.To, proto, got.Outcome, err, want)
		}
	}
	if proto == "udp" { // the mark distinguishes its late answers from packets of other programs
		out, err := program.Run(t, c.Node, exec.Command("ss", "-Hlune", "sport", "=", fmt.Sprint(at[0].Port())))
		kit.Check(t, err == nil && strings.Contains(out, "fwmark:0x4000"), "the listener has no mark: %v\n%s", err, out)
	}
	addrPort := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(at[0].Addr(), port) }
	for _, h := range c.clientHosts() {
		ask(h, netlab.Query{To: at[0]}, netlab.TimedOut)
		ask(h, netlab.Query{To: addrPort(25098)}, netlab.TimedOut)
		ask(h, netlab.Query{To: addrPort(24999)}, netlab.Answered)
		ask(h, netlab.Query{To: addrPort(25100)}, netlab.Answered)
		ask(h, netlab.Query{To: addrPort(24998)}, netlab.Refused)
	}
	// A program of the node has a port of the range for its own connections.
	ask(c.Node, netlab.Query{From: addrPort(25097), To: netip.AddrPortFrom(c.Host("web-3").Addr(at[0].Addr()), target)}, netlab.Answered)
}

// listenersOf returns where rules of f lead over proto.
func (c *cluster) listenersOf(t *testing.T, f service.Family, proto string) []netip.AddrPort {
	t.Helper()
	name := map[service.Family]string{service.IPv4: "iptables-save", service.IPv6: "ip6tables-save"}[f]
	var all []netip.AddrPort
	for line := range strings.Lines(c.iptables(t, "", name, "-t", "nat")) {
		if _, to, found := strings.Cut(line, fmt.Sprintf("-p %s -j DNAT --to-destination ", proto)); found {
			all = append(all, netip.MustParseAddrPort(strings.TrimSpace(to)))
		}
	}
	return all
}

// Listeners move between their own address and the node's over a restart, which
// nobody notices. Their own address goes when nothing leads there.
func TestUserspaceBoundSwitch(t *testing.T) {
	withUserspace(t, func(t *testing.T, own mode) {
		c := newCluster(t, own)
		web := app{name: "web", number: 10, plain: true}.on(c.webs()...)
		p := c.start(t, web)
		for _, m := range []mode{own.listening(service.IPv4), own.listening(service.IPv6), own} {
			loads, packets := c.loads(t, web), c.converse(t, "udp", web, 1)
			p.Stop(t)
			c.setMode(t, m)
			p = c.launch(t)
			want := c.awaitProgrammed(t)
			for _, f := range service.Families {
				kit.Until(t, "the listeners' own address where it is needed", func() bool {
					return (c.finds(t, userspace.Leftovers{Family: f}) != "") == !m.bound.Listen[f].IsValid()
				})
			}
			packets.checkAnswered(t)
			lossless(t, loads)
			c.check(t, want, c.cells(c.clientHosts(), web))
			p.Kill()
			p = c.launch(t)
			p.AwaitLogs(t, `"Programmed"`, "userspace FAMILY")
			c.check(t, want, c.cells(c.clientHosts(), web))
		}
	})
}

var connectionCount = flag.Int("connections", 1000, "TCP connections at once through mode userspace, and a tenth of that of UDP clients")

// TestUserspaceManyConnections opens many connections at once, each of which answers
// twice, and measures their memory.
func TestUserspaceManyConnections(t *testing.T) {
	// Clients and servers are in this process, so it needs as many files as the proxy
	// does.
	_, err := userspace.RaiseFileLimit()
	kit.Must(t, err)
	m := inUserspace("nft")
	m.flags = append(m.flags, "--udp-timeout=10m")
	c := newCluster(t, m)
	web := app{name: "web", number: 10}.on(c.webs()...)
	p := c.start(t, web)
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
	kit.Need(t, found, "there is no metric %s", name)
	return v
}

func memory(t *testing.T, p *program.Proxy) float64 {
	t.Helper()
	return metric(t, p, "process_resident_memory_bytes")
}

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
	kit.Must(t, err)
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
		kit.Check(t, err == nil && a.Outcome == netlab.Answered, "a neighbour: %s, %v", a.Outcome, err)
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
	kit.Check(t, p99 <= most, "99 %% of a neighbour's connections took up to %s, want %s", p99, most)
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
		x.AwaitLogs(t, `"Programmed"`, "userspace FAMILY")
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
		kit.Check(t, peak <= 40, "%s: one client has %d files opened", proto, peak)
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
	kit.Check(t, strings.Contains(page, "came through relays too often") && !strings.Contains(page, "shop"),
		"health says %s", page)
	n, _ := p.Metric(t, "kubeproxy_relay_refused_total", "reason", "loop")
	m, _ := q.Metric(t, "kubeproxy_relay_refused_total", "reason", "loop")
	kit.Check(t, n+m != 0, "no loop is counted")
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
	n := files(t, p)
	kit.Check(t, n <= most, "%d files are open", n)
	late := app{name: "late", number: 12}.on(c.webs()...)
	c.awaitProgrammed(t, late)
	a, err := c.Host("shopper").Ask(t.Context(), netlab.Query{Proto: "tcp", To: late.at(service.ClusterIP, service.IPv4)})
	kit.Check(t, err == nil && a.Outcome == netlab.Answered, "a new Service: %s, %v", a.Outcome, err)
	page := string(p.Fetch(t, program.HealthAddr, "/healthz").Body)
	kit.Check(t, strings.Contains(page, "clients are refused") && !strings.Contains(page, "192.0.2.100"),
		"health says %s", page)
	page = string(p.Fetch(t, program.MetricsAddr, "/services").Body)
	kit.Check(t, strings.Contains(page, "192.0.2.100"), "status does not say who is refused")
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
