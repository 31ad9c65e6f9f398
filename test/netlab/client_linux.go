// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// SilenceTimeout is the Query.Timeout for a request that expects no answer. In a lab an
// answer takes about a millisecond.
const SilenceTimeout = 300 * time.Millisecond

// DefaultTimeout is the timeout of a Query that sets none. It is long enough for a busy
// machine, as only a fault waits for its end. Over SCTP an answer may take longer than
// three seconds. IPVS drops the first packet from a port that the client used a moment
// ago and removes the old connection (kernel: net/netfilter/ipvs/ip_vs_core.c,
// is_new_conn_expected), and SCTP retransmits that packet after three seconds, see
// rto_initial in https://docs.kernel.org/networking/ip-sysctl.html
const DefaultTimeout = 15 * time.Second

// Query is one request to an echo server.
type Query struct {
	Proto string // "tcp", "udp" or, where SCTP reports true, "sctp"
	To    netip.AddrPort
	// From is the client's own address. For a zero address the kernel selects one. For a
	// zero port, the lab selects one that has long been unused.
	From netip.AddrPort
	// Unbound has the kernel select the port when the socket connects. A port that the lab
	// selects binds the socket before, which socket acceleration leaves alone.
	Unbound bool
	Timeout time.Duration // 0 means DefaultTimeout
}

// Outcome is the result of a Query.
type Outcome uint8

// The outcomes of a Query.
const (
	Answered    Outcome = iota
	Refused             // TCP reset, or ICMP port unreachable
	TimedOut            // nothing came back
	Unreachable         // ICMP: no route, or prohibited
	Broken              // the connection was established, and ended before the answer
)

// String returns the word for o.
func (o Outcome) String() string {
	return [...]string{"answered", "refused", "timed out", "unreachable", "broken"}[o]
}

// Answer is the result of a Query. Only an Answered one has a Backend, At and Client.
type Answer struct {
	Outcome Outcome
	Backend string         // name of the server
	At      netip.AddrPort // the server's own address
	Client  netip.AddrPort // the client, as the server saw it
	From    netip.AddrPort // the client's own address, invalid if it had none yet
	Took    time.Duration
}

// Masqueraded returns whether the server saw another address than the client's.
func (a Answer) Masqueraded() bool { return a.Outcome == Answered && a.Client.Addr() != a.From.Addr() }

// Ask sends one request from h. It returns an error only for a result that is neither an
// answer nor one of the other outcomes.
func (h *Host) Ask(ctx context.Context, q Query) (Answer, error) {
	c, opened, err := h.Open(ctx, q)
	if err != nil || opened.Outcome != Answered {
		return opened, err
	}
	defer c.Close()
	a, err := c.Ask(ctx)
	a.Took += opened.Took
	return a, err
}

// Conn is an open connection to an echo server. For UDP it is a socket that keeps its
// source port.
type Conn struct {
	conn    net.Conn
	lines   *bufio.Reader
	timeout time.Duration

	mu   sync.Mutex // serializes requests
	asks int
}

// Open connects as q describes. On success the Answer is Answered and Conn is set. No
// request was sent yet, so the Answer has no Backend.
func (h *Host) Open(ctx context.Context, q Query) (*Conn, Answer, error) {
	start := time.Now()
	q.Timeout = cmp.Or(q.Timeout, DefaultTimeout)
	conn, err := h.connect(ctx, q)
	if errors.Is(err, errProto) {
		return nil, Answer{}, err
	}
	if err != nil {
		a, err := outcome(ctx, err)
		a.Took = time.Since(start)
		return nil, a, err
	}
	c := &Conn{conn: conn, lines: bufio.NewReader(conn), timeout: q.Timeout}
	return c, Answer{From: c.from(), Took: time.Since(start)}, nil
}

var errProto = errors.New("must be tcp, udp or sctp")

// firstPort and lastPort are the range of client ports. It is apart from the ports of
// servers and NodePorts.
const firstPort, lastPort = 33000, 65000

