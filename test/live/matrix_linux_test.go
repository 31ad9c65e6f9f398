// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/test/judge"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// clientHosts are a client of each kind: a pod, a pod that serves itself, the node, and a
// host outside.
func (c *cluster) clientHosts() []*netlab.Host {
	return []*netlab.Host{c.Host("shopper"), c.Host("web-1"), c.Node, c.Host("customer")}
}

// matrix is a Service for each combination of policies and places of endpoints.
func (c *cluster) matrix() []app {
	one, two, three := c.Host("web-1"), c.Host("web-2"), c.Host("web-3")
	spread := app{name: "cluster", number: 10}.on(one, two, three)
	local := app{name: "local", number: 11, internal: "Local", external: "Local"}
	inside := app{name: "local-inside", number: 12, internal: "Local", external: "Cluster"}
	outside := app{name: "local-outside", number: 13, internal: "Cluster", external: "Local"}
	away := app{name: "away", number: 14, internal: "Local", external: "Local"}
	empty := app{name: "empty", number: 15}
	deaf := app{name: "deaf", number: 16, internal: "Local", external: "Local"}.with(one, unready).with(three, ended)
	sticky := app{name: "sticky", number: 17, sticky: 600}.on(one, two, three)
	stickyLocal := app{name: "sticky-local", number: 18, internal: "Local", external: "Local", sticky: 600}
	closed := app{name: "closed", number: 19, ranges: []string{"192.0.2.100/32", "2001:db8:2::100/128"}}.on(one, three)
	return []app{
		spread, local.on(one, two, three), inside.on(one, two, three), outside.on(one, two, three), away.on(three),
		empty, deaf, sticky, stickyLocal.on(one, two, three), closed,
	}
}

// TestEveryCell connects every kind of client to every kind of address, under every
// policy, over every protocol, in both families.
func TestEveryCell(t *testing.T) { withNFTables(t, everyCell) }

func everyCell(t *testing.T, m mode) {
	c := newCluster(t, m)
	apps := c.matrix()
	c.start(t, apps...)
	want := c.awaitProgrammed(t)
	cells := c.cells(c.clientHosts(), apps...)
	kit.Need(t, len(cells) == 10*4*4*2*len(c.protocols()), "%d cells", len(cells))
	c.check(t, want, cells)
}

// TestSCTP does the same over SCTP alone, on a kernel that has it.
func TestSCTP(t *testing.T) { withNFTables(t, everySCTPCell) }

func everySCTPCell(t *testing.T, m mode) {
	if !netlab.SCTP() {
		t.Skip("this kernel has no sockets for SCTP")
	}
	c := newCluster(t, m)
	apps := c.matrix()
	c.start(t, apps...)
	c.check(t, c.awaitProgrammed(t), only(service.SCTP, c.cells(c.clientHosts(), apps...)))
}

// TestModes checks each way to identify pods, and masquerading of all traffic, in one
// cluster whose proxy restarts with other flags.
func TestModes(t *testing.T) { withNFTables(t, everyMode) }

