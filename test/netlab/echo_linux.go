// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
)

// Echo is a server on TCP, UDP and, where SCTP reports true, SCTP. It answers each line
// with one line: the request, the server's name, its own address, and the client's
// address as the server saw it.
type Echo struct {
	name      string
	listeners []net.Listener
	packets   []net.PacketConn
	serving   sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool // nil once closed
}

// Echo starts an echo server on both of h's addresses. An empty name stands for h's own.
func (h *Host) Echo(name string, port uint16) (*Echo, error) {
	if name == "" {
		name = h.Name
	}
	e := &Echo{name: name, conns: map[net.Conn]bool{}}
	for _, addr := range []netip.Addr{h.IPv4, h.IPv6} {
		if err := e.listen(h, netip.AddrPortFrom(addr, port)); err != nil {
			return nil, errors.Join(fmt.Errorf("start echo server %s on %s: %w", name, h.Name, err), e.Close())
		}
	}
	h.atClose(e.Close)
	return e, nil
}

func (e *Echo) listen(h *Host, at netip.AddrPort) error {
	l, err := h.Listen(context.Background(), "tcp", at.String())
	if err != nil {
		return err
	}
	e.serve(l)
	if SCTP() {
		if l, err = h.listenSCTP(at); err != nil {
			return err
		}
		e.serve(l)
	}
	c, err := h.ListenPacket(context.Background(), "udp", at.String())
	if err != nil {
		return err
	}
	e.packets = append(e.packets, c)
	e.serving.Go(func() { e.answerPackets(c) })
	return nil
}

func (e *Echo) serve(l net.Listener) {
	e.listeners = append(e.listeners, l)
	e.serving.Go(func() { e.accept(l) })
}

// Close stops the server: new connections are refused, open ones end.
func (e *Echo) Close() error {
	e.mu.Lock()
	conns := e.conns
	e.conns = nil
	e.mu.Unlock()
	if conns == nil {
		return nil
	}
	var errs []error
	for _, l := range e.listeners {
		errs = append(errs, l.Close())
	}
	for _, c := range e.packets {
		errs = append(errs, c.Close())
	}
	for c := range conns {
		c.Close() // its goroutine may have closed it already
	}
	e.serving.Wait()
	return errors.Join(errs...)
}

func (e *Echo) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		if !e.track(c) {
			c.Close()
			return
		}
		e.serving.Go(func() { e.answerLines(c) })
	}
}

// track records c for Close. It returns false if Close has begun.
func (e *Echo) track(c net.Conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.conns == nil {
		return false
	}
	e.conns[c] = true
	return true
}

func (e *Echo) answerLines(c net.Conn) {
	defer func() {
		e.mu.Lock()
		delete(e.conns, c)
		e.mu.Unlock()
		c.Close()
	}()
	lines := bufio.NewScanner(c)
	for lines.Scan() {
		if _, err := fmt.Fprintf(c, "%s\n", e.answer(lines.Text(), c.LocalAddr(), c.RemoteAddr())); err != nil {
			return
		}
	}
}

func (e *Echo) answerPackets(c net.PacketConn) {
	buf := make([]byte, 2048)
	for {
		n, from, err := c.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP message about an earlier answer
		}
		line := e.answer(strings.TrimSpace(string(buf[:n])), c.LocalAddr(), from)
		// A client that has gone is not an error of the server.
		_, _ = c.WriteTo([]byte(line+"\n"), from)
	}
}

func (e *Echo) answer(request string, local, remote net.Addr) string {
	return fmt.Sprintf("%s %s %s %s", request, e.name, local, remote)
}

// parseAnswer parses the part of an echo line after the request.
func parseAnswer(request, line string) (Answer, error) {
	fields := strings.Fields(line)
	if len(fields) != 4 || fields[0] != request {
		return Answer{}, fmt.Errorf("answer %q: not one of an echo server to %q", line, request)
	}
	at, err := netip.ParseAddrPort(fields[2])
	if err != nil {
		return Answer{}, fmt.Errorf("answer %q: %w", line, err)
	}
	client, err := netip.ParseAddrPort(fields[3])
	if err != nil {
		return Answer{}, fmt.Errorf("answer %q: %w", line, err)
	}
	return Answer{Outcome: Answered, Backend: fields[1], At: at, Client: client}, nil
}
