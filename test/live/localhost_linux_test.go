// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// TestLocalhostNodePorts checks that NodePorts answer on 127.0.0.1 and ::1 in every mode
// if nodePortAddresses contains localhost.
func TestLocalhostNodePorts(t *testing.T) {
	t.Parallel()
	all := switchableModes()
	delete(all, "ipvs") // see below
	for _, name := range []string{"iptables-legacy", "iptables-nft"} {
		m := all[name]
		m.flags, m.localhost = append(m.flags, "--iptables-localhost-nodeports=true"), true
		all[name] = m
		m.flags, m.userspace = slices.Concat(m.flags, []string{"--proxy-mode=userspace"}), true
		all["userspace-"+name] = m
	}
	for name, m := range all {
		t.Run(name, func(t *testing.T) { localhostNodePorts(t, m) })
	}
}

func TestIPVSLocalhostNodePorts(t *testing.T) { withIPVS(t, localhostNodePorts) }

func localhostNodePorts(t *testing.T, m mode) {
	m.flags = slices.Concat(m.flags, []string{"--nodeport-addresses=primary,localhost"})
	c := newCluster(t, m)
	web := app{name: "web", number: 10, plain: true}.on(c.webs()...)
	local := app{name: "local", number: 11, plain: true, external: "Local"}.on(c.Host("web-3"))
	sticky := app{name: "sticky", number: 12, plain: true, sticky: 600}.on(c.webs()...)
	c.save(t, web, local, sticky)
	p := c.launch(t)
	c.awaitLoopback(t, web, netlab.Answered)
	c.awaitLoopback(t, local, netlab.Answered) // the node reaches every endpoint
	c.awaitLoopback(t, sticky, netlab.Answered)
	for _, f := range service.Families {
		q := netlab.Query{Proto: "tcp", To: netip.AddrPortFrom(service.Localhost(f), sticky.nodePort())}
		first, err := c.Node.Ask(t.Context(), q)
		for range 5 {
			next, err2 := c.Node.Ask(t.Context(), q)
			kit.Check(t, err == nil && err2 == nil && next.Backend == first.Backend,
				"%s: %s and then %s, %v, %v", q.To, first.Backend, next.Backend, err, err2)
		}
	}
	a, err := c.Host("customer").Ask(t.Context(), netlab.Query{Proto: "tcp", To: web.at(service.NodePort, service.IPv4)})
	kit.Check(t, err == nil && a.Outcome == netlab.Answered, "on the node's address: %s, %v", a.Outcome, err)
	c.save(t, app{name: "web", number: 10, plain: true})
	c.awaitLoopback(t, web, netlab.Refused)
	c.save(t, web)
	c.awaitLoopback(t, web, netlab.Answered)
	c.checkPortInUse(t, p)
	if m.proxyMode() == "nftables" {
		c.checkUnrelayed(t, p)
	}
	if m.proxyMode() != "iptables" { // which sets it itself, with a guard rule
		c.run(t, "sysctl", "-qw", "net.ipv4.conf.all.route_localnet=1")
	}
	c.checkLocalhostClosed(t, web)
	p.Stop(t)
}

// awaitLoopback waits until connections to NodePorts of a on both loopback addresses have
// the outcome want.
func (c *cluster) awaitLoopback(t *testing.T, a app, want netlab.Outcome) {
	t.Helper()
	for _, f := range service.Families {
		for _, proto := range []string{"tcp", "udp"} {
			q := netlab.Query{Proto: proto, To: netip.AddrPortFrom(service.Localhost(f), a.nodePort())}
			awaitOutcome(t, proto+" at "+q.To.String()+" to be "+want.String(), c.Node, q, want)
		}
	}
}

