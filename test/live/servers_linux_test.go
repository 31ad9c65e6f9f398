// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/service"
	"kubeproxy/common/trafficview"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// checkedApps is the number of Services with a health check: more than fit into one
// chain.
const checkedApps = 20

// checkedApp is the manifest of the n-th of them.
const checkedApp = `apiVersion: v1
kind: Service
metadata: {name: checked-NUMBER, namespace: shop}
spec:
  type: LoadBalancer
  clusterIPs: [10.96.1.NUMBER, "fd00:10:96::1:NUMBER"]
  ipFamilies: [IPv4, IPv6]
  externalTrafficPolicy: Local
  healthCheckNodePort: PORT
  ports: [{name: http, port: 80, targetPort: 8080}, {name: https, port: 443, targetPort: 8443}]
---
`

// TestIPTablesHealthChecksAreLetIn checks that health checks are answered on a node whose
// firewall drops everything else, see kubernetes/kubernetes#97225. No other port of the
// node opens.
func TestIPTablesHealthChecksAreLetIn(t *testing.T)  { eachVariant(t, letsHealthChecksIn) }
func TestUserspaceHealthChecksAreLetIn(t *testing.T) { withUserspace(t, letsHealthChecksIn) }
func TestIPVSHealthChecksAreLetIn(t *testing.T)      { withIPVS(t, letsHealthChecksIn) }

func letsHealthChecksIn(t *testing.T, m mode) {
	m.flags = append(m.flags, "--nodeport-addresses="+nodePrefixes)
	m.trackOptions.NodePorts = prefixes(strings.Split(nodePrefixes, ",")...)
	c := newCluster(t, m)
	other, spare := uint16(30199), netip.MustParseAddr("192.0.2.77")
	if _, err := c.Node.Echo("", other); err != nil {
		t.Fatal(err)
	}
	kit.Must(t, c.Node.AddAddr(spare))
	c.dropInput(t)
	var all strings.Builder
	for n := range checkedApps {
		all.WriteString(strings.NewReplacer("NUMBER", fmt.Sprint(n+1), "PORT", fmt.Sprint(30100+n)).Replace(checkedApp))
	}
	c.write(t, "checked.yaml", []byte(all.String()))
	c.start(t)
	customer := c.Host("customer")
	for _, n := range []int{0, 7, checkedApps - 1} {
		for _, at := range []string{"192.0.2.10", "[2001:db8:2::10]"} {
			url := fmt.Sprintf("http://%s:%d/", at, 30100+n)
			want := fmt.Sprintf("checked-%d", n+1)
			kit.Until(t, url+" to be answered", func() bool { return healthCheckOwner(customer, url) == want })
		}
	}
	closed := []netip.AddrPort{
		netip.AddrPortFrom(netip.MustParseAddr("192.0.2.10"), other),
		netip.AddrPortFrom(spare, 30100), // where NodePorts do not answer
	}
	for _, at := range closed {
		got, err := customer.Ask(t.Context(), netlab.Query{Proto: "tcp", To: at, Timeout: netlab.SilenceTimeout})
		kit.Check(t, err == nil && got.Outcome == netlab.TimedOut,
			"%s: %s, %v; want the node's own policy to hold", at, got.Outcome, err)
	}
	c.write(t, "checked.yaml", nil)
	c.awaitProgrammed(t)
	if got := healthCheckOwner(customer, "http://192.0.2.10:30100/"); got != "" {
		t.Errorf("a health check of no Service is answered for %s", got)
	}
}

// nodePrefixes contain the addresses of the node that answer NodePorts.
const nodePrefixes = "192.0.2.10/32,2001:db8:2::10/128"

