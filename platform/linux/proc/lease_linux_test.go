// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/common/lease"
	"kubeproxy/test/kit"
)

// proxy is one participant of a lease.
type proxy struct {
	*lease.Lease
	end   context.CancelFunc
	ended chan struct{}
	state atomic.Pointer[lease.State]
}

func start(t *testing.T, s Socket, mode string) *proxy {
	t.Helper()
	p := &proxy{ended: make(chan struct{})}
	p.state.Store(&lease.State{})
	who := Self()
	who.Mode = mode
	p.Lease = lease.New(s, who)
	ctx, cancel := context.WithCancel(t.Context())
	p.end = func() {
		cancel()
		<-p.ended
	}
	go func() {
		defer close(p.ended)
		p.Run(ctx, func(x lease.State) { p.state.Store(&x) })
	}()
	t.Cleanup(p.end)
	return p
}

func (p *proxy) holdsLease(t *testing.T) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	leave, ok := p.Enter(ctx)
	if ok {
		leave()
	}
	return ok
}

func socket(t *testing.T) Socket {
	return Socket{Name: fmt.Sprintf("@kube-services/test-%d-%s", os.Getpid(), t.Name())}
}

// The last proxy that has something to program holds the lease, whatever happens to the
// others. Each one knows the others.
func TestLease(t *testing.T) {
	s := socket(t)
	a := start(t, s, "a")
	kit.Need(t, a.holdsLease(t), "the only proxy may not program the node")
	b := start(t, s, "b")
	kit.Check(t, a.holdsLease(t), "a proxy that has nothing to program yet took the lease")
	leave, _ := a.Enter(t.Context())
	taken := make(chan bool)
	go func() { taken <- b.holdsLease(t) }()
	select {
	case <-taken:
		t.Error("the lease passed on in the middle of a round")
	case <-time.After(100 * time.Millisecond):
	}
	leave()
	kit.Check(t, <-taken && !a.holdsLease(t), "the later proxy does not have the lease")
	kit.Until(t, "b says that a stands by", func() bool { x := b.state.Load().Others; return len(x) == 1 && x[0].Mode == "a" })
	kit.Until(t, "a says that b has it", func() bool { x := a.state.Load(); return x.Standby && x.Holder.Mode == "b" })
	x := a.state.Load().Holder
	kit.Check(t, x.PID == os.Getpid() && strings.Contains(x.String(), "test"), "the holder is %s, want process %d with its command", x, os.Getpid())
	c := start(t, s, "c")
	kit.Check(t, c.holdsLease(t) && !b.holdsLease(t), "the third proxy does not have the lease")
	kit.Until(t, "c says that two stand by", func() bool { return len(c.state.Load().Others) == 2 })
	who, err := lease.QueryHolder(t.Context(), s)
	kit.Check(t, err == nil && who.Mode == "c", "asked, %s has the lease, %v", who, err)
	c.end()
	kit.Until(t, "one of the others takes it back", func() bool { return a.holdsLease(t) != b.holdsLease(t) })
}

// A process without rights cannot prevent a proxy from programming the node with the
// socket's name, whatever it does with connections to it.
func TestUntrustedPeer(t *testing.T) {
	for name, answer := range map[string]func(s Socket, c *net.UnixConn){
		"says nothing":         func(Socket, *net.UnixConn) {},
		"closes":               func(_ Socket, c *net.UnixConn) { c.Close() },
		"proves nothing":       claim,
		"sends the proof back": reflect,
		"an earlier version":   earlier,
	} {
		t.Run(name, func(t *testing.T) {
			s := socket(t)
			s.Name = strings.ReplaceAll(s.Name, " ", "-")
			l, err := net.ListenUnix("unix", s.address())
			kit.Must(t, err)
			defer l.Close()
			go func() {
				for {
					c, err := l.AcceptUnix()
					if errors.Is(err, net.ErrClosed) {
						return
					}
					if err == nil {
						go answer(s, c)
					}
				}
			}()
			p := start(t, s, "p")
			kit.Check(t, p.holdsLease(t), "the proxy leaves the node alone")
			kit.Until(t, "the proxy says what is wrong", func() bool { return p.state.Load().Fault != "" })
		})
	}
}

const yielded = `{"identity":{"command":"kube-proxy"},"yielded":true}`

// claim is a holder with a statement, but without the right to prove it.
func claim(s Socket, c *net.UnixConn) {
	challenge := make([]byte, 32)
	_, _ = c.Write(append([]byte{protocol}, challenge...))
	_, _ = pass(c, nil)
	withoutRights(func() { _ = sendProof(c, s.statement("holder", c.RemoteAddr().String(), challenge)) })
	say(c, yielded)
}

// reflect is a holder that sends back what it receives as a proof.
func reflect(_ Socket, c *net.UnixConn) {
	_, _ = c.Write(append([]byte{protocol}, make([]byte, 32)...))
	_, _ = pass(c, c)
	say(c, yielded)
}