// connect gives each client the port that has been unused for longest. The system might
// select the port of an earlier client, and with it a flow that the kernel or a relay
// still knows: per destination, the kernel continues after the last port, whichever
// namespace used it (kernel: net/ipv4/inet_hashtables.c, __inet_hash_connect). A client
// on the server's own host never gets the port that it dials, as it would connect to
// itself.
func (h *Host) connect(ctx context.Context, q Query) (net.Conn, error) {
	if q.Proto == "tcp" && h.cgroup != nil && slices.ContainsFunc(h.unbound, func(p netip.Prefix) bool { return p.Contains(q.To.Addr()) }) {
		q.Unbound = true
		if !q.From.Addr().IsValid() {
			q.From = netip.AddrPort{}
		}
	}
	if q.From.Port() != 0 || q.Unbound {
		return h.connectFrom(ctx, q)
	}
	from := q.From.Addr()
	for n := firstPort; ; n++ {
		port := firstPort + (h.ports.Add(1)-1)%(lastPort-firstPort+1)
		if uint16(port) == q.To.Port() {
			continue
		}
		q.From = netip.AddrPortFrom(from, uint16(port))
		conn, err := h.connectFrom(ctx, q)
		if !errors.Is(err, unix.EADDRINUSE) || n == lastPort {
			return conn, err
		}
	}
}

func (h *Host) connectFrom(ctx context.Context, q Query) (net.Conn, error) {
	switch q.Proto {
	case "tcp", "udp":
		return h.dial(ctx, dialer(q), q.Proto, q.To.String())
	case "sctp":
		return h.dialSCTP(ctx, q)
	}
	return nil, fmt.Errorf("protocol %q: %w", q.Proto, errProto)
}

func dialer(q Query) *net.Dialer {
	d := &net.Dialer{Timeout: q.Timeout}
	from := q.From
	if from.Port() != 0 && !from.Addr().IsValid() {
		from = netip.AddrPortFrom(netip.IPv6Unspecified(), from.Port())
		if q.To.Addr().Is4() {
			from = netip.AddrPortFrom(netip.IPv4Unspecified(), from.Port())
		}
	}
	switch {
	case from.Addr().IsValid() && q.Proto == "tcp":
		d.LocalAddr = net.TCPAddrFromAddrPort(from)
	case from.Addr().IsValid():
		d.LocalAddr = net.UDPAddrFromAddrPort(from)
	}
	return d
}

// Ask sends one line and waits for the answer until the timeout of the Query.
func (c *Conn) Ask(ctx context.Context) (Answer, error) { return c.AskFor(ctx, c.timeout) }

// AskFor is Ask with a timeout of its own: SilenceTimeout if no answer is expected. A TCP
// Conn cannot be used after a timeout.
func (c *Conn) AskFor(ctx context.Context, timeout time.Duration) (Answer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	start := time.Now()
	if err := c.conn.SetDeadline(start.Add(timeout)); err != nil {
		return Answer{}, fmt.Errorf("set deadline: %w", err)
	}
	c.asks++
	a, err := c.exchange(ctx, strconv.Itoa(c.asks))
	if err != nil {
		a, err = outcome(ctx, err)
	}
	a.From, a.Took = c.from(), time.Since(start)
	c.acknowledge()
	return a, err
}

// acknowledge sends at once the acknowledgement that TCP delays by 40 ms after an answer.
// Then no packet of the connection is under way between requests. Such a packet would be
// refused if the kernel's translation has just been unhooked. See TCP_QUICKACK in tcp(7).
func (c *Conn) acknowledge() {
	tcp, ok := c.conn.(*net.TCPConn)
	if !ok {
		return
	}
	if raw, err := tcp.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1) })
	}
}

func (c *Conn) exchange(ctx context.Context, request string) (Answer, error) {
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := io.WriteString(c.conn, request+"\n"); err != nil && !c.discarded(err) {
		return Answer{}, c.broken(err)
	}
	for {
		line, err := c.lines.ReadString('\n')
		if err != nil {
			return Answer{}, c.broken(err)
		}
		a, err := parseAnswer(request, line)
		if err != nil && c.udp() && !strings.HasPrefix(line, request+" ") {
			continue // late, to an earlier request that was given up
		}
		return a, err
	}
}