// dropInput makes the node drop packets from outside, as an administrator may do. Local
// traffic and IPv6 neighbour discovery go on.
func (c *cluster) dropInput(t *testing.T) {
	t.Helper()
	for _, args := range [][]string{
		{"iptables", "-w", "-A", "INPUT", "-i", "lo", "-j", "ACCEPT"},
		{"iptables", "-w", "-P", "INPUT", "DROP"},
		{"ip6tables", "-w", "-A", "INPUT", "-i", "lo", "-j", "ACCEPT"},
		{"ip6tables", "-w", "-A", "INPUT", "-p", "ipv6-icmp", "-j", "ACCEPT"},
		{"ip6tables", "-w", "-P", "INPUT", "DROP"},
	} {
		c.iptables(t, "", args[0], args[1:]...)
	}
}

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
			n := files(t, p)
			kit.Check(t, n <= most-64, "%d files are open of %d", n, most)
			slowest := quiet + quiet/10 + 5*time.Millisecond
			busy := c.changeTimes(t, "busy", changes)
			for try := 0; kit.Nightly() && busy > slowest && try < 3; try++ { // the machine may have much else to do
				busy = min(busy, c.changeTimes(t, "busy", changes))
			}
			kit.Check(t, !kit.Nightly() || busy <= slowest,
				"half of %d changes took more than %s, want at most %s", changes, busy, slowest)
			t.Logf("half of %d changes took less than %s alone, and than %s under %d hostile connections", changes, quiet, busy, total)
			s := p.Status(t, program.HealthAddr, "/healthz")
			kit.Check(t, s == http.StatusOK, "/healthz answers %d", s)
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
		awaitOutcome(t, "a Service at its new address", c.Host("shopper"), netlab.Query{Proto: "tcp", To: a.at(service.ClusterIP, service.IPv4), Timeout: netlab.SilenceTimeout}, netlab.Answered)
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

// TestStartsWithLittleMemory starts the proxy in a cgroup that may have little memory,
// with Services of ten endpoints each. KUBEPROXY_NIGHTLY=1 has 5,000 of them. Everything
// counts: what manifests hold, the kernel's rules and the iptables commands.
// In mode nftables it starts once more, and reads what it has made.
func TestStartsWithLittleMemory(t *testing.T) {
	t.Parallel()
	const megabyte = 1 << 20
	for _, tt := range []struct {
		way                           string
		few, limitOfFew, many, ofMany int
	}{
		{"nftables", 1000, 28, 5000, 80},
		{"iptables-nft", 1000, 48, 5000, 128},
		{"iptables-legacy", 1000, 48, 5000, 128},
	} {
		t.Run(tt.way, func(t *testing.T) {
			services, limit := tt.few, tt.limitOfFew
			if kit.Nightly() {
				services, limit = tt.many, tt.ofMany
			}
			m := switchableModes()[tt.way]
			c := newCluster(t, m)
			web := app{name: "web", number: 10}.on(c.webs()...)
			c.save(t, web)
			for first := 0; first < services; first += 100 {
				c.write(t, fmt.Sprintf("many-%d.yaml", first), manyServices(first, min(services, first+100)))
			}
			group := memoryGroup(t, limit*megabyte)
			start := func(what string) {
				p, took := group.startProxy(t, c, m)
				if p.Ended() {
					t.Fatalf("in %d MB, with %d Services, the proxy that %s has ended: %v", limit, services, what, p.Wait(t))
				}
				t.Logf("%d Services in %d MB, %s: programmed after %s, %.0f MB resident, the group had at most %s bytes", services, limit,
					what, took.Round(10*time.Millisecond), memory(t, p)/megabyte, group.most())
				c.check(t, c.awaitProgrammed(t), c.cells(c.clientHosts()[:1], web))
				p.Stop(t)
			}
			start("finds nothing")
			if tt.way == "nftables" {
				start("finds its own table")
			}
		})
	}
}

// startProxy starts the proxy in g and waits until all is programmed, or it has ended.
func (g group) startProxy(t *testing.T, c *cluster, m mode) (p *program.Proxy, took time.Duration) {
	t.Helper()
	cmd := c.command(append(m.flags, "--manifests="+c.dir)...)
	p = program.Start(t, c.Node, g.command(cmd))
	start := time.Now()
	kit.Until(t, "all that is to be in force, or the end", func() bool {
		return p.Ended() || p.Log.Has(`"Programmed"`, "IPv4")
	})
	return p, time.Since(start)
}

