// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/common/source"
	"kubeproxy/common/track"
	"kubeproxy/platform/linux/conntrack"
	"kubeproxy/platform/linux/socketlb"
	"kubeproxy/platform/linux/userspace"
	"kubeproxy/test/judge"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// kubeProxy is the proxy, freshly built for each run of the tests.
var kubeProxy program.Program

func TestMain(m *testing.M) {
	confined()
	listening()
	attackingLease()
	os.Exit(program.Main(m, &kubeProxy))
}

// cluster is a lab, with the manifests that node-a should forward.
type cluster struct {
	*netlab.Lab
	dir    string
	mode   mode
	kernel *program.Kernel
	// commands is the folder of the iptables commands, in mode iptables.
	commands string
	opened   atomic.Uint32 // conversations so far
	// planned is whether doctor looks for what hinders a start.
	planned bool
	// accelerated is whether socket acceleration is on and can work.
	accelerated bool
}

// mode is a way to run the proxy: its flags, and their meaning for the judge.
type mode struct {
	flags        []string
	trackOptions track.Options
	// bridge is the interface through which pods are seen, empty if each has one of its
	// own.
	bridge string
	bit    int // of the mark for masquerading, 0 for the default
	// iptables is the variant of mode iptables, legacy or nft, empty for mode nftables.
	iptables string
	// userspace is for mode userspace, with that variant of iptables.
	userspace bool
	// bound are the choices of mode userspace for listeners.
	bound userspace.Options
	ipvs  bool
	// scheduler is that of mode ipvs, empty for the usual one.
	scheduler string
	// plain leaves socket acceleration to the test.
	plain bool
	// accelerated is for socket acceleration in any case.
	accelerated bool
	// localhost is whether NodePorts answer on 127.0.0.1, which the judge does not cover.
	localhost bool
}

// defaultMode is the mode of tests that are not about modes.
func defaultMode() mode {
	m := mode{flags: []string{"--cluster-cidr=" + netlab.ClusterCIDR}}
	m.trackOptions.Pods.Prefixes = prefixes(strings.Split(netlab.ClusterCIDR, ",")...)
	return m
}