// checkPortInUse starts a program on a NodePort of ::1, where every mode has a listener.
// The program keeps the port, status reports it, and when it ends, the NodePort answers.
func (c *cluster) checkPortInUse(t *testing.T, p *program.Proxy) {
	t.Helper()
	late := app{name: "late", number: 13, plain: true}.on(c.webs()...)
	var l net.Listener
	at := netip.AddrPortFrom(netip.IPv6Loopback(), late.nodePort())
	kit.Must(t, c.Node.Do(func() (err error) {
		l, err = net.Listen("tcp", at.String())
		return err
	}))
	c.save(t, late)
	p.AwaitLog(t, "shop/late", "address already in use by another program of the node")
	_ = l.Close()
	c.awaitLoopback(t, late, netlab.Answered)
}

// checkUnrelayed sends SCTP packets to a NodePort of the loopback addresses. They are
// refused and counted.
func (c *cluster) checkUnrelayed(t *testing.T, p *program.Proxy) {
	t.Helper()
	const counter = "kubeproxy_nftables_localhost_nodeport_rejected_packets_total"
	late := app{name: "late", number: 14}
	s := late.service()
	s.Spec.Ports = []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolSCTP, NodePort: int32(late.nodePort())}}
	c.write(t, "late.yaml", program.Manifest[any](t, s))
	for _, f := range service.Families {
		labels := []string{"ip_family", f.String(), "protocol", "SCTP"}
		if n, found := p.Metric(t, counter, labels...); n != 0 || !found {
			t.Errorf("%s: %v packets counted at first, found %t, want 0", f, n, found)
		}
		to, sent := netip.AddrPortFrom(service.Localhost(f), late.nodePort()), 0
		kit.Until(t, "SCTP at "+to.String()+" to be refused", func() bool {
			refused := false
			err := c.Node.Do(func() (err error) {
				refused, err = netlab.RefusesSCTP(to)
				return err
			})
			if refused {
				sent++
			}
			return err == nil && sent == 3
		})
		kit.Until(t, "3 packets of "+f.String()+" to be counted", func() bool {
			n, _ := p.Metric(t, counter, labels...)
			return n == 3
		})
	}
}

// routesLocalnet returns whether the node's kernel routes loopback addresses, see
// route_localnet in https://docs.kernel.org/networking/ip-sysctl.html
func (c *cluster) routesLocalnet(t *testing.T) bool {
	t.Helper()
	var text []byte
	kit.Must(t, c.Node.Do(func() (err error) {
		text, err = os.ReadFile("/proc/sys/net/ipv4/conf/all/route_localnet")
		return err
	}))
	return strings.TrimSpace(string(text)) == "1"
}

// awaitLocalhost waits until connections to NodePorts of a on 127.0.0.1 have the outcome
// want, and the sysctl and its guard rule match that.
func (c *cluster) awaitLocalhost(t *testing.T, a app, want netlab.Outcome) {
	t.Helper()
	c.askLocalhost(t, a, want)
	open := want == netlab.Answered
	kit.Until(t, "the kernel and the guard to fit", func() bool {
		return c.routesLocalnet(t) == open && strings.Contains(c.listing(t), "! -s 127.0.0.0/8 -d 127.0.0.0/8") == open
	})
}

// askLocalhost waits until a NodePort of a at 127.0.0.1 is as wanted.
func (c *cluster) askLocalhost(t *testing.T, a app, want netlab.Outcome) {
	t.Helper()
	for _, proto := range []string{"tcp", "udp"} {
		q := netlab.Query{Proto: proto, To: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), a.nodePort())}
		awaitOutcome(t, proto+" on 127.0.0.1 to be "+want.String(), c.Node, q, want)
	}
}

// checkLocalhostClosed sends packets from outside to a NodePort of a at 127.0.0.1 of the
// node, and requires that none is answered.
func (c *cluster) checkLocalhostClosed(t *testing.T, a app) {
	t.Helper()
	outside := c.Host("customer")
	out, err := program.Run(t, outside, exec.Command("sh", "-ec", `
		sysctl -qw net.ipv4.conf.all.route_localnet=1
		ip route del table local local 127.0.0.0/8 dev lo
		ip route del table local local 127.0.0.1 dev lo
		ip route add 127.0.0.1 via 192.0.2.10`))
	kit.Need(t, err == nil, "routes of the customer: %v\n%s", err, out)
	for _, proto := range []string{"tcp", "udp"} {
		q := netlab.Query{Proto: proto, To: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), a.nodePort())}
		q.Timeout = time.Second
		if got, err := outside.Ask(t.Context(), q); err != nil || got.Outcome == netlab.Answered {
			t.Errorf("%s from outside to a NodePort of 127.0.0.1: %s by %s, %v; want no answer", proto, got.Outcome, got.Backend, err)
		}
	}
}

