// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package lease lets one of several service proxies on a node program it. The proxy that
// starts last takes the lease from the holder, which finishes its round and stands by.
// When the holder ends for any reason, a standby takes the lease again. The lease is a
// name that the operating system gives to one process at a time. A Transport provides the
// name and the connections. Whether a round may start comes out of Enter.
package lease

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"
)

// Identity identifies a proxy process. All of it comes from outside this process, so it
// must be sanitized.
type Identity struct {
	// PID is the process ID as this process sees it, or 0 if it cannot see it.
	PID int `json:"pid,omitempty"`
	// OwnPID is the process ID in the PID namespace of the process itself.
	OwnPID    int    `json:"ownPID,omitempty"`
	Command   string `json:"command,omitempty"`
	Pod       string `json:"pod,omitempty"` // its UID, or its name if known
	Container string `json:"container,omitempty"`
	Mode      string `json:"mode,omitempty"`
	Version   string `json:"version,omitempty"`
}

// Conn is a connection between two proxies.
type Conn struct {
	net.Conn
	// Peer is what the system reports about the other side. It completes what the other
	// side sends. Before Authenticate it has the PID of a client at most.
	Peer Identity
	// Trusted means that the other side has proved that it may program this node.
	Trusted bool
}

// Listener holds the name of the lease.
type Listener interface {
	// Accept returns the next connection of a process that may be a proxy, as far as the
	// system knows without a proof.
	Accept() (*Conn, error)
	Close() error
}

// Transport is how proxies of one node find each other. The operating system must release
// the name when its process ends.
type Transport interface {
	// Listen takes the name. The error matches ErrHeld if another process has it.
	Listen() (Listener, error)
	// Dial connects to the process that has the name.
	Dial(ctx context.Context) (*Conn, error)
	// Authenticate lets both sides of c prove to each other that they may program this
	// node, and completes c. It returns within the deadline of c, and ErrProtocol if the
	// other side does not do its part as this version does.
	Authenticate(c *Conn) error
}

// ErrHeld means that another process has the name.
var ErrHeld = errors.New("another process has it")

// ErrProtocol means that the other side speaks another language.
var ErrProtocol = errors.New("it is of another version, or no service proxy")

// Timeouts and intervals of a Lease.
const (
	// answerTimeout bounds the wait for an answer.
	answerTimeout = 2 * time.Second
	// takeTimeout bounds the time that it takes to take the lease, in which a holder
	// finishes its rounds. takeTries bounds the attempts, which another process that
	// starts, or others that connect, may frustrate. takePause is the pause between two.
	takeTimeout = 30 * time.Second
	takeTries   = 100
	takePause   = 20 * time.Millisecond
	// heartbeat is the interval of a holder's messages. A holder that sends nothing for
	// heartbeatTimeout counts as gone.
	heartbeat        = 3 * time.Second
	heartbeatTimeout = 15 * time.Second
	// retryInterval is the interval of attempts while an unrelated process occupies the
	// name or the holder does not answer.
	retryInterval = 5 * time.Second
	// handoverDelay lets the process that got the lease take the name first.
	handoverDelay = 200 * time.Millisecond
	// watchTries bounds the attempts to stand by for a holder that has the name, but does
	// not send heartbeats.
	watchTries = 5
)

// State is the known state of the lease.
type State struct {
	// Standby means that Holder programs the node.
	Standby bool
	Holder  Identity
	// HolderFault is why the rules of Holder have not been in force for heartbeatTimeout.
	HolderFault string
	// Others stand by while this process programs the node.
	Others []Identity
	// Fault is why it is unknown whether other processes program the node.
	Fault string
}

// Lease is the participation of this process.
type Lease struct {
	Transport Transport
	Self      Identity
	// Fault, if set, returns why the rules of this process are not in force, empty if
	// they are. Standbys show it.
	Fault func() string

	mu       sync.Mutex
	state    State
	granted  bool
	rounds   int           // that run now
	finished chan struct{} // closed when the last one has finished, if not nil
	decided  chan struct{} // closed after the first decision who programs the node
	wanted   chan struct{} // closed when there is something to program
	wantOnce sync.Once
	watchers map[*Conn]Identity
	stranger stranger
	notifyMu sync.Mutex // for the order of calls of changed
	changed  func(State)
}

// New returns a Lease without a decision.
func New(t Transport, self Identity) *Lease {
	return &Lease{
		Transport: t, Self: self,
		decided: make(chan struct{}), wanted: make(chan struct{}), watchers: map[*Conn]Identity{},
	}
}