// earlier is a holder of the first version, where each side sets the option on a socket of
// the other one.
func earlier(_ Socket, c *net.UnixConn) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	if err != nil {
		return
	}
	_, _, _ = c.WriteMsgUnix([]byte{0}, unix.UnixRights(fd), nil)
	_, _ = pass(c, nil)
	_, _ = c.Write([]byte{0})
	say(c, yielded)
}

// say sends a message of package lease, and reads all that comes.
func say(c net.Conn, text string) string {
	_, _ = c.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...))
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	answer, _ := io.ReadAll(c)
	return string(answer)
}

// pass receives one message with descriptors, and sends it on, if to is not nil. It returns
// the message.
func pass(from, to *net.UnixConn) ([]byte, error) {
	text, control := make([]byte, 64), make([]byte, 64)
	n, m, _, _, err := from.ReadMsgUnix(text, control)
	if err == nil && to != nil {
		_, _, err = to.WriteMsgUnix(text[:n], control[:m], nil)
	}
	return text[:n], err
}

// withoutRights calls f on a thread without CAP_NET_ADMIN.
func withoutRights(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and end the thread with the goroutine
		h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&h, &none[0]); err != nil {
			panic(err)
		}
		f()
	}()
	<-done
}

// dialFrom connects to s from an address, empty for none.
func dialFrom(t *testing.T, s Socket, from string) *net.UnixConn {
	t.Helper()
	var local *net.UnixAddr
	if from != "" {
		local = &net.UnixAddr{Net: "unix", Name: from}
	}
	c, err := net.DialUnix("unix", local, s.address())
	kit.Must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	return c
}

// A process without rights that connects to the holder gets an answer, but not the lease.
func TestUntrustedPeerAsksForLease(t *testing.T) {
	s := socket(t)
	p := start(t, s, "p")
	kit.Need(t, p.holdsLease(t), "the proxy may not program the node")
	const take = `{"identity":{"command":"kube-proxy"},"ask":"take"}`
	own := clientName()
	c := dialFrom(t, s, own)
	hello, err := pass(c, nil)
	kit.Need(t, err == nil && len(hello) != 0, "the holder does not greet: %v", err)
	withoutRights(func() { _ = sendProof(c, s.statement("client", own, hello[1:])) })
	d := dialFrom(t, s, clientName())
	_, _ = pass(d, nil)
	_, _ = pass(c, d) // the holder's own proof
	_, _ = pass(d, nil)
	for name, c := range map[string]*net.UnixConn{
		"proves nothing": c, "sends the holder's proof": d, "has no address": dialFrom(t, s, ""), "another address": dialFrom(t, s, socket(t).Name+"-x"),
	} {
		answer := say(c, take)
		kit.Check(t, !strings.Contains(answer, "yielded") && p.holdsLease(t), "%s: got the lease: %q", name, answer)
	}
	kit.Until(t, "the holder says that another version asks", func() bool { return strings.Contains(p.state.Load().Fault, "another version") })
}

// acceptRaw returns the next connection of l, for somebody who is no proxy.
func acceptRaw(t *testing.T, l *net.UnixListener) *net.UnixConn {
	t.Helper()
	c, err := l.AcceptUnix()
	kit.Must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	return c
}

// accepted returns the next connection of l, and whether the holder trusts it in the end.
func accepted(t *testing.T, s Socket, l lease.Listener) <-chan bool {
	t.Helper()
	c, err := l.Accept()
	kit.Must(t, err)
	return authenticated(t, s, c)
}

func authenticated(t *testing.T, s Socket, c *lease.Conn) <-chan bool {
	result := make(chan bool, 1)
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	go func() {
		err := s.Authenticate(c)
		result <- err == nil && c.Trusted
	}()
	return result
}

func dialled(t *testing.T, s Socket) (*lease.Conn, <-chan bool) {
	t.Helper()
	c, err := s.Dial(t.Context())
	kit.Must(t, err)
	return c, authenticated(t, s, c)
}