// everyMode is for a cluster whose usual mode is m.
func everyMode(t *testing.T, m mode) {
	fromInterfaces, fromNode, all := m.withoutPodDetection(), m.withoutPodDetection(), m
	fromInterfaces.flags = append(fromInterfaces.flags, "--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=veth-")
	fromInterfaces.trackOptions.Pods.InterfacePrefix = "veth-"
	fromNode.flags = append(fromNode.flags, "--detect-local-mode=NodeCIDR")
	fromNode.trackOptions.PodsFromNode = true
	all.flags = append(slices.Clip(all.flags), "--masquerade-all", "--iptables-masquerade-bit=3")
	all.trackOptions.MasqueradeAll = true
	all.bit = 3
	everywhere, one := m, m
	everywhere.flags = append(slices.Clip(everywhere.flags), "--nodeport-addresses=0.0.0.0/0,::/0")
	everywhere.trackOptions.NodePorts = prefixes("0.0.0.0/0", "::/0")
	one.flags = append(slices.Clip(one.flags), "--nodeport-addresses=10.244.1.0/28,fd00:10:244:1::/112")
	one.trackOptions.NodePorts = prefixes("10.244.1.0/28", "fd00:10:244:1::/112")
	// No client is known as a pod, so none is masqueraded at a ClusterIP, and answers
	// from the other node would bypass this one.
	blind := m.withoutPodDetection()
	c := newCluster(t, m)
	web := app{name: "web", number: 10}.on(c.Host("web-1"), c.Host("web-2"))
	local := app{name: "local", number: 11, external: "Local"}.on(c.Host("web-1"), c.Host("web-3"))
	c.save(t, web, local)
	for _, next := range []struct {
		name string
		mode mode
	}{
		{"interface names", fromInterfaces}, {"the node's pod network", fromNode}, {"masquerade all", all},
		{"NodePorts everywhere", everywhere}, {"NodePorts at one address", one}, {"no pods known", blind},
	} {
		t.Run(next.name, func(t *testing.T) {
			c.setMode(t, next.mode)
			p := c.start(t)
			want := c.awaitProgrammed(t)
			cells := c.cells(c.clientHosts(), web)
			if want.Node.Pods.Known(service.IPv4) {
				cells = append(cells, c.cells(c.clientHosts(), local)...)
			}
			c.check(t, want, cells)
			c.checkNodePorts(t, want, web)
			p.Stop(t)
		})
	}
}

// checkNodePorts dials the NodePort of a at every address that node-a has.
func (c *cluster) checkNodePorts(t *testing.T, want *service.Snapshot, a app) {
	t.Helper()
	at := []string{"192.0.2.10", "2001:db8:2::10", "10.244.1.1", "fd00:10:244:1::1", "127.0.0.1", "::1"}
	for _, h := range []*netlab.Host{c.Host("shopper"), c.Node} {
		for _, s := range at {
			x := judge.Call{From: h, Proto: service.TCP, ToNode: true, Name: "NodePort of " + a.name}
			x.To = netip.AddrPortFrom(netip.MustParseAddr(s), a.nodePort())
			if h != c.Node && x.To.Addr().IsLoopback() {
				continue
			}
			err := c.judge(want).Try(t.Context(), x)
			kit.Check(t, err == nil, "%s: %v", x, err)
		}
	}
}

// TestBridge checks that pods on a bridge are identified by its name.
func TestBridge(t *testing.T) {
	t.Parallel()
	onBridge(t, mode{})
}

func onBridge(t *testing.T, m mode) {
	m.bridge = "br-pods"
	m.flags = append(m.flags, "--detect-local-mode=BridgeInterface", "--pod-bridge-interface=br-pods")
	m.trackOptions.Pods.Interface = "br-pods"
	c := newCluster(t, m)
	web := app{name: "web", number: 10}.on(c.Host("web-1"), c.Host("web-2"), c.Host("web-3"))
	local := app{name: "local", number: 11, external: "Local"}.on(c.Host("web-1"), c.Host("web-3"))
	c.start(t, web, local)
	c.check(t, c.awaitProgrammed(t), c.cells(c.clientHosts(), web, local))
}

// kinds are the four kinds of addresses of an app.
var kinds = []service.Kind{service.ClusterIP, service.NodePort, service.ExternalIP, service.LoadBalancerIP}

// cells returns every combination of a host, an app and an address.
func (c *cluster) cells(hosts []*netlab.Host, apps ...app) []judge.Call {
	var all []judge.Call
	for _, a := range apps {
		for _, k := range kinds {
			for _, f := range service.Families {
				all = append(all, c.dials(hosts, a, k, f)...)
			}
		}
	}
	return all
}

func (c *cluster) dials(hosts []*netlab.Host, a app, k service.Kind, f service.Family) []judge.Call {
	var all []judge.Call
	for _, h := range hosts {
		for _, p := range c.protocols() {
			if !slices.Contains(a.protocols(), p) {
				continue
			}
			x := judge.Call{From: h, To: a.at(k, f), ToNode: k == service.NodePort, Proto: p}
			x.Name = fmt.Sprintf("%s of %s", k, a.name)
			all = append(all, x)
		}
	}
	return all
}