func prefixes(list ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, s := range list {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}

// The hosts of every cluster: two serving pods on each node, a pod that does not serve,
// and a client outside.
var (
	locals  = []string{"web-1", "web-2", "shopper"}
	remotes = []string{"web-3", "web-4"}
	outside = []string{"customer"}
)

// newCluster builds a lab with an echo server on every web host, and an empty directory
// of manifests.
func newCluster(t *testing.T, m mode) *cluster {
	t.Helper()
	return newClusterOf(t, m, remotes...)
}

// newClusterOf is newCluster with those pods on the other node.
func newClusterOf(t *testing.T, m mode, remotes ...string) *cluster {
	t.Helper()
	c := &cluster{dir: t.TempDir(), mode: m, accelerated: (accelerated() || m.accelerated) && !m.plain}
	c.Lab = netlab.Start(t, netlab.Config{
		Pods: locals, Remote: remotes, Clients: outside, Bridge: m.bridge,
		Cgroups: c.accelerated, Unbound: prefixes("10.96.0.0/12", "fd00:10:96::/112"),
	})
	for _, name := range append([]string{"web-1", "web-2"}, remotes...) {
		_, err := c.Host(name).Echo("", target)
		kit.Must(t, err)
	}
	c.setMode(t, m)
	c.write(t, "node.yaml", program.Manifest[any](t, node()))
	return c
}

// setMode makes m the mode of the next start.
func (c *cluster) setMode(t *testing.T, m mode) {
	t.Helper()
	c.mode, c.commands = m, ""
	c.kernel = c.audit(t)
	if c.accelerated {
		c.kernel.Accelerate(t, socketlb.Options{Cgroup: c.Cgroup, Pins: filepath.Join(c.Root, "sys/fs/bpf")})
	}
}

// webs returns web-1 to web-4.
func (c *cluster) webs() []*netlab.Host {
	return []*netlab.Host{c.Host("web-1"), c.Host("web-2"), c.Host("web-3"), c.Host("web-4")}
}

// start saves apps, starts the proxy and waits until all is programmed.
func (c *cluster) start(t *testing.T, apps ...app) *program.Proxy {
	t.Helper()
	c.save(t, apps...)
	p := c.launch(t)
	c.awaitProgrammed(t)
	p.AwaitLogs(t, `"Programmed"`, c.mode.proxyMode()+" FAMILY")
	return p
}

// launch starts the proxy.
func (c *cluster) launch(t *testing.T) *program.Proxy {
	t.Helper()
	args := []string{"--manifests=" + c.dir, "--iptables-min-sync-period=10ms"}
	return program.Start(t, c.Node, c.command(append(args, c.mode.flags...)...))
}

// save writes apps, each to a file of its name.
func (c *cluster) save(t *testing.T, apps ...app) {
	t.Helper()
	for _, a := range apps {
		c.write(t, a.name+".yaml", a.yaml(t))
	}
}

// saveAnnotated is save for a Service with an annotation.
func (c *cluster) saveAnnotated(t *testing.T, a app, key, value string) {
	t.Helper()
	s := a.service()
	s.Annotations = map[string]string{key: value}
	c.write(t, a.name+".yaml", program.Manifest[any](t, s, a.slice(service.IPv4), a.slice(service.IPv6)))
}

// write replaces a file in one step, so that no reader sees half of it.
func (c *cluster) write(t *testing.T, name string, text []byte) {
	t.Helper()
	next := filepath.Join(c.dir, name+".next")
	kit.Must(t, os.WriteFile(next, text, 0o600))
	kit.Must(t, os.Rename(next, filepath.Join(c.dir, name)))
}

// remove removes a file.
func (c *cluster) remove(t *testing.T, name string) {
	t.Helper()
	kit.Must(t, os.Remove(filepath.Join(c.dir, name)))
}

// want reads the manifests as the proxy does.
func (c *cluster) want(t *testing.T) *service.Snapshot {
	t.Helper()
	o := c.mode.trackOptions
	o.NodeName, o.NodePortsPrimary = netlab.NodeName, len(o.NodePorts) == 0 && c.mode.proxyMode() == "nftables"
	if !o.NodePortsPrimary {
		o.NodePorts = service.OrAnyAddress(o.NodePorts)
	}
	tracker := track.New(o)
	files := source.Manifests{Paths: []string{c.dir}, NodeName: netlab.NodeName}
	kit.Must(t, files.Load(t.Context(), tracker))
	want := tracker.Latest()
	for _, p := range tracker.Problems() {
		t.Fatalf("the test's own manifests: %s", p)
	}
	return want
}

// awaitProgrammed saves apps, and waits until the kernel holds exactly what the manifests
// describe, and no UDP flow that they do not allow.
func (c *cluster) awaitProgrammed(t *testing.T, apps ...app) *service.Snapshot {
	t.Helper()
	c.save(t, apps...)
	want := c.want(t)
	c.awaitSnapshot(t, want)
	return want
}

func (c *cluster) awaitSnapshot(t *testing.T, want *service.Snapshot) {
	t.Helper()
	c.kernel.AwaitProgrammed(t, want)
}

// TestModesThatCannotWork checks a node on which no mode can work: the program prints
// what each mode lacks, one line each, and exits with status 1.
func TestModesThatCannotWork(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	c.save(t, app{name: "web", number: 10}.on(c.webs()...))
	const right, noCommand = "the right CAP_NET_ADMIN is needed", "the command iptables is missing: install iptables"
	for _, tc := range []struct {
		name, commands string
		flags          []string
		want           []string // what each mode lacks
	}{
		{"no right, legacy", program.IPTables(t, "legacy"), nil, []string{"nftables: " + right, "iptables: " + right, "userspace: " + right}},
		{"no right, nft", program.IPTables(t, "nft"), nil, []string{"nftables: " + right, "iptables: " + right, "userspace: " + right}},
		{"no right, no commands", t.TempDir(), nil, []string{"nftables: " + right, "iptables: " + noCommand, "userspace: " + noCommand}},
		{"asked for", program.IPTables(t, "legacy"), []string{"--proxy-mode=userspace"}, []string{"userspace: " + right}},
	} {
		cmd := exec.Command("/usr/bin/setpriv", append([]string{"--bounding-set=-net_admin", "--inh-caps=-net_admin", kubeProxy.Path, "--manifests=" + c.dir}, tc.flags...)...)
		cmd.Env = append(os.Environ(), "PATH="+tc.commands)
		out, err := program.Run(t, c.Node, cmd)
		kit.Check(t, err != nil && err.Error() == "exit status 1",
			"%s: ended with %v, want exit status 1", tc.name, err)
		_, last, _ := strings.Cut(out, "kube-proxy: ")
		lines := strings.Split(strings.TrimSpace(last), "\n")
		if len(lines) != len(tc.want) {
			t.Errorf("%s: %d lines, want %d:\n%s", tc.name, len(lines), len(tc.want), out)
			continue
		}
		for i, want := range tc.want {
			mode, lack, _ := strings.Cut(want, ": ")
			if !strings.HasPrefix(lines[i], "mode "+mode+" cannot work here: ") || !strings.HasSuffix(lines[i], lack) || strings.Contains(lines[i], "kernel module") {
				t.Errorf("%s: %q, want that mode %s lacks this: %s", tc.name, lines[i], mode, lack)
			}
		}
	}
}

// TestModeWithFewCommands checks that the command iptables is not sufficient without
// those that read and write whole tables.
func TestModeWithFewCommands(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	c.save(t, app{name: "web", number: 10}.on(c.webs()...))
	for _, suffix := range []string{"-save", "-restore"} {
		dir := program.IPTables(t, "nft")
		kit.Must(t, os.Remove(filepath.Join(dir, "iptables"+suffix)))
		for _, mode := range []string{"iptables", "userspace"} {
			cmd := kubeProxy.Command("--manifests="+c.dir, "--proxy-mode="+mode)
			cmd.Env = append(os.Environ(), "PATH="+dir)
			out, err := program.Run(t, c.Node, cmd)
			if err == nil || err.Error() != "exit status 1" || !strings.Contains(out, "mode "+mode+" cannot work here") ||
				!strings.Contains(out, "the command iptables"+suffix+" is missing: install iptables") {
				t.Errorf("without iptables%s, mode %s ended with %v:\n%s", suffix, mode, err, out)
			}
		}
	}
}

// probe is the first packet of a connection. Its number shows where it arrives.
type probe struct {
	number   uint32
	proto    service.Protocol
	from, to netip.AddrPort
}

// packet returns p with its IP header.
func (p probe) packet() []byte {
	const syn, udpAt, tcpAt = 2, 6, 16
	b, at, proto := make([]byte, 12), udpAt, byte(unix.IPPROTO_UDP)
	binary.BigEndian.PutUint16(b[4:], uint16(len(b)))
	binary.BigEndian.PutUint32(b[8:], p.number)
	if p.proto == service.TCP {
		b, at, proto = make([]byte, 20), tcpAt, unix.IPPROTO_TCP
		binary.BigEndian.PutUint32(b[4:], p.number)
		b[12], b[13], b[14] = 5<<4, syn, 0xff
	}
	binary.BigEndian.PutUint16(b, p.from.Port())
	binary.BigEndian.PutUint16(b[2:], p.to.Port())
	from, to := p.from.Addr().AsSlice(), p.to.Addr().AsSlice()
	pseudo := append(append(append([]byte{}, from...), to...), 0, proto, 0, byte(len(b)))
	binary.BigEndian.PutUint16(b[at:], checksum(append(pseudo, b...)))
	h := make([]byte, 8, 60)
	if p.to.Addr().Is4() { // the kernel completes length and checksum, see raw(7)
		h = append(h, 64, proto, 0, 0)
		h[0], h[6] = 0x45, 0x40
	} else {
		h[0], h[5], h[6], h[7] = 0x60, byte(len(b)), proto, 64
	}
	return append(append(append(h, from...), to...), b...)
}

// checksum is that of RFC 1071.
func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(b[i]) << 8
		if i+1 < len(b) {
			sum += uint32(b[i+1])
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// arrival is where a probe came to, with what source.
type arrival struct {
	host *netlab.Host
	from netip.Addr
}

// wire sends probes from hosts, and sees which ones come to a host, past all of its rules.
type wire struct {
	hosts   []*netlab.Host
	senders map[*netlab.Host][2]int
	// receivers are sockets by host, two for each family: for TCP and UDP.
	receivers map[*netlab.Host][4]int
	arrived   map[uint32]arrival
	numbers   uint32
	ports     uint16
}

func newWire(t *testing.T, hosts ...*netlab.Host) *wire {
	t.Helper()
	w := &wire{hosts: hosts, senders: map[*netlab.Host][2]int{}, receivers: map[*netlab.Host][4]int{}, arrived: map[uint32]arrival{}}
	for _, h := range hosts {
		var s [2]int
		var r [4]int
		kit.Must(t, h.Do(func() (err error) {
			s, r, err = rawSockets()
			return err
		}))
		w.senders[h], w.receivers[h] = s, r
		t.Cleanup(func() {
			for _, fd := range append(s[:], r[:]...) {
				_ = unix.Close(fd)
			}
		})
	}
	return w
}

// rawSockets opens the sockets of a host.
func rawSockets() (senders [2]int, receivers [4]int, err error) {
	var errs []error
	open := func(family, proto int) int {
		fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, proto)
		errs = append(errs, err)
		return fd
	}
	for i, family := range []int{unix.AF_INET, unix.AF_INET6} {
		senders[i] = open(family, unix.IPPROTO_RAW)
		for j, proto := range []int{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			receivers[2*i+j] = open(family, proto)
			errs = append(errs, unix.SetsockoptInt(receivers[2*i+j], unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20))
		}
	}
	return senders, receivers, errors.Join(errs...)
}

// send sends p from h. The kernel tells that a rule of the host itself stopped it.
func (w *wire) send(t *testing.T, h *netlab.Host, p probe) {
	t.Helper()
	err := unix.Sendto(w.senders[h][service.FamilyOf(p.to.Addr())], p.packet(), 0, sockaddr(netip.AddrPortFrom(p.to.Addr(), 0)))
	if err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.EHOSTUNREACH) && !errors.Is(err, unix.ENETUNREACH) {
		t.Fatalf("send from %s to %s: %v", h.Name, p.to, err)
	}
}

