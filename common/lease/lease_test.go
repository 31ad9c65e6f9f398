// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kubeproxy/test/kit"
)

// node is a Transport in memory.
type node struct {
	mu     sync.Mutex
	holder *name
	// prove is what the proof of a holder tells a client, nil for the rights.
	prove func(*Conn) error
	dials int
}

// name implements Listener.
type name struct {
	node *node
	new  chan *Conn
	gone chan struct{}
	once sync.Once
	fail int // this many calls of Accept first
}

// end is one end of a connection.
type end struct {
	net.Conn
	prove func(*Conn) error
}

func (n *node) Listen() (Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.holder != nil {
		return nil, ErrHeld
	}
	n.holder = &name{node: n, new: make(chan *Conn), gone: make(chan struct{})}
	return n.holder, nil
}

func (n *node) Dial(ctx context.Context) (*Conn, error) { return n.dial(ctx, 1, nil) }

// dial connects as the process with this ID, of whose proof the holder sees prove.
func (n *node) dial(ctx context.Context, pid int, prove func(*Conn) error) (*Conn, error) {
	n.mu.Lock()
	to := n.holder
	n.dials++
	n.mu.Unlock()
	if to == nil {
		return nil, errors.New("nobody listens")
	}
	a, b := net.Pipe()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-to.gone:
		return nil, errors.New("nobody listens any more")
	case to.new <- &Conn{Conn: &end{b, prove}, Peer: Identity{PID: pid}}:
		return &Conn{Conn: &end{a, n.prove}}, nil
	}
}

func (n *node) Authenticate(c *Conn) error {
	if prove := c.Conn.(*end).prove; prove != nil {
		return prove(c)
	}
	c.Trusted = true
	return nil
}

func (n *name) Accept() (*Conn, error) {
	if n.fail > 0 {
		n.fail--
		return nil, errors.New("too many open files")
	}
	select {
	case <-n.gone:
		return nil, net.ErrClosed
	case c := <-n.new:
		return c, nil
	}
}

func (n *name) Close() error {
	n.once.Do(func() {
		close(n.gone)
		n.node.mu.Lock()
		defer n.node.mu.Unlock()
		n.node.holder = nil
	})
	return nil
}

// start runs a Lease until the test's function in a bubble ends.
func start(ctx context.Context, t Transport, mode string) *Lease {
	l := New(t, Identity{Mode: mode})
	go l.Run(ctx, nil)
	return l
}

// holds reports whether l may program the node, once that is decided.
func (l *Lease) holds(ctx context.Context) bool {
	leave, ok := l.Enter(ctx)
	if ok {
		leave()
	}
	return ok
}

// inBubble runs f in a bubble, with a context that ends with f.
func inBubble(t *testing.T, f func(t *testing.T, ctx context.Context)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		f(t, ctx)
		cancel()
		time.Sleep(time.Hour) // whoever waits for a time limit
	})
}

// The holder yields after its round, but does not keep the other side waiting for ever.
func TestYield(t *testing.T) {
	for _, tc := range []struct{ round, want time.Duration }{
		{10 * time.Second, 10 * time.Second},
		{time.Hour, takeTimeout / 2},
	} {
		inBubble(t, func(t *testing.T, ctx context.Context) {
			n := &node{}
			a, b := start(ctx, n, "a"), start(ctx, n, "b")
			leave, ok := a.Enter(ctx)
			kit.Need(t, ok, "the only proxy may not program the node")
			time.AfterFunc(tc.round, leave)
			began := time.Now()
			kit.Check(t, b.holds(ctx) && time.Since(began) == tc.want, "b has the lease after %s, want %s", time.Since(began), tc.want)
			time.Sleep(tc.round)
			kit.Check(t, !a.holds(ctx), "both program the node")
			time.Sleep(time.Minute)
			s := a.State()
			kit.Check(t, s.Standby && s.Holder.Mode == "b" && s.HolderFault == "", "state of a: %+v", s)
			if s := b.State(); len(s.Others) != 1 || s.Others[0].Mode != "a" || s.Fault != "" {
				t.Errorf("state of b: %+v", s)
			}
		})
	}
}

// answers returns a script of a holder: it answers each request with m, after a while.
func answers(m message, after time.Duration) func(net.Conn) {
	return func(c net.Conn) {
		if _, err := receive(c, answerTimeout); err == nil {
			time.Sleep(after)
			_ = send(c, m, answerTimeout)
		}
	}
}