// only returns the cells of one protocol.
func only(p service.Protocol, cells []judge.Call) []judge.Call {
	return slices.DeleteFunc(cells, func(x judge.Call) bool { return x.Proto != p })
}

// check makes the connections of all cells and compares the results with package route.
func (c *cluster) check(t *testing.T, want *service.Snapshot, cells []judge.Call) {
	t.Helper()
	j := c.judge(want)
	before := c.kernel.Taken(t)
	j.Check(t, cells)
	made, taken := j.Taken.Load(), c.kernel.Taken(t)-before
	kit.Check(t, taken >= made, "%d connections were taken at connect, want at least %d", taken, made)
}

func (c *cluster) judge(want *service.Snapshot) judge.Judge {
	return judge.Judge{
		Lab: c.Lab, Want: want, Bridge: c.mode.bridge, Relayed: c.mode.userspace,
		Accelerated: c.accelerated, Taken: new(atomic.Uint64),
	}
}

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
			kit.Must(t, c.Host("customer").AddAddr(addr))
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
	kit.Must(t, err)
	kit.Need(t, a.Outcome == netlab.Answered, "%s to %s: %s", client, q.To, a.Outcome)
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
	kit.Must(t, h.Node.Do(func() error {
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
	}))
	return n
}

// TestAffinity follows a Service with an affinity timeout of two seconds through its
// life.
func TestAffinity(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	web := app{name: "web", number: 10, sticky: 2}.on(c.webs()...)
	c.start(t, web)
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
		kit.Check(t, moved != 0, "all %d clients happen to have the servers they had", len(h.addrs))
	})
}

