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
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

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
func (a Answer) Masqueraded() bool {
	return a.Outcome == Answered && a.Client.Addr() != a.From.Addr()
}

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

func (c *Conn) udp() bool { return c.conn.LocalAddr().Network() == "udp" }

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
