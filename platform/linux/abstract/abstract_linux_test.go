// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package abstract

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"kubeproxy/common/lease"
	"kubeproxy/test/poll"
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
	if !a.holdsLease(t) {
		t.Fatal("the only proxy may not program the node")
	}
	b := start(t, s, "b")
	if !a.holdsLease(t) {
		t.Error("a proxy that has nothing to program yet took the lease")
	}
	leave, _ := a.Enter(t.Context())
	taken := make(chan bool)
	go func() { taken <- b.holdsLease(t) }()
	select {
	case <-taken:
		t.Error("the lease passed on in the middle of a round")
	case <-time.After(100 * time.Millisecond):
	}
	leave()
	if !<-taken || a.holdsLease(t) {
		t.Error("the later proxy does not have the lease")
	}
	poll.Until(t, "b says that a stands by", func() bool { x := b.state.Load().Others; return len(x) == 1 && x[0].Mode == "a" })
	poll.Until(t, "a says that b has it", func() bool { x := a.state.Load(); return x.Standby && x.Holder.Mode == "b" })
	if x := a.state.Load().Holder; x.PID != os.Getpid() || !strings.Contains(x.String(), "test") {
		t.Errorf("the holder is %s, want process %d with its command", x, os.Getpid())
	}
	c := start(t, s, "c")
	if !c.holdsLease(t) || b.holdsLease(t) {
		t.Error("the third proxy does not have the lease")
	}
	poll.Until(t, "c says that two stand by", func() bool { return len(c.state.Load().Others) == 2 })
	if who, ok := lease.QueryHolder(t.Context(), s); !ok || who.Mode != "c" {
		t.Errorf("asked, %s has the lease, %t", who, ok)
	}
	c.end()
	poll.Until(t, "one of the others takes it back", func() bool { return a.holdsLease(t) != b.holdsLease(t) })
}

// An unprivileged program cannot prevent a proxy from programming the node: neither with
// the socket's name, nor with connections that it accepts and ignores, nor with a request
// for the lease.
func TestUntrustedPeer(t *testing.T) {
	for name, answer := range map[string]func(net.Conn){
		"says nothing":   func(net.Conn) {},
		"closes":         func(c net.Conn) { c.Close() },
		"proves nothing": sendUnproven,
	} {
		t.Run(name, func(t *testing.T) {
			s := socket(t)
			s.Name = strings.ReplaceAll(s.Name, " ", "-")
			l, err := s.Listen()
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				for {
					c, err := l.Accept()
					if errors.Is(err, net.ErrClosed) {
						return
					}
					if err == nil {
						go answer(c)
					}
				}
			}()
			p := start(t, s, "p")
			if !p.holdsLease(t) {
				t.Error("the proxy leaves the node alone")
			}
			poll.Until(t, "the proxy says what is wrong", func() bool { return p.state.Load().Fault != "" })
		})
	}
}

// sendUnproven is the peer of Authenticate for a process without CAP_NET_ADMIN.
func sendUnproven(c net.Conn) {
	u := c.(*net.UnixConn)
	_, _ = u.Write([]byte{0})
	_, _ = u.Read(make([]byte, 1))
	_, _ = u.Write([]byte{0})
	text := `{"identity":{"command":"kube-proxy"},"yielded":true}`
	_, _ = u.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...))
}

// An untrusted peer that requests the lease gets an answer, but not the lease.
func TestUntrustedPeerAsksForLease(t *testing.T) {
	s := socket(t)
	p := start(t, s, "p")
	if !p.holdsLease(t) {
		t.Fatal("the proxy may not program the node")
	}
	c, err := s.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	sendUnproven(c)
	text := `{"identity":{"command":"kube-proxy"},"ask":"take"}`
	_, _ = c.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...))
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	buf := make([]byte, 4096)
	for err == nil {
		_, err = c.Read(buf)
	}
	if !p.holdsLease(t) {
		t.Error("the proxy gave the lease to a process that may not program the node")
	}
}