// TestAffinityWithServerThatLeaves checks that the clients of a removed server move at
// once, whatever their timeout, and that other clients keep their server.
func TestAffinityWithServerThatLeaves(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	web := app{name: "web", number: 10, sticky: 600}.on(c.webs()...)
	c.start(t, web)
	h := newAffinityClients(t, c, web)
	gone := h.server[h.addrs[0]]
	c.awaitProgrammed(t, web.on(slices.DeleteFunc(c.webs(), func(w *netlab.Host) bool { return w.Name == gone })...))
	kit.Until(t, "every client of the server moves", func() bool { return h.allMovedFrom(t, gone) })
	moved := h.movedClients(t)
	kit.Check(t, len(moved) == 0, "moved once more: %v", moved)
	c.awaitProgrammed(t, web)
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

// TestUDPMovesFromLostEndpoint checks a UDP client that keeps its port. Its conntrack
// entry fixes its endpoint, and when that endpoint is removed, the client must move.
func TestUDPMovesFromLostEndpoint(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	one, two, three := c.Host("web-1"), c.Host("web-2"), c.Host("web-3")
	dns := app{name: "dns", number: 10}
	local := app{name: "local", number: 11, external: "Local", internal: "Local"}
	p := c.start(t, dns.on(one, two, three), local.on(one, two))
	flows := c.converse(t, "udp", dns, 4)
	flows = append(flows, c.converse(t, "udp", local, 4)...)

	c.save(t, dns.on(two, three), local.on(two))
	flows.await(t, "leaves the endpoint that left", func(o conversation, a netlab.Answer) bool {
		kit.Check(t, o.server == "web-1" || a.Outcome != netlab.Answered || a.Backend == o.server,
			"%s: %s answers, though %s did not leave", o.name, a.Backend, o.server)
		return a.Outcome == netlab.Answered && a.Backend != "web-1"
	})
	p.AwaitLogs(t, "Removed stale flows", "FAMILY")
}

// TestUDPStopsWithoutEndpoints checks that a Service that is deleted or has lost its last
// endpoint answers no client, not even those with a flow.
func TestUDPStopsWithoutEndpoints(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	gone := app{name: "gone", number: 10}.on(c.Host("web-1"))
	empty := app{name: "empty", number: 11}.on(c.Host("web-1"))
	stays := app{name: "stays", number: 12}.on(c.webs()...)
	c.start(t, gone, empty, stays)
	leaving := c.converse(t, "udp", gone, 1)
	emptied := c.converse(t, "udp", empty, 1)
	others := c.converse(t, "udp", stays, 2)
	c.remove(t, "gone.yaml")
	c.save(t, empty.on())
	leaving.await(t, "ends", func(_ conversation, a netlab.Answer) bool { return a.Outcome != netlab.Answered })
	emptied.await(t, "is refused", func(_ conversation, a netlab.Answer) bool { return a.Outcome == netlab.Refused })
	others.checkSameServer(t)
}

// TestUDPFlowBeforeService checks that a client whose flow began before the Service
// existed is soon served, although its conntrack entry has no translation.
func TestUDPFlowBeforeService(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	late := app{name: "late", number: 10}
	refilled := app{name: "refilled", number: 11}
	c.start(t, refilled)
	flows := append(c.open(t, "udp", late, 1), c.open(t, "udp", refilled, 1)...)
	for _, f := range flows {
		if a, err := f.conn.AskFor(t.Context(), pollTimeout); err != nil || a.Outcome == netlab.Answered {
			t.Fatalf("%s is answered too early by %q, %v", f.name, a.Backend, err)
		}
	}
	c.save(t, late.on(c.Host("web-1")), refilled.on(c.Host("web-3")))
	flows.await(t, "is answered", func(_ conversation, a netlab.Answer) bool { return a.Outcome == netlab.Answered })
}

// TestUDPFollowsPolicy checks that clients outside leave the endpoints of other nodes when
// the external traffic policy turns Local, and that the node itself keeps its endpoints.
func TestUDPFollowsPolicy(t *testing.T) {
	for _, name := range []string{"nftables", "iptables-legacy", "userspace"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, modeNamed(name))
			dns := app{name: "dns", number: 10}.on(c.webs()...)
			c.start(t, dns)
			flows := c.converse(t, "udp", dns, 3)
			dns.external = "Local"
			c.awaitProgrammed(t, dns)
			flows.await(t, "follows the policy", func(o conversation, a netlab.Answer) bool {
				switch {
				case a.Outcome != netlab.Answered:
					return false
				case strings.HasPrefix(o.name, "customer") && !strings.Contains(o.name, "ClusterIP"):
					return slices.Contains(locals, a.Backend)
				case strings.HasPrefix(o.name, "node") && name != "userspace": // a relay draws for each datagram
					return a.Backend == o.server
				}
				return true
			})
		})
	}
}

// TestPacketsOutsideOfTheWindow sends packets of an endpoint that are outside of the TCP
// window. Connection tracking marks them invalid and does not translate them. A client
// that received one would reset a connection that it does not know, and the endpoint
// would take that reset for its own connection, see kubernetes/kubernetes#74839.
// Kubernetes' own test sends such a packet, too.
func TestPacketsOutsideOfTheWindow(t *testing.T) { withNFTables(t, outsideOfTheWindow) }

func TestIPTablesPacketsOutsideOfTheWindow(t *testing.T)  { eachVariant(t, outsideOfTheWindow) }
func TestUserspacePacketsOutsideOfTheWindow(t *testing.T) { withUserspace(t, outsideOfTheWindow) }
func TestIPVSPacketsOutsideOfTheWindow(t *testing.T)      { withIPVS(t, outsideOfTheWindow) }

func outsideOfTheWindow(t *testing.T, m mode) {
	c := newCluster(t, m)
	web := app{name: "web", number: 10}.on(c.Host("web-3"))
	own := app{name: "own", number: 11}.on(c.Host("web-1"))
	c.start(t, web, own)
	c.checkOutOfWindow(t, web, own)
	// With nf_conntrack_tcp_be_liberal such packets are valid, so none may be dropped.
	// See https://docs.kernel.org/networking/nf_conntrack-sysctl.html
	kit.Must(t, c.Node.Do(func() error {
		return os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal", []byte("1"), 0)
	}))
	c.checkOutOfWindow(t, web, own)
}