// TestIPTablesLocalhostByReload closes loopback addresses and opens them again by a
// changed file, with a running process and with restarts. All other traffic goes on.
func TestIPTablesLocalhostByReload(t *testing.T) {
	eachVariant(t, func(t *testing.T, m mode) {
		c := newCluster(t, m)
		const open, away, off = "mode: iptables\n", "mode: iptables\nnodePortAddresses: [192.0.2.0/24]\n", "mode: iptables\niptables: {localhostNodePorts: false}\n"
		v, path := newVolume(t, open)
		m.flags, m.localhost = append(defaultMode().flags, "--config="+path), true
		c.setMode(t, m)
		web := app{name: "web", number: 10}.on(c.webs()...)
		p := c.start(t, web)
		c.awaitLocalhost(t, web, netlab.Answered)
		lines, loads := c.converse(t, "tcp", web, 1), c.loads(t, web)
		v.mount(t, "..away", away)
		c.awaitLocalhost(t, web, netlab.Refused)
		v.mount(t, "..open", open)
		c.awaitLocalhost(t, web, netlab.Answered)
		v.mount(t, "..off", off)
		if err := p.Wait(t); err != nil || !p.Log.Has("only a new process can apply", "iptables.localhostNodePorts") {
			t.Errorf("ended with %v", err)
		}
		p = c.launch(t)
		c.awaitLocalhost(t, web, netlab.Refused)
		v.mount(t, "..on", open)
		err := p.Wait(t)
		kit.Check(t, err == nil, "ended with %v", err)
		c.launch(t)
		c.awaitLocalhost(t, web, netlab.Answered)
		lines.checkSameServer(t)
		lossless(t, loads)
		c.awaitProgrammed(t)
	})
}

// startReadOnly starts a proxy that may not write sysctls.
func (c *cluster) startReadOnly(t *testing.T, more ...string) *program.Proxy {
	t.Helper()
	flags := slices.Concat([]string{kubeProxy.Path, "--manifests=" + c.dir, "--proxy-mode=iptables", "--iptables-sync-period=1s"}, defaultMode().flags, more)
	const closed = "mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && exec \"$@\""
	args := kubeProxy.Command().Args
	args = append([]string{"--mount", "sh", "-c", closed, "sh"}, append(flags, args[1:]...)...)
	return program.Start(t, c.Node, program.With(exec.Command("unshare", args...), c.commands))
}

// TestIPTablesLocalhostListens checks that such a process listens on 127.0.0.1 itself, if
// nodePortAddresses has it.
func TestIPTablesLocalhostListens(t *testing.T) {
	eachVariant(t, func(t *testing.T, m mode) {
		c := newCluster(t, m)
		web := app{name: "web", number: 10}.on(c.webs()...)
		c.save(t, web)
		p := c.startReadOnly(t, "--nodeport-addresses=primary,localhost")
		p.AwaitLog(t, `"Programmed"`, "iptables IPv4")
		c.askLocalhost(t, web, netlab.Answered)
		if page := p.Fetch(t, program.HealthAddr, "/healthz"); strings.Contains(string(page.Body), "lacking") {
			t.Errorf("a condition although listeners answer:\n%s", page.Body)
		}
	})
}