// errBroken is the end of an established connection.
var errBroken = errors.New("connection broken")

// broken distinguishes the end of a connection from a refusal, which UDP reports with the
// first read.
func (c *Conn) broken(err error) error {
	if !c.udp() && !errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%w: %w", errBroken, err)
	}
	return err
}

// discarded returns whether a rule of the client's own host dropped the packet. The
// kernel reports EPERM to the writer of a UDP packet (kernel: net/netfilter/core.c,
// nf_hook_slow). The read shows whether the rule also sends a refusal, as for packets
// that are stopped on the way.
func (c *Conn) discarded(err error) bool { return c.udp() && errors.Is(err, unix.EPERM) }
func (c *Conn) udp() bool                { return c.conn.LocalAddr().Network() == "udp" }

func (c *Conn) from() netip.AddrPort {
	// The net package prints an address that can be parsed for a connected socket.
	from, _ := netip.ParseAddrPort(c.conn.LocalAddr().String())
	return from
}

// Close closes the connection. TCP and SCTP are reset, so that thousands of clients leave
// no sockets in TIME_WAIT. See SO_LINGER in socket(7).
func (c *Conn) Close() error {
	if tcp, ok := c.conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	return c.conn.Close()
}

// outcome converts network errors to outcomes. Other errors, and the end of ctx, stay
// errors.
func outcome(ctx context.Context, err error) (Answer, error) {
	var timeout net.Error
	switch {
	case ctx.Err() != nil:
		return Answer{}, ctx.Err()
	case errors.Is(err, errBroken), errors.Is(err, unix.ECONNRESET): // reset while it waited to be accepted
		return Answer{Outcome: Broken}, nil
	case errors.Is(err, unix.ECONNREFUSED):
		return Answer{Outcome: Refused}, nil
	case errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EACCES):
		return Answer{Outcome: Unreachable}, nil
	case errors.As(err, &timeout) && timeout.Timeout():
		return Answer{Outcome: TimedOut}, nil
	}
	return Answer{}, err
}

const (
	lanName     = "lan"
	lanBridge   = "br-lan"
	gatewayName = "gateway"
	maxHosts    = 80 // keeps the last numbers of clients below 180
)

// sysctls are set in each namespace before it has any interface. They are written even if
// they are the kernel's defaults: some distributions change them, and a new namespace may
// inherit them.
var sysctls = []struct{ name, value string }{
	{"net/ipv4/conf/all/rp_filter", "2"},
	{"net/ipv4/conf/default/rp_filter", "2"},
	{"net/ipv4/conf/all/accept_redirects", "0"},
	{"net/ipv4/conf/default/accept_redirects", "0"},
	{"net/ipv4/conf/all/send_redirects", "0"},
	{"net/ipv4/conf/default/send_redirects", "0"},
	{"net/ipv6/conf/all/disable_ipv6", "0"},
	{"net/ipv6/conf/default/disable_ipv6", "0"},
	{"net/ipv6/conf/all/accept_redirects", "0"},
	{"net/ipv6/conf/default/accept_redirects", "0"},
	{"net/ipv6/conf/default/accept_ra", "0"},
	{"net/ipv6/conf/default/accept_dad", "0"},
	// A refusal of UDP is an ICMP message. A test may cause many in a second, and each
	// must arrive. The masks select the ICMP types that are rate limited, per destination
	// and for the whole system: here none, and one that is no error. See icmp_ratemask in
	// https://docs.kernel.org/networking/ip-sysctl.html
	{"net/ipv4/icmp_ratemask", "0"},
	{"net/ipv6/icmp/ratemask", "128"},
	// A load opens many thousand connections from one address. NodePorts and the ports of
	// the proxy itself, 10249 and 10256, are below the range, and so are all others that
	// a test may listen on. Reserving them within the range would be slow: every
	// twentieth connection would search for the first port behind them, one after the
	// other.
	{"net/ipv4/ip_local_port_range", fmt.Sprintf("%d %d", firstPort, lastPort)},
}

