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
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// SilenceTimeout is how long to wait, as Query.Timeout, for an answer that is not
// expected. In a lab an answer takes about a millisecond.
const SilenceTimeout = 300 * time.Millisecond

// DefaultTimeout is the timeout of a Query that names none: long enough for a busy
// machine, since only a fault makes anybody wait for it. Over SCTP, which sends
// the first packet of a connection again after three seconds, an answer may take
// longer than that: IPVS drops the first one from a port that the client used a
// moment ago, and forgets the old connection.
const DefaultTimeout = 15 * time.Second

// Query is one question to an echo server.
type Query struct {
	Proto string // "tcp", "udp" or, where SCTP reports true, "sctp"
	To    netip.AddrPort
	// From is the client's own address. A zero address leaves the choice to the
	// kernel; with a zero port it is one that has been out of use for long.
	From    netip.AddrPort
	Timeout time.Duration // 0 means Patience
}

// Outcome is what became of a Query.
type Outcome uint8

// What may become of a Query.
const (
	Answered    Outcome = iota
	Refused             // TCP reset, or ICMP port unreachable
	TimedOut            // nothing came back
	Unreachable         // ICMP: no route, or prohibited
	Broken              // the connection was made, and ended before the answer
)

// String returns the word for o.
func (o Outcome) String() string {
	return [...]string{"answered", "refused", "timed out", "unreachable", "broken"}[o]
}

// Answer is what came of a Query. Only an Answered one has a Backend, At and
// Client.
type Answer struct {
	Outcome Outcome
	Backend string         // name of the server
	At      netip.AddrPort // the server's own address
	Client  netip.AddrPort // the client, as the server saw it
	From    netip.AddrPort // the client's own address, invalid if it had none yet
	Took    time.Duration
}

// Masqueraded reports that the server saw another address than the client's.
func (a Answer) Masqueraded() bool {
	return a.Outcome == Answered && a.Client.Addr() != a.From.Addr()
}

// Ask puts one question from h. It returns an error only for what is neither
// an answer nor one of the other outcomes.
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

// Conn is an open conversation with an echo server. For UDP it is a socket
// that keeps its source port.
type Conn struct {
	conn    net.Conn
	lines   *bufio.Reader
	timeout time.Duration

	mu   sync.Mutex // guards conversation
	asks int
}

// Open connects as q says. The Answer is Answered and Conn set if that went
// well; nobody was asked yet, so the Answer has no Backend.
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

// The ports that clients get are away from those of servers and NodePorts.
const firstPort, lastPort = 33000, 65000

// connect gives each client the port that has been out of use for longest. What
// the system would choose may be the port of an earlier client, and with it a
// flow that the kernel or a relay still knows: for one destination it goes on
// where the last client stopped, in whichever namespace that was. A client of its
// own host never has the port that it asks, for it would talk to itself.
func (h *Host) connect(ctx context.Context, q Query) (net.Conn, error) {
	if q.From.Port() != 0 {
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

// Ask sends one line and waits for the answer, as long as the Query says.
func (c *Conn) Ask(ctx context.Context) (Answer, error) { return c.AskFor(ctx, c.timeout) }

// AskFor is Ask with a timeout of its own: Silence where no answer is expected.
// Over TCP nothing can be asked after a timeout.
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

// acknowledge sends at once what TCP would send 40 ms after an answer, so that
// nothing of the conversation is under way while nothing is asked: it would be
// refused where somebody has just unhooked the kernel's translation.
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

// errBroken is the end of a connection that had been made.
var errBroken = errors.New("connection broken")

// broken tells the end of a connection from the refusal of one, which for UDP
// comes with the first reading.
func (c *Conn) broken(err error) error {
	if !c.udp() && !errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%w: %w", errBroken, err)
	}
	return err
}

// discarded reports that a rule of the client's own host stopped the packet,
// which the writer of a UDP packet is told. Whether the rule answers with a
// refusal or with silence the reading shows, as it does for packets that are
// stopped on the way.
func (c *Conn) discarded(err error) bool { return c.udp() && errors.Is(err, unix.EPERM) }

func (c *Conn) udp() bool { return c.conn.LocalAddr().Network() == "udp" }

func (c *Conn) from() netip.AddrPort {
	// What the net package prints for a connected socket it can parse.
	from, _ := netip.ParseAddrPort(c.conn.LocalAddr().String())
	return from
}

// Close ends the conversation. TCP and SCTP are reset, so that thousands of clients
// leave no waiting sockets behind.
func (c *Conn) Close() error {
	if tcp, ok := c.conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	return c.conn.Close()
}

// outcome sorts errors of the network into outcomes; others, and the end of
// ctx, stay errors.
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