// TestIPTablesLocalhostWithoutSetting checks a process that may not write sysctls.
// NodePorts answer on all addresses except 127.0.0.1, and there as soon as another
// process has written the sysctl.
func TestIPTablesLocalhostWithoutSetting(t *testing.T) {
	eachVariant(t, func(t *testing.T, m mode) {
		c := newCluster(t, m)
		web := app{name: "web", number: 10}.on(c.webs()...)
		c.save(t, web)
		p := c.startReadOnly(t)
		p.AwaitLog(t, `"Programmed"`, "iptables IPv4")
		p.AwaitLog(t, "Warning: NodePorts do not answer on 127.0.0.1", "read-only file system")
		kit.Until(t, "health of both families, and the condition", func() bool {
			page := p.Fetch(t, program.HealthAddr, "/healthz")
			return page.Status == http.StatusOK && strings.Contains(string(page.Body), "lacking-IPv4")
		})
		c.awaitLocalhost(t, web, netlab.Refused)
		c.check(t, c.want(t), c.cells(c.clientHosts()[:1], web))
		c.run(t, "sysctl", "-qw", "net.ipv4.conf.all.route_localnet=1")
		c.awaitLocalhost(t, web, netlab.Answered)
		kit.Until(t, "the condition to go", func() bool {
			return !strings.Contains(string(p.Fetch(t, program.HealthAddr, "/healthz").Body), "lacking")
		})
	})
}

// TestNodeLocalDNS checks that a cache on the node that has the ClusterIP of the DNS server
// on an interface of its own, and exempts it from connection tracking as NodeLocal DNSCache
// does (https://github.com/kubernetes/dns, cmd/node-cache/app/cache_app.go), answers in
// place of the endpoints, for pods and for the node.
func TestNodeLocalDNS(t *testing.T) {
	t.Run("nftables", func(t *testing.T) { t.Parallel(); checkNodeLocalDNS(t, defaultMode()) })
	t.Run("iptables", func(t *testing.T) { eachVariant(t, checkNodeLocalDNS) })
}

func checkNodeLocalDNS(t *testing.T, m mode) {
	c := newCluster(t, m)
	dns := app{name: "dns", number: 10, plain: true}.on(c.Host("web-1"))
	c.start(t, dns)
	at := netip.AddrPortFrom(dns.address(service.ClusterIP, service.IPv4), 80)
	askers := []*netlab.Host{c.Host("shopper"), c.Node}
	for _, h := range askers {
		kit.Until(t, h.Name+" to be answered by the endpoint", func() bool {
			got, err := h.Ask(t.Context(), netlab.Query{Proto: "udp", To: at})
			return err == nil && got.Backend == "web-1"
		})
	}
	c.run(t, "ip", "link", "add", "nodelocaldns", "type", "bridge")
	c.run(t, "ip", "addr", "add", at.Addr().String()+"/32", "dev", "nodelocaldns")
	nft(t, c.Node, `table ip nodelocaldns {
  chain prerouting { type filter hook prerouting priority raw; ip daddr `+at.Addr().String()+` udp dport 80 notrack; }
  chain output { type filter hook output priority raw; ip daddr `+at.Addr().String()+` udp dport 80 notrack; ip saddr `+at.Addr().String()+` udp sport 80 notrack; }
}
`)
	cache, err := c.Node.ListenPacket(t.Context(), "udp", at.String())
	kit.Must(t, err)
	t.Cleanup(func() { _ = cache.Close() })
	go func() {
		question := make([]byte, 512)
		for {
			_, from, err := cache.ReadFrom(question)
			if err != nil {
				return
			}
			_, _ = cache.WriteTo([]byte("cache"), from)
		}
	}()
	for _, h := range askers {
		kit.Until(t, h.Name+" to be answered by the cache", func() bool { return asksDatagram(t, h, at) == "cache" })
	}
}

// asksDatagram returns what answers a datagram.
func asksDatagram(t *testing.T, h *netlab.Host, at netip.AddrPort) string {
	conn, err := h.Dial(t.Context(), "udp", at.String())
	kit.Must(t, err)
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	_, err = conn.Write([]byte("question"))
	answer := make([]byte, 512)
	if n, readErr := conn.Read(answer); err == nil && readErr == nil {
		return string(answer[:n])
	}
	return ""
}