// routing makes a namespace forward.
var routing = []struct{ name, value string }{
	{"net/ipv4/ip_forward", "1"},
	{"net/ipv6/conf/all/forwarding", "1"},
}

// defaultRoutes are the destinations of default routes.
var defaultRoutes = []netip.Prefix{
	netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0),
}

func (h *Host) setSysctls(list []struct{ name, value string }) error {
	return h.Do(func() error {
		for _, s := range list {
			if err := os.WriteFile("/proc/sys/"+s.name, []byte(s.value), 0); err != nil {
				return fmt.Errorf("set sysctl %s=%s: %w", s.name, s.value, err)
			}
		}
		return nil
	})
}

// addHost creates a namespace with only a loopback interface.
func (l *Lab) addHost(name string) (*Host, error) {
	h, err := newHost(name)
	if err != nil {
		return nil, fmt.Errorf("make namespace of %s: %w", name, err)
	}
	l.hosts[name] = h
	if err := h.setSysctls(sysctls); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return h, h.linkUp("lo")
}

// addLANHost creates a namespace on the LAN.
func (l *Lab) addLANHost(name string, number int) (*Host, error) {
	h, err := l.addHost(name)
	if err != nil {
		return nil, err
	}
	h.IPv4 = netip.AddrFrom4([4]byte{192, 0, 2, byte(number)})
	h.IPv6 = netip.MustParseAddr(fmt.Sprintf("2001:db8:2::%d", number))
	port, err := l.lan.addPair("lan-"+name, h, "eth0")
	if err != nil {
		return nil, err
	}
	if err := l.lan.plug(port, lanBridge); err != nil {
		return nil, err
	}
	return h, h.addAddrs("eth0", lanPrefixes(h))
}

// addNode creates a router on the LAN.
func (l *Lab) addNode(name string, number int) (*Host, error) {
	h, err := l.addLANHost(name, number)
	if err != nil {
		return nil, err
	}
	return h, h.setSysctls(routing)
}

// addRouter creates a node without pods.
func (l *Lab) addRouter(name string, number int) error {
	h, err := l.addNode(name, number)
	if err != nil {
		return err
	}
	return errors.Join(h.addRoutes(podPrefixes(1), l.Node), h.addRoutes(podPrefixes(2), l.Other), h.addDefault(l.gateway))
}

// addClient creates a host outside the cluster with a default route to node-a. It reaches
// the pods of node-b directly, as their answers take the direct route.
func (l *Lab) addClient(name string, number int) error {
	h, err := l.addLANHost(name, number)
	if err != nil {
		return err
	}
	if err := h.addDefault(l.Node); err != nil {
		return err
	}
	return h.addRoutes(podPrefixes(2), l.Other)
}

// connectNodes gives each node, and the gateway, routes to the nodes' pods, and default
// routes as in the package comment.
func (l *Lab) connectNodes() error {
	for _, r := range []struct {
		from, via *Host
		net       int
	}{{l.Node, l.Other, 2}, {l.Other, l.Node, 1}, {l.gateway, l.Node, 1}, {l.gateway, l.Other, 2}} {
		if err := r.from.addRoutes(podPrefixes(r.net), r.via); err != nil {
			return err
		}
	}
	if err := l.Node.addDefault(l.gateway); err != nil {
		return err
	}
	if err := l.Other.addDefault(l.Node); err != nil {
		return err
	}
	return l.gateway.prohibitRest(l.Other)
}