// badHolders have the name of the lease, and do not do what a holder does.
var badHolders = map[string]struct {
	prove  func(*Conn) error
	script func(net.Conn)
	want   string // the Fault of a proxy that starts
	within time.Duration
}{
	"keeps the name":           {nil, answers(message{Yielded: true}, 0), "yields the lease of service proxies, but keeps its name", 3 * time.Second},
	"keeps the name, and slow": {nil, answers(message{Yielded: true}, 20*time.Second), "does not answer", takeTimeout},
	"does not yield":           {nil, answers(message{}, 0), "does not yield", time.Second},
	"hangs":                    {nil, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }, "does not answer", takeTimeout + answerTimeout},
	"hangs at once":            {func(c *Conn) error { _, err := c.Read(make([]byte, 1)); return err }, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }, "does not answer", answerTimeout},
	"closes":                   {nil, func(net.Conn) {}, "holder of the lease has gone", 3 * time.Second},
	"proves nothing":           {func(*Conn) error { return nil }, answers(message{Yielded: true}, 0), "process that may not program this node", time.Second},
	"of another version":       {func(*Conn) error { return ErrProtocol }, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }, "another version", time.Second},
	"answers nonsense":         {nil, func(c net.Conn) { answers(message{}, 0)(&corrupt{c}) }, "holder of the lease has gone", 3 * time.Second},
}

// corrupt is a connection on which lengths of messages arrive as 0.
type corrupt struct{ net.Conn }

func (c *corrupt) Write(b []byte) (int, error) {
	clear(b[:4])
	return c.Conn.Write(b)
}

// serve has script answer all connections to the name l.
func serve(l Listener, script func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			script(c)
		}()
	}
}

// A proxy that starts goes on programming the node after a bounded time and number of
// requests, says why, and takes the lease when the other one has gone.
func TestBadHolder(t *testing.T) {
	for name, bad := range badHolders {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				n := &node{prove: bad.prove}
				held, _ := n.Listen()
				go serve(held, bad.script)
				p, began := start(ctx, n, "p"), time.Now()
				kit.Check(t, p.holds(ctx) && time.Since(began) <= bad.within, "programs the node after %s, want %s", time.Since(began), bad.within)
				s := p.State()
				kit.Check(t, !s.Standby && strings.Contains(s.Fault, bad.want), "state %+v, want fault %q", s, bad.want)
				kit.Check(t, n.dials <= takeTries, "asked %d times, want %d at most", n.dials, takeTries)
				n.mu.Lock()
				n.prove = func(*Conn) error { return ErrProtocol } // another fault
				n.mu.Unlock()
				time.Sleep(retryInterval + takeTimeout + time.Second)
				if s := p.State(); !strings.Contains(s.Fault, "another version") || !p.holds(ctx) {
					t.Errorf("state %+v after a change of the holder", s)
				}
				_ = held.Close()
				time.Sleep(retryInterval + time.Second)
				if s := p.State(); s.Fault != "" || n.holder == nil || !p.holds(ctx) {
					t.Errorf("state %+v without the other process", s)
				}
			})
		})
	}
}

// A standby does not wait for ever either for a process that took the lease with rights
// and then does not do what a holder does.
func TestStandbyOfBadHolder(t *testing.T) {
	for name, bad := range badHolders {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				n := &node{}
				a, thief := start(ctx, n, "a"), New(n, Identity{})
				kit.Need(t, a.holds(ctx), "the only proxy may not program the node")
				c, m, err := thief.request(ctx, requestTake, takeTimeout)
				kit.Need(t, err == nil && m.Yielded, "take: %+v, %v", m, err)
				defer c.Close()
				held, err := n.Listen()
				kit.Must(t, err)
				defer held.Close()
				n.prove = bad.prove
				go serve(held, bad.script)
				time.Sleep(watchTries*(heartbeatTimeout+answerTimeout) + time.Minute)
				s := a.State()
				kit.Check(t, !s.Standby && s.Fault != "" && a.holds(ctx), "state %+v", s)
			})
		})
	}
}

// A standby says that the holder's rules are not in force, and when they are again.
func TestHolderFault(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		n := &node{}
		a, b := start(ctx, n, "a"), New(n, Identity{Mode: "b"})
		var mu sync.Mutex
		fault := "IPv4: a change waits"
		b.Fault = func() string {
			mu.Lock()
			defer mu.Unlock()
			return fault
		}
		go b.Run(ctx, nil)
		kit.Need(t, a.holds(ctx) && b.holds(ctx), "no lease")
		time.Sleep(heartbeatTimeout - heartbeat)
		s := a.State()
		kit.Check(t, s.Standby && s.HolderFault == "", "state %+v while the holder starts", s)
		time.Sleep(3 * heartbeat)
		if s := a.State(); s.HolderFault != "IPv4: a change waits" {
			t.Errorf("state %+v", s)
		}
		mu.Lock()
		fault = ""
		mu.Unlock()
		time.Sleep(2 * heartbeat)
		if s := a.State(); !s.Standby || s.HolderFault != "" {
			t.Errorf("state %+v with the rules in force", s)
		}
	})
}

// A holder shows a process that asks as another version does, for as long as it asks.
func TestStranger(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		n := &node{}
		a := start(ctx, n, "a")
		kit.Need(t, a.holds(ctx), "no lease")
		for range 4 {
			c, err := n.dial(ctx, 7, func(*Conn) error { return ErrProtocol })
			kit.Must(t, err)
			defer c.Close()
			time.Sleep(retryInterval)
			s := a.State()
			kit.Need(t, strings.Contains(s.Fault, "process 7 asks for the lease of service proxies, but it is of another version"), "state %+v", s)
		}
		time.Sleep(3 * retryInterval)
		s := a.State()
		kit.Check(t, s.Fault == "" && a.holds(ctx), "state %+v when it is gone", s)
	})
}