// conflictingService has ports of node-a's address that a program, a NodePort and a
// health check use, an unused one, and another port of a ClusterIP.
const conflictingService = `apiVersion: v1
kind: Service
metadata: {name: thief, namespace: evil}
spec:
  clusterIP: 10.96.0.66
  externalIPs: [192.0.2.10, 10.96.0.10]
  ports:
  - {name: a, port: 22, targetPort: 8080}
  - {name: b, port: 30010, targetPort: 8080}
  - {name: c, port: 30090, targetPort: 8080}
  - {name: d, port: 8443, targetPort: 8080}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: thief-1, namespace: evil, labels: {kubernetes.io/service-name: thief}}
addressType: IPv4
ports: [{name: a, port: 8080}, {name: b, port: 8080}, {name: c, port: 8080}, {name: d, port: 8080}]
endpoints: [{addresses: [WEB-2], nodeName: node-a}]
---
apiVersion: v1
kind: Service
metadata: {name: victim, namespace: shop}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.67
  externalTrafficPolicy: Local
  healthCheckNodePort: 30090
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: victim-1, namespace: shop, labels: {kubernetes.io/service-name: victim}}
addressType: IPv4
ports: [{name: "", port: 8080}]
endpoints: [{addresses: [WEB-1], nodeName: node-a}]
`

// TestExternalIPOfTheNode checks that an external IP that belongs to the node or to
// another Service takes no port from either, and is served on unused ports.
func TestExternalIPOfTheNode(t *testing.T) {
	t.Run("nftables", func(t *testing.T) { checkConflictingService(t, defaultMode()) })
	t.Run("iptables", func(t *testing.T) { eachVariant(t, checkConflictingService) })
}

func checkConflictingService(t *testing.T, m mode) {
	c := newCluster(t, m)
	if _, err := c.Node.Echo("", 22); err != nil {
		t.Fatal(err)
	}
	p := c.start(t, app{name: "web", number: 10, plain: true}.on(c.Host("web-1")))
	like := netip.MustParseAddr("10.0.0.1")
	text := strings.NewReplacer("WEB-1", c.Host("web-1").Addr(like).String(), "WEB-2", c.Host("web-2").Addr(like).String()).Replace(conflictingService)
	c.write(t, "thief.yaml", []byte(text))
	asked := func(from *netlab.Host, at string) netlab.Answer {
		got, err := from.Ask(t.Context(), netlab.Query{Proto: "tcp", To: netip.MustParseAddrPort(at)})
		kit.Need(t, err == nil, "%s: %v", at, err)
		return got
	}
	customer := c.Host("customer")
	kit.Until(t, "a port that nobody has to lead to the Service", func() bool { return asked(customer, "192.0.2.10:8443").Backend == c.Host("web-2").Name })
	for at, want := range map[string]*netlab.Host{"192.0.2.10:22": c.Node, "192.0.2.10:30010": c.Host("web-1")} {
		for range 5 {
			if got := asked(customer, at); got.Outcome != netlab.Answered || got.Backend != want.Name {
				t.Errorf("%s: %s by %q, want %s", at, got.Outcome, got.Backend, want.Name)
			}
		}
	}
	if got := asked(c.Host("shopper"), "10.96.0.10:22"); got.Outcome != netlab.Refused {
		t.Errorf("another port of a ClusterIP: %s by %q, want it refused", got.Outcome, got.Backend)
	}
	kit.Until(t, "the health check to be answered for its Service", func() bool { return healthCheckOwner(customer, "http://192.0.2.10:30090/") == "victim" })
	p.AwaitLog(t, "192.0.2.10:22/tcp is refused", "a program of the node listens")
	p.AwaitLog(t, "192.0.2.10:30010/tcp is refused", "NodePort or healthCheckNodePort of service shop/web")
	p.AwaitLog(t, "10.96.0.10:22/tcp is refused", "the ClusterIP of service shop/web")
}