// prohibitRest answers all packets that it should forward with an ICMP message. A
// prohibit route would do the same, but only about once a second (kernel: ip_error in
// net/ipv4/route.c).
func (h *Host) prohibitRest(anywhere *Host) error {
	conn, err := nftables.New(nftables.WithNetNSFd(int(h.ns)))
	if err != nil {
		return fmt.Errorf("%s: open nftables: %w", h.Name, err)
	}
	table := conn.AddTable(&nftables.Table{Name: "gateway", Family: nftables.TableFamilyINet})
	chain := conn.AddChain(&nftables.Chain{
		Name: "forward", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter,
	})
	conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED},
	}})
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("%s: add nftables rule: %w", h.Name, err)
	}
	// A packet without a route would not reach the rule.
	return h.addDefault(anywhere)
}

// pod describes the place of a pod: its node, the number net of that node's pod network,
// and a bridge, which may be empty.
type pod struct {
	name   string
	node   *Host
	net    int
	bridge string
}

// addPod creates a pod with a single address per family, no on-link prefix and one route,
// to the node. CNI plugins that route do the same, so that all its traffic passes the
// node's rules.
func (l *Lab) addPod(p pod, number int) error {
	h, err := l.addHost(p.name)
	if err != nil {
		return err
	}
	h.IPv4 = netip.AddrFrom4([4]byte{10, 244, byte(p.net), byte(number)})
	h.IPv6 = netip.MustParseAddr(fmt.Sprintf("fd00:10:244:%d::%d", p.net, number))
	port, err := p.node.addPair("veth-"+p.name, h, "eth0")
	if err != nil {
		return err
	}
	gateway := podGateway(p.net)
	dev := port.Attrs().Name
	if p.bridge != "" {
		dev = p.bridge
		err = p.node.plugPod(port, p.bridge)
	} else {
		err = p.node.addAddrs(dev, singles(gateway))
	}
	if err != nil {
		return err
	}
	if err := h.addAddrs("eth0", singles(h)); err != nil {
		return err
	}
	if err := p.node.addLinkRoutes(dev, singles(h)); err != nil {
		return err
	}
	if err := h.addLinkRoutes("eth0", singles(gateway)); err != nil {
		return err
	}
	return h.addDefault(gateway)
}

// podGateway holds the addresses of the node's end of every pod's link.
func podGateway(net int) *Host {
	return &Host{
		Name: "pod gateway",
		IPv4: netip.AddrFrom4([4]byte{10, 244, byte(net), 1}),
		IPv6: netip.MustParseAddr(fmt.Sprintf("fd00:10:244:%d::1", net)),
	}
}

func podPrefixes(net int) []netip.Prefix {
	gw := podGateway(net)
	return []netip.Prefix{netip.PrefixFrom(gw.IPv4, 24).Masked(), netip.PrefixFrom(gw.IPv6, 64).Masked()}
}

func lanPrefixes(h *Host) []netip.Prefix {
	return []netip.Prefix{netip.PrefixFrom(h.IPv4, 24), netip.PrefixFrom(h.IPv6, 64)}
}

// singles returns h's addresses as prefixes of a single address.
func singles(h *Host) []netip.Prefix {
	return []netip.Prefix{netip.PrefixFrom(h.IPv4, 32), netip.PrefixFrom(h.IPv6, 128)}
}

// Load opens connections continuously. It sends one request on each, closes it and counts
// the result.
type Load struct {
	host      *Host
	query     Query
	pause     time.Duration
	ctx       context.Context
	cancel    context.CancelFunc
	remaining chan struct{} // a token for each connection left to open; nil for no limit
	done      sync.WaitGroup

	mu     sync.Mutex
	report Report
}

// LoadConfig configures a Load.
type LoadConfig struct {
	Query   Query
	Workers int // how many connect in parallel
	Total   int // how many connections in all; 0 means until Stop
	// Pause is the pause of each worker between two connections. It leaves computing time
	// of a small machine to others.
	Pause time.Duration
}

// Report counts the results of a Load.
type Report struct {
	Connections int
	Outcomes    map[Outcome]int
	Backends    map[string]*Seen // by name
	Errors      []error          // at most ten, of failures that are no outcome
	Losses      []Loss           // at most ten, of connections that were not answered
}