// Enter reports whether this process may program the node until it calls leave. The first
// call starts to request the lease. Enter waits until that is decided.
func (l *Lease) Enter(ctx context.Context) (leave func(), ok bool) {
	l.wantOnce.Do(func() { close(l.wanted) })
	select {
	case <-ctx.Done():
		return nil, false
	case <-l.decided:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.granted {
		return nil, false
	}
	l.rounds++
	return l.leave, true
}

func (l *Lease) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rounds--; l.rounds == 0 && l.finished != nil {
		close(l.finished)
		l.finished = nil
	}
}

// State returns the latest State.
func (l *Lease) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

// Run takes the lease after the first call of Enter. Then it holds the lease or stands
// by, until ctx ends. It calls changed, if set, after each change of the State, in order.
func (l *Lease) Run(ctx context.Context, changed func(State)) {
	l.changed = changed
	select {
	case <-ctx.Done():
		return
	case <-l.wanted:
	}
	held, err := l.take(ctx)
	for ctx.Err() == nil {
		if err != nil { // no holder to negotiate with, and serving traffic has priority
			l.grant(ctx, State{Fault: err.Error()})
			held, err = l.retake(ctx)
			continue
		}
		l.hold(ctx, held)
		if ctx.Err() != nil {
			return
		}
		held, err = l.standBy(ctx)
	}
	if held != nil {
		_ = held.Close()
	}
}

// retake retries to take the lease until it succeeds.
func (l *Lease) retake(ctx context.Context) (held Listener, err error) {
	for {
		if !pause(ctx, retryInterval) {
			return nil, ctx.Err()
		}
		if held, err = l.take(ctx); err == nil {
			return held, nil
		}
		if ctx.Err() == nil && err.Error() != l.State().Fault {
			l.setState(State{Fault: err.Error()})
		}
	}
}

// take requests the lease from the holder, if there is one, and returns with the name.
func (l *Lease) take(ctx context.Context) (Listener, error) {
	ctx, cancel := context.WithTimeout(ctx, takeTimeout)
	defer cancel()
	var failed error
	for try := 0; ; try++ {
		held, err := l.Transport.Listen()
		if err == nil || !errors.Is(err, ErrHeld) {
			return held, err
		}
		// Again, as a third process may have the name by now.
		if try >= takeTries || try > 0 && !pause(ctx, takePause) {
			return nil, failed
		}
		c, answer, err := l.request(ctx, requestTake, takeTimeout)
		switch {
		case err == nil && !answer.Yielded:
			failed = fmt.Errorf("%s does not yield the lease of service proxies", answer.Identity)
		case err == nil:
			failed = fmt.Errorf("%s yields the lease of service proxies, but keeps its name", answer.Identity)
		default:
			failed = err
		}
		if err == nil {
			_ = c.Close()
		}
		if !answer.Yielded && !errors.Is(err, errHolderGone) {
			return nil, failed
		}
	}
}

// grant allows this process to program the node.
func (l *Lease) grant(ctx context.Context, s State) {
	l.mu.Lock()
	l.granted = true
	l.mu.Unlock()
	l.setState(s)
}

// setState stores s and reports it.
func (l *Lease) setState(s State) {
	l.notifyMu.Lock()
	defer l.notifyMu.Unlock()
	l.mu.Lock()
	l.state = s
	select {
	case <-l.decided:
	default:
		close(l.decided)
	}
	l.mu.Unlock()
	if l.changed != nil {
		l.changed(s)
	}
}

// pause waits for d. It returns false if ctx ended before.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// maxUnproven bounds the connections that have not sent a proof and a request yet.
const maxUnproven = 128

// places are the connections that have not sent a proof and a request yet. The zero value
// is ready.
type places struct {
	mu  sync.Mutex
	all []*Conn // the oldest first
}

// enter gives c a place. If none is free, the process that has the most loses its oldest
// one: whoever connects gets in, and a proxy needs its place for some milliseconds only.
func (p *places) enter(c *Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.all) >= maxUnproven {
		count := map[int]int{}
		most := 0 // a PID; all of other PID namespaces count as one process
		for _, x := range p.all {
			if count[x.Peer.PID]++; count[x.Peer.PID] > count[most] {
				most = x.Peer.PID
			}
		}
		i := slices.IndexFunc(p.all, func(x *Conn) bool { return x.Peer.PID == most })
		_ = p.all[i].Close()
		p.all = slices.Delete(p.all, i, i+1)
	}
	p.all = append(p.all, c)
}

// leave frees the place of c, if it still has one.
func (p *places) leave(c *Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = slices.DeleteFunc(p.all, func(x *Conn) bool { return x == c })
}