// healthCheckOwner returns the Service in the response of a health check, empty without a
// response.
func healthCheckOwner(from *netlab.Host, url string) string {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return from.Dial(ctx, network, addr)
		},
	}}
	resp, err := client.Get(url)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	var answer struct{ Service struct{ Name string } }
	if json.NewDecoder(resp.Body).Decode(&answer) != nil {
		return ""
	}
	return answer.Service.Name
}

// TestUnallocatedAddresses checks that packets to an unused address in a ClusterIP range
// are dropped while the ranges are known, and only then. Ports of Services are still
// served or refused.
func TestUnallocatedAddresses(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	web := app{name: "web", number: 10}.on(c.Host("web-1"))
	c.start(t, web)
	cells := c.cells(c.clientHosts()[:3], web)
	for _, x := range c.cells(c.clientHosts()[:3], web) {
		if x.ToNode || x.Name != "ClusterIP of web" {
			continue
		}
		other, nobody := x, x
		other.Name, other.To = "no port of web", netip.AddrPortFrom(x.To.Addr(), 81)
		nobody.Name, nobody.To = "nobody", netip.AddrPortFrom(x.To.Addr().Next(), 80)
		cells = append(cells, other, nobody)
	}
	c.write(t, "ranges.yaml", []byte(`apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: kubernetes}
spec: {cidrs: [10.96.0.0/12, "fd00:10:96::/112"]}
`))
	c.check(t, c.awaitProgrammed(t), cells)
}

// TestUnallocatedStayOnNode checks that packets to an unallocated ClusterIP do not leave
// the node though node-local DNS has bound another ClusterIP, and though an author of
// EndpointSlices lists addresses of the range. Only the listed ones may leave.
func TestUnallocatedStayOnNode(t *testing.T) { t.Parallel(); checkUnallocated(t, defaultMode()) }

// TestIPVSUnallocatedStayOnNode does the same in mode ipvs.
func TestIPVSUnallocatedStayOnNode(t *testing.T) { withIPVS(t, checkUnallocated) }

func checkUnallocated(t *testing.T, m mode) {
	c := newCluster(t, m)
	dns := app{name: "dns", number: 10, plain: true}.on(c.Host("web-1"))
	c.run(t, "ip", "link", "add", "nodelocaldns", "type", "bridge")
	var unused, listed [2]netip.Addr
	for _, f := range service.Families {
		a := dns.address(service.ClusterIP, f)
		c.run(t, "ip", "addr", "add", netip.PrefixFrom(a, a.BitLen()).String(), "dev", "nodelocaldns")
		unused[f] = a.Next()
		listed[f] = unused[f].Next()
	}
	const left, dropped = netlab.Unreachable, netlab.TimedOut // the gateway says so, at the second packet if need be
	await := func(all [2]netip.Addr, want netlab.Outcome) {
		t.Helper()
		var asked sync.WaitGroup
		for _, h := range []*netlab.Host{c.Node, c.Host("shopper")} {
			for _, a := range all {
				asked.Go(func() {
					q := netlab.Query{Proto: "tcp", To: netip.AddrPortFrom(a, target), Timeout: 4 * time.Second}
					if !kit.Soon(func() bool { got, err := h.Ask(t.Context(), q); return err == nil && got.Outcome == want }) {
						t.Errorf("what %s sends to %s is not %s", h.Name, a, want)
					}
				})
			}
		}
		asked.Wait()
	}
	p := c.start(t, dns)
	await(unused, left)
	c.write(t, "ranges.yaml", []byte(`apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: kubernetes}
spec: {cidrs: [10.96.0.0/12, "fd00:10:96::/112"]}
`))
	await(unused, dropped)
	await(listed, dropped)
	for f, a := range listed {
		c.write(t, fmt.Sprintf("tenant-%d.yaml", f), fmt.Appendf(nil, `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: tenant, name: mine-%d, labels: {kubernetes.io/service-name: mine}}
addressType: IPv%d
endpoints: [{addresses: ["%s"]}]
`, f, 4+2*f, a))
	}
	await(listed, left)
	await(unused, dropped)
	p.AwaitLog(t, `of service tenant/mine`, "packets to them are not dropped")
	kit.Until(t, "the status to name the range", func() bool {
		_, out := c.ask(t, "status")
		return strings.Contains(out, "service-cidrs") && strings.Contains(out, "tenant/mine")
	})
}