func listenOn(t *testing.T, s Socket) lease.Listener {
	t.Helper()
	l, err := s.Listen()
	kit.Must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// Two proxies trust each other, and a third process between them gains nothing.
func TestProof(t *testing.T) {
	t.Run("direct", func(t *testing.T) {
		s := socket(t)
		l := listenOn(t, s)
		_, client := dialled(t, s)
		holder := accepted(t, s, l)
		kit.Check(t, <-client && <-holder, "two proxies do not trust each other")
	})
	// between has a connection to a holder that has given the name away, and the name.
	between := func(t *testing.T, from func() string) (s Socket, toHolder *net.UnixConn, holder <-chan bool, l *net.UnixListener) {
		s = socket(t)
		held := listenOn(t, s)
		toHolder = dialFrom(t, s, from())
		holder = accepted(t, s, held)
		_ = held.Close()
		l, err := net.ListenUnix("unix", s.address())
		kit.Must(t, err)
		t.Cleanup(func() { _ = l.Close() })
		return s, toHolder, holder, l
	}
	t.Run("relay", func(t *testing.T) {
		s, toHolder, holder, l := between(t, clientName)
		_, client := dialled(t, s)
		toClient := acceptRaw(t, l)
		_, _ = pass(toHolder, toClient) // the challenge
		_, _ = pass(toClient, toHolder) // the client's proof
		_, _ = pass(toHolder, toClient) // the holder's
		kit.Check(t, !<-client && !<-holder, "a proxy trusts the process in the middle")
	})
	t.Run("two clients", func(t *testing.T) {
		s, _, _, l := between(t, clientName)
		var conns [2]*net.UnixConn
		var trust [2]<-chan bool
		for i := range conns {
			_, trust[i] = dialled(t, s)
			c := acceptRaw(t, l)
			_, _ = c.Write(append([]byte{protocol}, make([]byte, 32)...))
			conns[i] = c
		}
		_, _ = pass(conns[0], conns[1])
		_, _ = pass(conns[1], conns[0])
		kit.Check(t, !<-trust[0] && !<-trust[1], "a proxy trusts the proof of another client")
	})
	t.Run("late", func(t *testing.T) {
		s, toHolder, holder, l := between(t, clientName)
		c, client := dialled(t, s)
		name := c.LocalAddr().String()
		toClient := acceptRaw(t, l)
		_, _ = pass(toHolder, toClient)
		control, text := make([]byte, 64), make([]byte, 1)
		_, n, _, _, err := toClient.ReadMsgUnix(text, control)
		kit.Must(t, err)
		_ = c.Close() // its name is free
		_ = l.Close()
		again := listenOn(t, s)
		thief := dialFrom(t, s, name)
		trust := accepted(t, s, again)
		_, _ = pass(thief, nil)
		_, _, _ = thief.WriteMsgUnix(text, control[:n], nil)
		_, _, _ = toHolder.WriteMsgUnix(text, control[:n], nil)
		kit.Check(t, !<-client && !<-holder && !<-trust, "a proxy trusts an old proof")
	})
}

// A proof for one lease is none for another.
func TestProofOfAnotherLease(t *testing.T) {
	s := socket(t)
	l := listenOn(t, s)
	c, err := s.Dial(t.Context())
	kit.Must(t, err)
	holder := accepted(t, s, l)
	if got, err := (Socket{Name: s.Name + "/other"}).provenHolder(c.Conn.(*net.UnixConn), c.LocalAddr().String()); got || <-holder {
		t.Errorf("a proof for another lease counts: %t, %v", got, err)
	}
}

// A name that reads as a client's is that name.
func TestClientName(t *testing.T) {
	a := clientName()
	kit.Check(t, len(a) == nameSize && a != clientName(),
		"name %q of %d bytes, want a new one of %d", a, len(a), nameSize)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: a})
	if err != nil || l.Addr().String() != a {
		t.Fatal(l, err)
	}
	defer l.Close()
	if l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: a + "\x00"}); err == nil {
		l.Close()
		t.Error("a longer name reads the same")
	}
}

// Connections of users that can be no proxy take no place and get no answer.
func TestFloodOfUsers(t *testing.T) {
	s := socket(t)
	p := start(t, s, "p")
	kit.Need(t, p.holdsLease(t), "the proxy may not program the node")
	var made atomic.Int32
	stop, flooding := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(flooding)
		runtime.LockOSThread()                                                           // and end the thread with the goroutine
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); e != 0 { // of this thread only
			t.Error(e)
			return
		}
		if c, err := net.DialUnix("unix", &net.UnixAddr{Net: "unix", Name: clientName()}, s.address()); err != nil {
			t.Error(err)
		} else if got, _ := pass(c, nil); len(got) > 0 {
			t.Errorf("the holder says %x to a user that can be no proxy", got)
		}
		var open []net.Conn
		for {
			select {
			case <-stop:
				for _, c := range open {
					c.Close()
				}
				return
			default:
			}
			if c, err := net.DialUnix("unix", nil, s.address()); err == nil {
				made.Add(1)
				if open = append(open, c); len(open) > 500 {
					open[0].Close()
					open = open[1:]
				}
			}
		}
	}()
	kit.Until(t, "the flood", func() bool { return made.Load() > 1000 })
	q := start(t, s, "q")
	if !q.holdsLease(t) || p.holdsLease(t) {
		t.Errorf("the later proxy does not have the lease: %+v, %+v", p.state.Load(), q.state.Load())
	}
	kit.Until(t, "p stands by", func() bool { return p.state.Load().Standby })
	close(stop)
	<-flooding
}