// firstProbePort is the first port of clients. Servers have lower ones.
const firstProbePort = 40000

// port returns a port for the client of a probe that no other one had lately.
func (w *wire) port() uint16 {
	w.ports++
	return firstProbePort + w.ports%20000
}

// next returns an unused number.
func (w *wire) next() uint32 {
	w.numbers++
	return w.numbers
}

// look reads what has arrived.
func (w *wire) look() {
	for _, h := range w.hosts {
		for i, fd := range w.receivers[h] {
			w.drain(h, i, fd)
		}
	}
}

func (w *wire) drain(h *netlab.Host, socket, fd int) {
	b := make([]byte, 2048)
	for {
		n, from, err := unix.Recvfrom(fd, b, 0)
		if err != nil {
			return
		}
		w.record(h, socket, b[:n], from)
	}
}

// record records a packet that a raw socket has received. That of IPv4 keeps the header.
func (w *wire) record(h *netlab.Host, socket int, b []byte, from unix.Sockaddr) {
	const syn, flagsAt = 2, 13
	at, udp := 4, socket%2 == 1 // sequence number
	if udp {
		at = 8 // data
	}
	a := arrival{host: h}
	switch f := from.(type) {
	case *unix.SockaddrInet4:
		b = b[min(len(b), int(b[0]&15)*4):]
		a.from = netip.AddrFrom4(f.Addr)
	case *unix.SockaddrInet6:
		a.from = netip.AddrFrom16(f.Addr)
	}
	// Echo servers answer with the same data, and resets have the next sequence number.
	if len(b) < at+4 || binary.BigEndian.Uint16(b[2:]) >= firstProbePort || !udp && (len(b) < 20 || b[flagsAt] != syn) {
		return
	}
	if n := binary.BigEndian.Uint32(b[at:]); n > 0 && n <= w.numbers {
		w.arrived[n] = a
	}
}

