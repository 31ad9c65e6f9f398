// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Load is what a client does: it opens connections at a steady rate, with one request on
// each, and holds some open, with a request on each twice a second. Over UDP, each request
// has a socket of its own, and those held ask again from the same one.
type Load struct {
	Network string // tcp or udp
	Address string
	Rate    int // new connections a second
	Held    int
	// Life is how long one is held before another takes its place; 0 holds it to the end.
	Life time.Duration
}

// Counts are what became of a Load.
type Counts struct {
	New, NewLost    int // connections with one request
	Due             int `json:",omitempty"` // how many of them there are at the wanted rate
	Slow            int // of those answered, after more than half a second
	Reused          int // of those over UDP, from a port that was used shortly before
	ReusedLost      int // of these, also in NewLost
	Held, HeldLost  int // requests on held connections, and how often one broke
	Kinds           map[string]int
	FirstLost, Last time.Time   // when something was lost
	LostAt          []time.Time `json:",omitempty"` // when what was lost had begun
}

// Lost returns how many connections were lost, held ones included.
func (c Counts) Lost() int { return c.NewLost + c.HeldLost }

// lostSince returns how much of what was lost had begun at a time or later.
func (c Counts) lostSince(at time.Time) int {
	n := 0
	for _, lost := range c.LostAt {
		if !lost.Before(at) {
			n++
		}
	}
	return n
}

// answerTimeout is how long a client waits for an answer before it counts as lost.
const answerTimeout = 3 * time.Second

// load is a running Load.
type load struct {
	Load
	mu     sync.Mutex
	counts Counts
	ports  map[int]time.Time // when a port of a client was used last
}

// Run makes connections until ctx ends, and waits for the answers that are due. What it does
// until the first answer does not count: a Service that is new may not be in force yet.
func (l Load) Run(ctx context.Context) Counts {
	r := &load{Load: l, counts: Counts{Kinds: map[string]int{}}, ports: map[int]time.Time{}}
	interval, begin := time.Second/time.Duration(l.Rate), time.Now()
	for ; ctx.Err() == nil; pause(ctx, interval) {
		if _, err := r.try(); err == nil {
			break
		}
	}
	var all sync.WaitGroup
	for range l.Held {
		all.Go(func() { r.hold(ctx) })
	}
	ticks := time.NewTicker(interval) // it drops what is late on a busy machine
	defer ticks.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-ticks.C:
			all.Go(r.once)
		}
	}
	r.counts.Due = int(time.Since(begin) / interval)
	all.Wait()
	return r.counts
}

// try makes a connection with one request.
func (l *load) try() (net.Conn, error) {
	c, err := net.DialTimeout(l.Network, l.Address, answerTimeout)
	if err == nil {
		err = l.ask(c, bufio.NewReader(c))
		_ = c.Close() // the answer is there
	}
	return c, err
}

func (l *load) once() {
	begin := time.Now()
	c, err := l.try()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts.New++
	what := "new"
	if l.reusesPort(c) {
		what = "new from a port used before"
		l.counts.Reused++
		if err != nil {
			l.counts.ReusedLost++
		}
	}
	if err != nil {
		l.counts.NewLost++
		l.lost(what, begin, err)
	} else if time.Since(begin) > 500*time.Millisecond {
		l.counts.Slow++
	}
}

// trackedTime is how long the kernel knows a UDP flow that had an answer, and gives another
// one with the same ports the same endpoint, see nf_conntrack_udp_timeout in
// https://docs.kernel.org/networking/nf_conntrack-sysctl.html
const trackedTime = 30 * time.Second

// reusesPort notes the port of a UDP client, and returns whether it is that of a flow which
// the kernel knows. The caller holds the lock.
func (l *load) reusesPort(c net.Conn) bool {
	if l.Network != "udp" || c == nil {
		return false
	}
	port := c.LocalAddr().(*net.UDPAddr).Port
	last, used := l.ports[port]
	l.ports[port] = time.Now()
	return used && time.Since(last) < trackedTime+answerTimeout
}

// hold keeps one connection, and opens another when it breaks, or after its Life.
func (l *load) hold(ctx context.Context) {
	for ctx.Err() == nil {
		opened := time.Now()
		begin := opened
		c, err := net.DialTimeout(l.Network, l.Address, answerTimeout)
		for r := bufio.NewReader(c); err == nil && ctx.Err() == nil; {
			begin = time.Now()
			if err = l.ask(c, r); err == nil {
				l.mu.Lock()
				l.counts.Held++
				l.mu.Unlock()
			}
			pause(ctx, 500*time.Millisecond)
			if l.Life > 0 && time.Since(opened) >= l.Life {
				break
			}
		}
		if c != nil {
			_ = c.Close() // it is of no use any more
		}
		if err != nil {
			l.mu.Lock()
			l.counts.HeldLost++
			l.lost("held", begin, err)
			l.mu.Unlock()
			pause(ctx, 200*time.Millisecond)
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

const request = "GET /hostname HTTP/1.1\r\nHost: web\r\n\r\n"

// ask sends a request that agnhost's netexec answers.
func (l *load) ask(c net.Conn, r *bufio.Reader) error {
	if err := c.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return err
	}
	if l.Network == "udp" {
		if _, err := io.WriteString(c, "hostname"); err != nil {
			return err
		}
		_, err := c.Read(make([]byte, 512))
		return err
	}
	if _, err := io.WriteString(c, request); err != nil {
		return err
	}
	n := 0
	for first := true; ; first = false {
		line, err := r.ReadString('\n')
		if err != nil {
			return err
		}
		if status := strings.TrimSpace(line); first && status != "HTTP/1.1 200 OK" {
			return errors.New(status)
		}
		if line == "\r\n" {
			break
		}
		_, _ = fmt.Sscanf(line, "Content-Length: %d", &n) // other lines do not matter
	}
	_, err := io.CopyN(io.Discard, r, int64(n))
	return err
}

// lost notes how something was lost that had begun at a time. The caller holds the lock.
func (l *load) lost(what string, begin time.Time, err error) {
	now := time.Now()
	l.counts.LostAt = append(l.counts.LostAt, begin)
	if l.counts.FirstLost.IsZero() {
		l.counts.FirstLost = now
	}
	l.counts.Last = now
	l.counts.Kinds[what+": "+kind(err)]++
}

// kind returns an error without addresses, by which equal ones are counted.
func kind(err error) string {
	var number syscall.Errno
	var network net.Error
	switch {
	case errors.As(err, &number):
		return number.Error()
	case errors.As(err, &network) && network.Timeout():
		return "timeout"
	}
	return err.Error()
}