// awaitOutcome asks until the outcome is as wanted.
func awaitOutcome(t *testing.T, what string, from *netlab.Host, q netlab.Query, want netlab.Outcome) {
	t.Helper()
	kit.Until(t, what, func() bool {
		got, err := from.Ask(t.Context(), q)
		return err == nil && got.Outcome == want
	})
}

func (c *cluster) run(t *testing.T, name string, args ...string) {
	t.Helper()
	out, err := program.Run(t, c.Node, exec.Command(name, args...))
	kit.Need(t, err == nil, "%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
}

// TestRefusedAtOnce checks that a Service without endpoints, and a port without a
// Service, refuse at once.
func TestRefusedAtOnce(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	empty := app{name: "empty", number: 10}
	web := app{name: "web", number: 11}.on(c.Host("web-1"))
	c.start(t, empty, web)

	cells := c.cells(c.clientHosts(), empty)
	for _, x := range c.cells(c.clientHosts(), web) {
		if x.ToNode || x.Name != "ClusterIP of web" {
			continue
		}
		x.Name, x.To = "no port of web", netip.AddrPortFrom(x.To.Addr(), 81)
		cells = append(cells, x)
	}
	c.check(t, c.awaitProgrammed(t), cells)

	c.check(t, c.awaitProgrammed(t, empty.on(c.Host("web-3"))), c.cells(c.clientHosts(), empty))
	c.check(t, c.awaitProgrammed(t, empty), c.cells(c.clientHosts(), empty))
}

// TestHairpin checks that a pod which reaches itself through its Service sees a node's
// address as the client. An answer to its own address would never leave the pod.
func TestHairpin(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	web := app{name: "web", number: 10, internal: "Local", external: "Local"}.on(c.Host("web-1"))
	c.start(t, web)
	pod := c.Host("web-1")
	for _, x := range c.cells([]*netlab.Host{pod}, web) {
		a, err := pod.Ask(t.Context(), netlab.Query{Proto: x.Proto.String(), To: x.To})
		kit.Must(t, err)
		want := c.judge(nil).NodeTowards(pod.Addr(a.At.Addr()))
		if c.accelerated && x.Proto == service.TCP && x.Name == "ClusterIP of web" {
			want = pod.Addr(a.At.Addr()) // it connects to itself, and nothing leaves it
		}
		kit.Check(t, a.Backend == "web-1" && a.Client.Addr() == want,
			"%s: %s by %s, who saw %s", x, a.Outcome, a.Backend, a.Client)
	}
}

// TestSourceRanges checks that loadBalancerSourceRanges apply to load-balancer addresses
// and to nothing else.
func TestSourceRanges(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	c.start(t)
	var apps []app
	for i, ranges := range [][]string{
		{"192.0.2.100/32", "2001:db8:2::100/128"},                                           // the client
		{"192.0.2.10/32", "2001:db8:2::10/128"},                                             // the node
		{"10.244.1.13/32", "fd00:10:244:1::13/128", "192.0.2.96/28", "2001:db8:2::100/120"}, // a pod and the client
		{"0.0.0.0/0", "::/0"},
		{"192.0.2.0/24", "2001:db8:2::/64"}, // the client and the node
	} {
		for j, policy := range []corev1.ServiceExternalTrafficPolicy{"Cluster", "Local"} {
			a := app{name: fmt.Sprintf("guarded-%d-%s", i, [2]string{"cluster", "local"}[j]), number: 10 + 2*i + j, ranges: ranges, external: policy}
			apps = append(apps, a.on(c.Host("web-1"), c.Host("web-3")))
		}
	}
	c.check(t, c.awaitProgrammed(t, apps...), c.cells(c.clientHosts(), apps...))

	// A client that is no longer allowed is stopped, and a newly allowed one is served.
	closed := apps[0]
	closed.ranges = apps[2].ranges[:2]
	c.check(t, c.awaitProgrammed(t, closed), c.cells(c.clientHosts(), closed))
	closed.ranges = nil
	c.check(t, c.awaitProgrammed(t, closed), c.cells(c.clientHosts(), closed))
}

// TestSourceRangesOfTheNode checks a node that holds a load balancer's address and is
// allowed. It reaches the Service with that very address as its source.
func TestSourceRangesOfTheNode(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	web := app{name: "web", number: 10, ranges: []string{"192.0.2.10/32", "2001:db8:2::10/128"}}.on(c.Host("web-1"), c.Host("web-3"))
	c.start(t, web)
	for _, f := range service.Families {
		vip := web.address(service.LoadBalancerIP, f)
		kit.Must(t, c.Node.AddAddr(vip))
		a, err := c.Node.Ask(t.Context(), netlab.Query{Proto: "tcp", To: web.at(service.LoadBalancerIP, f)})
		kit.Check(t, err == nil && a.Outcome == netlab.Answered && a.From.Addr() == vip,
			"node-a to %s: %s from %s, %v", vip, a.Outcome, a.From, err)
	}
}

// checkServers sends requests until no new server has answered for long, and requires the
// named servers, "" for none.
func checkServers(t *testing.T, from *netlab.Host, to netip.AddrPort, want string) {
	t.Helper()
	q := netlab.Query{Proto: "tcp", To: to}
	if want == "" {
		q.Timeout = netlab.SilenceTimeout
	}
	var seen []string
	// One of two servers is missed with probability 2^-49.
	for missed := 0; missed < 50; missed++ {
		a, err := from.Ask(t.Context(), q)
		kit.Must(t, err)
		if a.Outcome != netlab.Answered {
			break
		}
		if i, found := slices.BinarySearch(seen, a.Backend); !found {
			seen, missed = slices.Insert(seen, i, a.Backend), 0
		}
	}
	got := strings.Join(seen, " ")
	kit.Check(t, got == want, "%s to %s: answered by %q, want %q", from.Name, to, got, want)
}

// TestTerminating checks that a terminating endpoint serves while no other one does. The
// judge parses manifests with the proxy's own code, so the expected servers are listed
// here.
func TestTerminating(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	one, two, three, four := c.Host("web-1"), c.Host("web-2"), c.Host("web-3"), c.Host("web-4")
	base := app{name: "policies-cluster", number: 10}
	local := app{name: "policies-local", number: 11, internal: "Local", external: "Local"}
	c.launch(t)
	for name, tc := range map[string]struct {
		with              func(app) app
		inside, localOnly string // servers for a pod, and for a client outside under policy Local
	}{
		"all end": {func(a app) app { return a.with(one, terminating).with(three, terminating) },
			"web-1 web-3", "web-1"},
		"one is ready": {func(a app) app { return a.with(one, terminating).with(two, ready).with(three, terminating) },
			"web-2", "web-2"},
		"the rest is away": {func(a app) app { return a.with(one, terminating).with(three, ready).with(four, ready) },
			"web-3 web-4", "web-1"},
		"the last has ended": {func(a app) app { return a.with(one, ended).with(two, unready).with(four, ended) },
			"", ""},
		"served elsewhere": {func(a app) app { return a.with(one, ended).with(three, terminating) },
			"web-3", ""},
	} {
		t.Run(name, func(t *testing.T) {
			apps := []app{tc.with(base), tc.with(local)}
			c.check(t, c.awaitProgrammed(t, apps...), c.cells(c.clientHosts(), apps...))
			for _, f := range service.Families {
				checkServers(t, c.Host("shopper"), base.at(service.ClusterIP, f), tc.inside)
				checkServers(t, c.Host("customer"), local.at(service.NodePort, f), tc.localOnly)
			}
		})
	}
}