// await sends packets between hosts that no rule of a test concerns, and waits for them.
// Those that were sent before have arrived then, unless the kernel served them on another
// processor.
func (w *wire) await(t *testing.T, f service.Family, ways [][2]*netlab.Host) {
	t.Helper()
	waiting := map[uint32]bool{}
	for _, x := range ways {
		like := [...]netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}[f]
		n := w.next()
		const port = 9
		p := probe{n, service.UDP, netip.AddrPortFrom(x[0].Addr(like), w.port()), netip.AddrPortFrom(x[1].Addr(like), port)}
		w.send(t, x[0], p)
		waiting[n] = true
	}
	kit.Until(t, "packets that no rule concerns", func() bool {
		w.look()
		for n := range waiting {
			if _, came := w.arrived[n]; came {
				delete(waiting, n)
			}
		}
		return len(waiting) == 0
	})
}

// conversations are open connections, each with the server of its first answer.
type conversations []conversation

type conversation struct {
	conn   *netlab.Conn
	name   string
	server string
}

// converse opens count conversations with each kind of address of a in both families,
// from a pod, from outside and from the node, and sends a request on each.
func (c *cluster) converse(t *testing.T, proto string, a app, count int) conversations {
	t.Helper()
	all := c.open(t, proto, a, count)
	for i := range all {
		answer, err := all[i].conn.Ask(t.Context())
		if err != nil || answer.Outcome != netlab.Answered {
			t.Fatalf("%s: %s, %v", all[i].name, answer.Outcome, err)
		}
		all[i].server = answer.Backend
	}
	return all
}