// manyServices are manifests of some of many Services with ten endpoints each.
func manyServices(from, to int) []byte {
	var b strings.Builder
	for i := from; i < to; i++ {
		fmt.Fprintf(&b, `apiVersion: v1
kind: Service
metadata: {name: many-%[1]d, namespace: shop}
spec:
  clusterIP: 10.97.%[2]d.%[3]d
  ports: [{name: http, port: 80}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: many-%[1]d, namespace: shop, labels: {kubernetes.io/service-name: many-%[1]d}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
`, i, i/250, i%250+1)
		for e := range 10 {
			n := i*10 + e
			fmt.Fprintf(&b, "- {addresses: [10.%d.%d.%d]}\n", 128+n/62500, n/250%250, n%250+1)
		}
		b.WriteString("---\n")
	}
	return []byte(b.String())
}

// group is a cgroup for memory.
type group struct{ dir, peak string }

// memoryGroup makes a cgroup with a limit in bytes, of whichever version there is.
func memoryGroup(t *testing.T, limit int) group {
	t.Helper()
	own := kit.ReadFile(t, "/proc/self/cgroup")
	for line := range strings.Lines(string(own)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		root, file, peak := "/sys/fs/cgroup", "memory.max", "memory.peak"
		switch {
		case parts[1] == "memory":
			root, file, peak = "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes"
		case parts[0] != "0":
			continue
		}
		dir := filepath.Join(root, parts[2], "kube-proxy-test-"+strconv.FormatInt(time.Now().UnixNano(), 36))
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		t.Cleanup(func() { removeGroup(t, dir) })
		if os.WriteFile(filepath.Join(dir, file), []byte(strconv.Itoa(limit)), 0o600) == nil {
			return group{dir, filepath.Join(dir, peak)}
		}
	}
	t.Skip("the machine lets nobody make a cgroup for memory")
	return group{}
}

// removeGroup waits until the last process of a cgroup is gone: one that is killed in a
// large transaction has to see it through first.
func removeGroup(t *testing.T, dir string) {
	t.Helper()
	kit.Until(t, "that the cgroup is empty", func() bool {
		err := os.Remove(dir)
		return err == nil || os.IsNotExist(err)
	})
}