// Loss is a connection without an answer.
type Loss struct {
	Asked time.Time
	From  netip.AddrPort // invalid if there was none yet
	Outcome
}

// Seen holds when a backend answered.
type Seen struct {
	Count       int
	First, Last time.Time
	LastAt      int // number of the last connection that it answered, from 1
}

// Lost returns the number of connections without an answer.
func (r Report) Lost() int { return r.Connections - r.Outcomes[Answered] }

// String returns the counts in one line.
func (r Report) String() string {
	parts := []string{fmt.Sprintf("%d connections", r.Connections)}
	for _, o := range slices.Sorted(maps.Keys(r.Outcomes)) {
		parts = append(parts, fmt.Sprintf("%d %s", r.Outcomes[o], o))
	}
	for _, name := range slices.Sorted(maps.Keys(r.Backends)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, r.Backends[name].Count))
	}
	for _, x := range r.Losses {
		parts = append(parts, fmt.Sprintf("%s at %s from %s", x.Outcome, x.Asked.Format("15:04:05.000"), x.From))
	}
	for _, err := range r.Errors {
		parts = append(parts, err.Error())
	}
	return strings.Join(parts, ", ")
}

// Load starts a load from h. It runs until it is stopped, has opened the configured
// number of connections, or ctx ends.
func (h *Host) Load(ctx context.Context, cfg LoadConfig) *Load {
	l := &Load{host: h, query: cfg.Query, pause: cfg.Pause}
	l.report = Report{Outcomes: map[Outcome]int{}, Backends: map[string]*Seen{}}
	l.ctx, l.cancel = context.WithCancel(ctx)
	if cfg.Total > 0 {
		l.remaining = make(chan struct{}, cfg.Total)
		for range cfg.Total {
			l.remaining <- struct{}{}
		}
		close(l.remaining)
	}
	for range max(cfg.Workers, 1) {
		l.done.Go(l.work)
	}
	h.atClose(func() error {
		l.Stop()
		return nil
	})
	return l
}

func (l *Load) work() {
	for l.ctx.Err() == nil {
		if l.remaining != nil {
			if _, more := <-l.remaining; !more {
				return
			}
		}
		// The end of the load does not cut off the last request, so that it is not
		// counted as lost.
		asked := time.Now()
		a, err := l.host.Ask(context.WithoutCancel(l.ctx), l.query)
		l.count(asked, a, err)
		l.sleep()
	}
}

func (l *Load) sleep() {
	if l.pause == 0 {
		return
	}
	select {
	case <-l.ctx.Done():
	case <-time.After(l.pause):
	}
}

func (l *Load) count(asked time.Time, a Answer, err error) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	r := &l.report
	r.Connections++
	if err != nil {
		if len(r.Errors) < 10 {
			r.Errors = append(r.Errors, err)
		}
		return
	}
	r.Outcomes[a.Outcome]++
	if a.Outcome != Answered {
		if len(r.Losses) < 10 {
			r.Losses = append(r.Losses, Loss{asked, a.From, a.Outcome})
		}
		return
	}
	s := r.Backends[a.Backend]
	if s == nil {
		s = &Seen{First: now}
		r.Backends[a.Backend] = s
	}
	s.Count++
	s.Last, s.LastAt = now, r.Connections
}

// Report returns the counts so far.
func (l *Load) Report() Report {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.report
	r.Outcomes = maps.Clone(r.Outcomes)
	r.Errors, r.Losses = slices.Clone(r.Errors), slices.Clone(r.Losses)
	r.Backends = make(map[string]*Seen, len(l.report.Backends))
	for name, s := range l.report.Backends {
		seen := *s
		r.Backends[name] = &seen
	}
	return r
}

// Wait waits until every connection has been opened and returns the counts. A load
// without a Total ends only with Stop.
func (l *Load) Wait() Report {
	l.done.Wait()
	l.cancel()
	return l.Report()
}

// Stop ends the load and returns the counts.
func (l *Load) Stop() Report {
	l.cancel()
	return l.Wait()
}