// A holder shows as others only proxies that stand by with rights: neither whoever asks who
// holds the lease, nor who asks to stand by without rights. Those get one answer.
func TestOthers(t *testing.T) {
	for name, tc := range map[string]struct {
		prove   func(*Conn) error
		ask     string
		answers int // within a minute
		others  int
	}{
		"stands by":                {nil, requestWatch, 21, 1},
		"asks":                     {nil, requestIdentity, 1, 0},
		"stands by without rights": {func(*Conn) error { return nil }, requestWatch, 1, 0},
		"takes without rights":     {func(*Conn) error { return nil }, requestTake, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				n := &node{}
				a := start(ctx, n, "a")
				kit.Need(t, a.holds(ctx), "no lease")
				c, err := n.dial(ctx, 7, tc.prove)
				kit.Must(t, err)
				defer c.Close()
				kit.Must(t, send(c, message{Request: tc.ask}, answerTimeout))
				answers := 0
				for end := time.Now().Add(time.Minute); time.Now().Before(end); answers++ {
					if _, err := receive(c, 2*heartbeat); err != nil {
						break
					}
					s := a.State()
					kit.Need(t, len(s.Others) == tc.others && !s.Standby, "state %+v, want %d others", s, tc.others)
				}
				kit.Check(t, answers == tc.answers, "%d answers, want %d", answers, tc.answers)
			})
		})
	}
}

// Connections that send nothing take no place from a proxy, and neither do failures of
// accept(2).
func TestFlood(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		n := &node{}
		held, _ := n.Listen()
		held.(*name).fail = 3
		a := New(n, Identity{Mode: "a"})
		go a.hold(ctx, held)
		mute := func(c *Conn) error { _, err := c.Read(make([]byte, 1)); return err }
		slow, err := n.dial(ctx, 2, mute)
		kit.Must(t, err)
		defer slow.Close()
		for range 10 * maxUnproven {
			c, err := n.dial(ctx, 1, mute)
			kit.Must(t, err)
			defer c.Close()
		}
		if who, err := QueryHolder(ctx, n); err != nil || who.Mode != "a" {
			t.Errorf("the holder is %+v, %v", who, err)
		}
		_ = slow.SetReadDeadline(time.Now().Add(time.Millisecond))
		if _, err := slow.Read(make([]byte, 1)); errors.Is(err, net.ErrClosed) || err != nil && !strings.Contains(err.Error(), "timeout") {
			t.Errorf("the one of another process lost its place: %v", err)
		}
	})
}

// What another process says about itself moves no cursor and fills no log.
func TestIdentity(t *testing.T) {
	long := strings.Repeat("x", 300)
	for _, tc := range []struct {
		said, system Identity
		want         string
	}{
		{Identity{}, Identity{}, "process of unknown number"},
		{Identity{OwnPID: 7}, Identity{}, "process 7 of another container"},
		{Identity{PID: 6, OwnPID: 7, Command: "said"}, Identity{PID: 8, Command: "true"}, "process 8 (true)"},
		{Identity{Command: "a\x1b[2J\nb\u202e", Mode: "m\r"}, Identity{PID: 8}, "process 8 (a [2J b), mode m"},
		{Identity{Command: long}, Identity{PID: 8}, "process 8 (" + long[:maxText] + " ...)"},
		{Identity{Pod: "web", Container: "0123456789abcdef"}, Identity{PID: 8}, "process 8, pod web, container 0123456789ab"},
		{Identity{Container: "short"}, Identity{PID: 8}, "process 8, container short"},
	} {
		kit.Equal(t, tc.said.mergedWith(tc.system).String(), tc.want, "%+v, %+v", tc.said, tc.system)
	}
}

// A message that is too long or no JSON is refused; its texts are made safe.
func TestMessage(t *testing.T) {
	for text, want := range map[string]string{
		"\x00\x00\x00\x05{\"a\"}":                                   "decode a message",
		"\x7f\xff\xff\xff{}":                                        "more than 8192",
		"\x00\x00\x00\x18{\"fault\":\"a\\u001b[2J b\"}":             "<nil> a [2J b",
		"\x00\x00\x00\x1f{\"identity\":{\"command\":\"a\\tb\"}}   ": "<nil> (a b)",
		"\x00\x00": "EOF",
	} {
		a, b := net.Pipe()
		go func() {
			_, _ = a.Write([]byte(text))
			_ = a.Close()
		}()
		m, err := receive(b, time.Minute)
		if got := fmt.Sprint(err, " ", m.Fault, m.Identity); !strings.Contains(got, strings.Split(want, " ")[0]) || !strings.Contains(got, strings.TrimPrefix(want, "<nil> ")) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