// command returns cmd so that it runs in g.
func (g group) command(cmd *exec.Cmd) *exec.Cmd {
	const enter = `echo $$ > "$0" && exec "$@"`
	cmd.Args = append([]string{"sh", "-c", enter, filepath.Join(g.dir, "cgroup.procs"), cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
	return cmd
}

// most returns the most bytes that g ever had.
func (g group) most() string {
	text, err := os.ReadFile(g.peak)
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(text))
}

// TestTraffic checks that the proxy counts the connections that are made, in modes
// nftables and userspace and with each variant of iptables.
func TestTraffic(t *testing.T) {
	t.Run("nftables", func(t *testing.T) {
		t.Parallel()
		countTraffic(t, defaultMode())
	})
	t.Run("userspace", func(t *testing.T) { withUserspace(t, countTraffic) })
}

func TestIPTablesTraffic(t *testing.T) { eachVariant(t, countTraffic) }
func TestIPVSTraffic(t *testing.T)     { withIPVS(t, countTraffic) }

// TestTrafficUncounted checks that kube-proxy top says how to have traffic counted.
func TestTrafficUncounted(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	c.start(t)
	if code, out := c.top(t); code != 2 || !strings.Contains(out, "start it with --count-traffic") {
		t.Errorf("exit %d, want 2 and what to do:\n%s", code, out)
	}
}

// top runs kube-proxy top on the node.
func (c *cluster) top(t *testing.T, args ...string) (code int, out string) {
	t.Helper()
	return c.ask(t, append([]string{"top", "--interval=0"}, args...)...)
}

// counts are connections by protocol and endpoint, such as "tcp 10.244.1.11:8080". The
// endpoints of a protocol that are gone have no address.
type counts map[string]uint64

func (n counts) sum() (all uint64) {
	for _, x := range n {
		all += x
	}
	return all
}

// carried returns what Service shop/web has carried.
func (c *cluster) carried(t *testing.T) (*trafficview.Answer, counts) {
	t.Helper()
	var a trafficview.Answer
	code, out := c.top(t, "-o=json", "shop/web")
	err := json.Unmarshal([]byte(out), &a)
	kit.Need(t, err == nil && code == 0, "exit %d, %v:\n%s", code, err, out)
	n := counts{}
	for _, s := range a.Services {
		for _, e := range s.Endpoints {
			n[strings.TrimSpace(e.Protocol+" "+e.Address)] += e.Connections
		}
	}
	return &a, n
}

// connect has hosts connect some times to addresses of a, in both families, and adds the
// connections to made.
func (c *cluster) connect(t *testing.T, made counts, a app, proto string, kinds ...service.Kind) {
	t.Helper()
	for _, h := range []*netlab.Host{c.Host("shopper"), c.Host("customer"), c.Node} {
		for _, k := range kinds {
			if h == c.Host("customer") && k == service.ClusterIP {
				continue // it has no route there
			}
			counted := made
			if c.accelerated && k == service.ClusterIP && proto == "tcp" {
				counted = counts{} // the rules see none of these
			}
			for _, f := range service.Families {
				connectOften(t, counted, h, netlab.Query{Proto: proto, To: a.at(k, f)})
			}
		}
	}
}

func connectOften(t *testing.T, made counts, h *netlab.Host, q netlab.Query) {
	t.Helper()
	for range 5 {
		answer, err := h.Ask(t.Context(), q)
		kit.Need(t, err == nil && answer.Outcome == netlab.Answered,
			"%s over %s from %s: %v, %v", q.To, q.Proto, h.Name, answer.Outcome, err)
		made[q.Proto+" "+answer.At.String()]++
	}
}

// awaitCounts waits until shop/web has carried what was made.
func (c *cluster) awaitCounts(t *testing.T, made counts) *trafficview.Answer {
	t.Helper()
	var a *trafficview.Answer
	var got counts
	if !kit.Soon(func() bool { a, got = c.carried(t); return maps.Equal(made, got) }) {
		t.Fatalf("connections (-made +counted):\n%s", cmp.Diff(made, got))
	}
	return a
}

func countTraffic(t *testing.T, m mode) {
	m.flags = append(slices.Clip(m.flags), "--count-traffic")
	c := newCluster(t, m)
	web, idle := app{name: "web", number: 10, plain: true}.on(c.webs()...), app{name: "idle", number: 11, plain: true}.on(c.webs()...)
	c.save(t, web, idle)
	p := c.launch(t)
	p.AwaitLogs(t, `"Programmed"`, "FAMILY")
	made := counts{}
	c.awaitCounts(t, made)
	c.connect(t, made, web, "tcp", service.ClusterIP, service.NodePort, service.LoadBalancerIP)
	c.connect(t, made, web, "udp", service.ClusterIP)
	a := c.awaitCounts(t, made)
	if in, out := a.Total.BytesIn, a.Total.BytesOut; (in > 0 && out > 0) != a.Counted.Bytes {
		t.Errorf("%d bytes in, %d out, but bytes are counted: %v", in, out, a.Counted.Bytes)
	}
	line := fmt.Sprintf(`kubeproxy_service_connections_total{namespace="shop",service="web"} %d`, made.sum())
	if page := p.Fetch(t, program.MetricsAddr, "/metrics"); page.Status != http.StatusOK || !strings.Contains(string(page.Body), line+"\n") {
		t.Errorf("the metrics lack %s", line)
	}
	c.endpointGoes(t, web, made)
	p.Stop(t)
	p = c.launch(t)
	for _, f := range service.Families {
		p.AwaitLog(t, `"Programmed"`, f.String())
		kit.Check(t, c.mode.proxyMode() != "nftables" || p.Log.Has(`"Programmed"`, f.String(), "changed=false"),
			"a restart changed the table of %s, which holds what is to be", f)
	}
	c.awaitCounts(t, counts{}) // those of the earlier process
}

// endpointGoes takes web-1 away. Its connections stay in the sums.
func (c *cluster) endpointGoes(t *testing.T, web app, made counts) {
	t.Helper()
	c.save(t, web.on(c.webs()[1:]...))
	for k, n := range made {
		if strings.HasSuffix(k, " 10.244.1.11:8080") || strings.HasSuffix(k, " [fd00:10:244:1::11]:8080") {
			delete(made, k)
			proto, _, _ := strings.Cut(k, " ")
			made[proto] += n
		}
	}
	c.awaitCounts(t, made)
	c.connect(t, made, web, "tcp", service.ClusterIP)
	c.awaitCounts(t, made)
	code, out := c.top(t)
	if want := fmt.Sprintf("shop/web  %11d\n", made.sum()); code != 0 || !strings.Contains(out, want) && !strings.Contains(out, fmt.Sprintf("shop/web  %11d  ", made.sum())) {
		t.Errorf("exit %d, want %q in\n%s", code, want, out)
	}
	kit.Check(t, !strings.Contains(out, "shop/idle"), "a Service without traffic is listed:\n%s", out)
}

// accelerated reports whether every proxy of these tests runs with --socket-acceleration, and
// the node and its pods are in cgroups, so that it takes their connections.
func accelerated() bool { return os.Getenv("KUBEPROXY_SOCKET_ACCELERATION") != "" }

// withoutBPF says that the proxies of c may not load programs, so that the rules serve all,
// even if socket acceleration is on.
func (c *cluster) withoutBPF(t *testing.T) {
	t.Helper()
	c.accelerated = false
	c.setMode(t, c.mode)
}

// TestSocketAcceleration runs the proxy with --socket-acceleration: TCP connections of the
// node to ClusterIPs are made to endpoints, over both families, and no connection is tracked
// by a ClusterIP. A stop leaves that in force, a proxy without the flag and --cleanup
// remove it.
func TestSocketAcceleration(t *testing.T) {
	t.Parallel()
	m := defaultMode()
	m.plain = true
	m.flags = append(slices.Clip(m.flags), "--socket-acceleration")
	c := newCluster(t, m)
	inside := c.withPins(t)
	web := app{name: "web", number: 10}.on(c.webs()...)
	c.save(t, web)
	args := append([]string{"--manifests=" + c.dir}, m.flags...)
	start := func(args []string) *program.Proxy {
		p := program.Start(t, c.Node, inside(c.command(args...)))
		p.AwaitLogs(t, `"Programmed"`, "nftables FAMILY")
		return p
	}
	p := start(args)
	c.awaitProgrammed(t)
	c.checkAccelerated(t, p, web)
	p.Stop(t)
	c.connectSome(t, web)
	c.checkTracked(t, web, false)
	c.expectAcceleratedDiff(t, inside, args, 0, "Nothing differs.")
	c.save(t, web.on(c.webs()[1:]...))
	c.expectAcceleratedDiff(t, inside, args, 1, "+ take connections to 10.96.0.10:80, shop/web:lines: ")
	c.expectAcceleratedDiff(t, inside, append(args, "-o=diff"), 1, "\n-#   10.244.1.11:8080\n")
	p = start(args)
	c.awaitProgrammed(t)
	for _, f := range service.Families {
		for range 20 {
			if a, err := c.Node.Ask(t.Context(), netlab.Query{Proto: "tcp", Unbound: true, To: web.at(service.ClusterIP, f)}); err != nil || a.At.Addr() == c.Host("web-1").Addr(a.At.Addr()) {
				t.Fatalf("after web-1 has gone: %v, %v", a, err)
			}
		}
	}
	p.Stop(t)
	p = start(args[:len(args)-1])
	c.connectSome(t, web)
	c.checkTracked(t, web, true)
	p.Stop(t)
	start(args).Stop(t)
	out, err := program.Run(t, c.Node, inside(c.command("--cleanup", "--v=0")))
	for _, f := range service.Families {
		want := `place="socket acceleration of ` + f.String() + `" removed=`
		kit.Check(t, err == nil && strings.Contains(out, want), "%v: no %s in\n%s", err, want, out)
	}
}

// withPins returns a function that changes a command. It then runs where a BPF file system is
// mounted, for this test alone.
func (c *cluster) withPins(t *testing.T) func(*exec.Cmd) *exec.Cmd {
	t.Helper()
	holder := exec.Command("unshare", "--mount", "sh", "-c", "mount -t bpf bpf /sys/fs/bpf && echo mounted && exec cat")
	in, err := holder.StdinPipe()
	kit.Must(t, err)
	out, err := holder.StdoutPipe()
	kit.Must(t, err)
	kit.Must(t, holder.Start())
	t.Cleanup(func() {
		in.Close()
		_ = holder.Wait()
	})
	if n, err := out.Read(make([]byte, 100)); err != nil || n == 0 {
		t.Skipf("no BPF file system can be mounted: %v", err)
	}
	return func(cmd *exec.Cmd) *exec.Cmd {
		args := append([]string{fmt.Sprintf("--mount=/proc/%d/ns/mnt", holder.Process.Pid)}, cmd.Args...)
		inside := exec.Command("nsenter", args...)
		inside.Env = cmd.Env
		return inside
	}
}

// expectAcceleratedDiff compares the node with its manifests.
func (c *cluster) expectAcceleratedDiff(t *testing.T, inside func(*exec.Cmd) *exec.Cmd, args []string, code int, want string) {
	t.Helper()
	cmd := c.command(args...)
	cmd.Args = slices.Insert(cmd.Args, 1, "diff")
	cmd = inside(cmd)
	out, err := program.Run(t, c.Node, cmd)
	kit.Need(t, err == nil || cmd.ProcessState != nil, "%v", err)
	got := cmd.ProcessState.ExitCode()
	kit.Check(t, got == code && strings.Contains(out, want), "exit %d, want %d with %q:\n%s", got, code, want, out)
}

// connectSome makes ten connections from the node in each family.
func (c *cluster) connectSome(t *testing.T, a app) {
	t.Helper()
	for _, f := range service.Families {
		for range 10 {
			q := netlab.Query{Proto: "tcp", Unbound: true, To: a.at(service.ClusterIP, f)}
			answer, err := c.Node.Ask(t.Context(), q)
			kit.Need(t, err == nil && answer.Outcome == netlab.Answered, "%s: %v, %v", q.To, answer.Outcome, err)
		}
	}
}

// checkAccelerated makes connections, and looks for them in the metrics.
func (c *cluster) checkAccelerated(t *testing.T, p *program.Proxy, a app) {
	t.Helper()
	c.connectSome(t, a)
	c.checkTracked(t, a, false)
	page := string(p.Fetch(t, program.MetricsAddr, "/metrics").Body)
	for _, f := range service.Families {
		want := fmt.Sprintf("kubeproxy_socket_acceleration_connections_total{ip_family=%q} 10\n", f)
		kit.Check(t, strings.Contains(page, want), "the metrics lack %s", want)
	}
}

// checkTracked looks for connections that the rules translated.
func (c *cluster) checkTracked(t *testing.T, a app, want bool) {
	t.Helper()
	for _, f := range service.Families {
		dst := a.at(service.ClusterIP, f).Addr()
		cmd := exec.Command("conntrack", "-L", "-f", strings.ToLower(f.String()), "-p", "tcp", "--orig-dst", dst.String())
		out, err := program.Run(t, c.Node, cmd)
		kit.Must(t, err)
		got := strings.Contains(out, "dst=")
		kit.Check(t, got == want, "connections to %s are tracked: %v, want %v\n%s", dst, got, want, out)
	}
}