// checkOutOfWindow lets the endpoint of each app send such a packet on connections from a
// pod, and requires that the connections go on.
func (c *cluster) checkOutOfWindow(t *testing.T, apps ...app) {
	t.Helper()
	for _, a := range apps {
		server := a.pods[0].host
		for _, x := range c.cells([]*netlab.Host{c.Host("shopper")}, a) {
			if x.Proto == service.TCP && x.Name == "ClusterIP of "+a.name {
				sendOutOfWindow(t, server, open(t, x, c.port()), x.To.Addr())
			}
		}
	}
}

// sendOutOfWindow sends such a packet from server to the client of conversation o.
func sendOutOfWindow(t *testing.T, server *netlab.Host, o conversation, dialed netip.Addr) {
	t.Helper()
	wire, raw := -1, -1
	err := server.Do(func() (err error) {
		if wire, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
			return err
		}
		family := unix.AF_INET6
		if dialed.Is4() {
			family = unix.AF_INET
		}
		raw, err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
		return err
	})
	defer unix.Close(wire)
	defer unix.Close(raw)
	kit.Must(t, err)
	ip := [...]uint16{unix.ETH_P_IP, unix.ETH_P_IPV6}[service.FamilyOf(dialed)]
	kit.Must(t, unix.Bind(wire, &unix.SockaddrLinklayer{Protocol: ip<<8 | ip>>8}))
	a, err := o.conn.Ask(t.Context())
	kit.Need(t, err == nil && a.Outcome == netlab.Answered, "%s: %s, %v", o.name, a.Outcome, err)
	o.server = a.Backend
	last := segment{}
	for b := make([]byte, 1<<16); ; {
		n, _, err := unix.Recvfrom(wire, b, 0)
		if err != nil {
			break
		}
		if x, ok := parse(b[:n]); ok && x.from == a.Client && x.to == a.At {
			last = x
		}
	}
	kit.Need(t, last.from.IsValid(), "%s: no packet came from %s", o.name, a.Client)
	to := netip.AddrPortFrom(a.Client.Addr(), 0) // a raw socket has no ports
	kit.Must(t, unix.Sendto(raw, last.outOfWindow(), 0, sockaddr(to)))
	for range 20 { // the effect takes a moment
		if a, err := o.conn.Ask(t.Context()); err != nil || a.Backend != o.server {
			t.Fatalf("%s: %s %s, %v; want %s to go on", o.name, a.Outcome, a.Backend, err, o.server)
		}
	}
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16()}
}

// segment is a TCP packet.
type segment struct {
	from, to netip.AddrPort
	next     uint32 // sequence number of what follows it
	ack      uint32
}

// parse parses a packet that begins with its IP header.
func parse(b []byte) (segment, bool) {
	var x segment
	var from, to netip.Addr
	var tcp []byte
	switch {
	case len(b) >= 40 && b[0]>>4 == 4 && b[9] == unix.IPPROTO_TCP:
		from, _ = netip.AddrFromSlice(b[12:16])
		to, _ = netip.AddrFromSlice(b[16:20])
		tcp = b[int(b[0]&15)*4 : binary.BigEndian.Uint16(b[2:])]
	case len(b) >= 60 && b[0]>>4 == 6 && b[6] == unix.IPPROTO_TCP:
		from, _ = netip.AddrFromSlice(b[8:24])
		to, _ = netip.AddrFromSlice(b[24:40])
		tcp = b[40 : 40+int(binary.BigEndian.Uint16(b[4:]))]
	default:
		return x, false
	}
	x.from = netip.AddrPortFrom(from, binary.BigEndian.Uint16(tcp))
	x.to = netip.AddrPortFrom(to, binary.BigEndian.Uint16(tcp[2:]))
	x.next = binary.BigEndian.Uint32(tcp[4:]) + uint32(len(tcp)-int(tcp[12]>>4)*4)
	x.ack = binary.BigEndian.Uint32(tcp[8:])
	return x, true
}