// open is converse without requests.
func (c *cluster) open(t *testing.T, proto string, a app, count int) conversations {
	t.Helper()
	if proto == "udp" {
		c.extendUDPTimeout(t)
	}
	var all conversations
	for _, x := range c.cells([]*netlab.Host{c.Host("shopper"), c.Host("customer"), c.Node}, a) {
		for range count {
			if x.Proto.String() == proto {
				all = append(all, open(t, x, c.port()))
			}
		}
	}
	return all
}

// extendUDPTimeout makes the node's conntrack timeouts of UDP longer than any test. By
// default an entry expires after 30 or 120 seconds without packets. A busy machine may
// pause that long between two requests, and the client may get another server then. See
// https://docs.kernel.org/networking/nf_conntrack-sysctl.html
func (c *cluster) extendUDPTimeout(t *testing.T) {
	t.Helper()
	kit.Must(t, c.Node.Do(func() error {
		const setting = "/proc/sys/net/netfilter/nf_conntrack_udp_timeout"
		return errors.Join(os.WriteFile(setting, []byte("600"), 0), os.WriteFile(setting+"_stream", []byte("600"), 0))
	}))
}

// port is the client's own port of the next conversation. No other connection gets it:
// IPVS would take the answers for those of another connection if the same client reached
// the same endpoint by another address.
func (c *cluster) port() uint16 { return uint16(20000 + c.opened.Add(1)) }

// open opens one conversation from a port of the client.
func open(t *testing.T, x judge.Call, port uint16) conversation {
	t.Helper()
	q := netlab.Query{Proto: x.Proto.String(), To: x.To, From: netip.AddrPortFrom(netip.Addr{}, port)}
	conn, a, err := x.From.Open(t.Context(), q)
	kit.Need(t, err == nil && a.Outcome == netlab.Answered, "%s: %s, %v", x, a.Outcome, err)
	t.Cleanup(func() { conn.Close() })
	return conversation{conn: conn, name: x.String()}
}

// checkSameServer sends a request in each conversation and requires the same server as
// before.
func (all conversations) checkSameServer(t *testing.T) {
	t.Helper()
	for _, o := range all {
		a, err := o.conn.Ask(t.Context())
		kit.Check(t, err == nil && a.Backend == o.server,
			"%s: %s %s, %v; want %s to go on", o.name, a.Outcome, a.Backend, err, o.server)
	}
}

// checkAnswered sends a request in each conversation and requires an answer of any
// server.
func (all conversations) checkAnswered(t *testing.T) {
	t.Helper()
	for _, o := range all {
		a, err := o.conn.Ask(t.Context())
		kit.Check(t, err == nil && a.Outcome == netlab.Answered, "%s: %s, %v; want an answer", o.name, a.Outcome, err)
	}
}

// pollTimeout is how long a polled conversation waits for an answer, which may not arrive
// yet.
const pollTimeout = 5 * netlab.SilenceTimeout

// await polls each conversation, over UDP, until ok.
func (all conversations) await(t *testing.T, what string, ok func(conversation, netlab.Answer) bool) {
	t.Helper()
	for _, o := range all {
		kit.Until(t, o.name+" "+what, func() bool {
			a, err := o.conn.AskFor(t.Context(), pollTimeout)
			kit.Need(t, err == nil, "%s: %v", o.name, err)
			return ok(o, a)
		})
	}
}

// TestClientsThatWait checks a client whose first packet went to an endpoint that never
// answers. Its retransmission must reach another endpoint once that one was removed. By
// default the kernel would keep the first translation for two minutes, see
// nf_conntrack_tcp_timeout_syn_sent in
// https://docs.kernel.org/networking/nf_conntrack-sysctl.html
func TestClientsThatWait(t *testing.T) {
	t.Parallel()
	clientsThatWait(t, defaultMode(), service.TCP)
}

func TestIPTablesClientsThatWait(t *testing.T) {
	eachVariant(t, func(t *testing.T, m mode) { clientsThatWait(t, m, service.TCP) })
}