// outOfWindow returns an answer to x far outside of the window. A reset that answers it
// carries a sequence number that the other side accepts.
func (x segment) outOfWindow() []byte {
	b := make([]byte, 20)
	binary.BigEndian.PutUint16(b, x.to.Port())
	binary.BigEndian.PutUint16(b[2:], x.from.Port())
	binary.BigEndian.PutUint32(b[4:], x.ack+1<<30)
	binary.BigEndian.PutUint32(b[8:], x.next)
	const words, ack = 5 << 4, 1 << 4
	b[12], b[13] = words, ack
	binary.BigEndian.PutUint16(b[14:], 1<<15)
	pseudo := append(x.to.Addr().AsSlice(), x.from.Addr().AsSlice()...)
	pseudo = append(pseudo, 0, unix.IPPROTO_TCP, 0, byte(len(b)))
	var sum uint32
	for data := append(pseudo, b...); len(data) > 0; data = data[2:] {
		sum += uint32(binary.BigEndian.Uint16(data))
	}
	for sum>>16 != 0 {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(b[16:], ^uint16(sum))
	return b
}

// way is how a client reaches a Service through an ingress node.
type way struct {
	kind   service.Kind
	family service.Family
	proto  string
}

func ways() (all []way) {
	for _, k := range []service.Kind{service.LoadBalancerIP, service.NodePort} {
		for _, f := range service.Families {
			all = append(all, way{k, f, "tcp"}, way{k, f, "udp"})
		}
	}
	return all
}

// selected returns the endpoints that client ports get, by way and port.
func (c *cluster) selected(t *testing.T, web app, ports int) map[way][]string {
	t.Helper()
	all := map[way][]string{}
	for _, w := range ways() {
		for i := range ports {
			from := netip.AddrPortFrom(netip.Addr{}, uint16(40000+1000*int(w.kind)+i))
			a, err := c.Host("customer").Ask(t.Context(), netlab.Query{Proto: w.proto, To: web.at(w.kind, w.family), From: from})
			if err != nil || a.Outcome != netlab.Answered {
				t.Fatalf("%v from port %d: %s, %v", w, from.Port(), a.Outcome, err)
			}
			all[w] = append(all[w], a.Backend)
		}
	}
	return all
}

// TestConsistentSelection has two nodes learn of the same endpoints in different orders. They
// select the same ones for the same client ports, and few others when one leaves.
func TestConsistentSelection(t *testing.T) {
	t.Parallel()
	const ports = 200
	m := defaultMode()
	m.plain = true
	nodes := [2]*cluster{newCluster(t, m), newCluster(t, m)}
	web := app{name: "web", number: 10, selection: track.SelectConsistent}
	var before [2]map[way][]string
	for i, c := range nodes {
		all := c.webs()
		first := web.on(all...)
		if i == 1 { // another past, and other slots in tables that depend on it
			first = web.on(all[3], all[1])
		}
		c.start(t, first)
		if i == 1 {
			c.awaitProgrammed(t, web.on(all[1]))
			c.awaitProgrammed(t, web.on(all[3], all[2], all[1], all[0]))
		}
		before[i] = c.selected(t, web, ports)
	}
	for w, one := range before[0] {
		if !slices.Equal(one, before[1][w]) {
			t.Errorf("%v: the nodes select\n%v\n%v", w, one, before[1][w])
		}
		k := slices.Compact(slices.Sorted(slices.Values(one)))
		kit.Check(t, len(k) == len(web.on(nodes[0].webs()...).pods), "%v: only %v are selected", w, k)
	}
	c := nodes[0]
	c.awaitProgrammed(t, web.on(c.webs()[:3]...))
	for w, after := range c.selected(t, web, ports) {
		moved := 0
		for i, was := range before[0][w] {
			if was != after[i] && was != "web-4" {
				moved++
			}
		}
		if t.Logf("%v: %d of %d connections moved from endpoints that stay", w, moved, ports); moved > ports*2/100 {
			t.Errorf("%v: %d of %d connections moved from endpoints that stay", w, moved, ports)
		}
	}
}