func TestUserspaceClientsThatWait(t *testing.T) {
	withUserspace(t, func(t *testing.T, m mode) { clientsThatWait(t, m, service.TCP) })
}

func TestIPVSClientsThatWait(t *testing.T) {
	withIPVS(t, func(t *testing.T, m mode) { clientsThatWait(t, m, service.TCP) })
}

func TestSCTPClientsThatWait(t *testing.T) {
	t.Parallel()
	if !netlab.SCTP() {
		t.Skip("this kernel has no sockets for SCTP")
	}
	clientsThatWait(t, defaultMode(), service.SCTP)
}

func TestIPTablesSCTPClientsThatWait(t *testing.T) {
	if !netlab.SCTP() {
		t.Skip("this kernel has no sockets for SCTP")
	}
	eachVariant(t, func(t *testing.T, m mode) { clientsThatWait(t, m, service.SCTP) })
}

func clientsThatWait(t *testing.T, m mode, p service.Protocol) {
	c := newCluster(t, m)
	deaf := c.Host("web-3")
	nft(t, deaf, "add table inet deaf\nadd chain inet deaf input { type filter hook input priority 0; meta l4proto { tcp, sctp } drop; }\n")
	web := app{name: "web", number: 10}
	c.start(t, web.on(deaf))
	if p == service.SCTP {
		c.extendSCTPTimeout(t)
	}
	calls := only(p, c.cells([]*netlab.Host{c.Host("shopper"), c.Host("customer"), c.Node}, web))
	if c.accelerated { // a connect that was taken stays with its endpoint
		calls = slices.DeleteFunc(calls, func(x judge.Call) bool { return x.Name == "ClusterIP of web" && x.From != c.Host("customer") })
	}
	other, otherDone := c.established(t, p)
	var clients sync.WaitGroup
	for i := range calls {
		clients.Go(func() { c.checkLateAnswer(t, calls[i]) })
	}
	kit.Until(t, "all clients wait", func() bool { return c.opening(t, deaf, p) >= len(calls) })
	c.save(t, web.on(c.Host("web-1"), c.Host("web-4")))
	clients.Wait()
	other.checkSameServer(t)
	otherDone()
}

// extendSCTPTimeout raises the conntrack timeout of an SCTP connection's first packet to
// that of TCP: a client retransmits it only after some seconds.
func (c *cluster) extendSCTPTimeout(t *testing.T) {
	t.Helper()
	const setting = "/proc/sys/net/netfilter/nf_conntrack_sctp_timeout_"
	kit.Must(t, c.Node.Do(func() error {
		return errors.Join(os.WriteFile(setting+"closed", []byte("120"), 0), os.WriteFile(setting+"cookie_wait", []byte("120"), 0))
	}))
}

// checkLateAnswer makes one connection, and requires an answer. The timeout is shorter
// than the kernel's timeout for a first packet, and long enough for retransmissions,
// which come after 1, 3, 7, 15 and 31 seconds.
func (c *cluster) checkLateAnswer(t *testing.T, x judge.Call) {
	q := x.Query()
	q.Timeout = time.Minute
	a, err := x.From.Ask(t.Context(), q)
	kit.Check(t, err == nil && a.Outcome == netlab.Answered,
		"%s: %s, %v; want an answer from an endpoint that came later", x, a.Outcome, err)
}

// established opens connections to another Service, whose endpoints change, too. The
// returned function requires that they go on without their endpoint.
func (c *cluster) established(t *testing.T, p service.Protocol) (conversations, func()) {
	t.Helper()
	cart := app{name: "cart", number: 11}
	c.awaitProgrammed(t, cart.on(c.Host("web-2")))
	all := c.converse(t, p.String(), cart, 1)
	return all, func() {
		t.Helper()
		c.awaitProgrammed(t, cart.on(c.Host("web-1")))
		all.checkSameServer(t)
	}
}

// opening counts the connections to h that it has not answered yet.
func (c *cluster) opening(t *testing.T, h *netlab.Host, p service.Protocol) int {
	t.Helper()
	n := 0
	for _, f := range service.Families {
		kit.Must(t, c.Node.Do(func() error {
			return conntrack.Netlink{}.Dump(t.Context(), conntrack.Filter{Family: f}, func(x conntrack.Flow) {
				if x.Protocol == p && !x.Answered && x.ReplySrc.Addr() == h.Addr(x.ReplySrc.Addr()) {
					n++
				}
			})
		}))
	}
	return n
}
