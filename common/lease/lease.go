// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package lease lets one of several service proxies on a node program it. The
// one that starts last takes the lease from the one that has it, which finishes
// its round and stands by. When the holder ends, however it ends, a standby
// takes the lease back. What is held is a name of the system, see Transport.
package lease

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Identity says which process a proxy is. All of it comes from outside.
type Identity struct {
	// PID is the process's number as this process sees it, 0 if it cannot.
	PID int `json:"pid,omitempty"`
	// OwnPID is the number that the process has for itself, in a container.
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
	// Peer is what the system says of the other side. It completes what the
	// other side says.
	Peer Identity
	// Trusted means that the other side has shown that it may program this node.
	Trusted bool
}

// Listener is the name of the lease.
type Listener interface {
	// Accept returns the next connection, whose other side was not examined.
	Accept() (net.Conn, error)
	Close() error
}

// Transport is how proxies of one node find each other. The system takes the
// name back from a process that has ended.
type Transport interface {
	// Listen takes the name. The error matches ErrHeld if another process has it.
	Listen() (Listener, error)
	// Dial connects to the process that has the name.
	Dial(ctx context.Context) (net.Conn, error)
	// Authenticate lets both sides of c show each other that they may program this
	// node. It returns within the deadline of c.
	Authenticate(c net.Conn) (*Conn, error)
}

// ErrHeld means that another process has the name.
var ErrHeld = errors.New("another process has it")

// Times of a Lease.
const (
	// answerTimeout is how long the other side may take for an answer.
	answerTimeout = 2 * time.Second
	// takeTimeout is how long a holder may take to finish its rounds.
	takeTimeout = 30 * time.Second
	// heartbeat is how often a holder says that it lives, and silence how long it may
	// say nothing.
	heartbeat        = 3 * time.Second
	heartbeatTimeout = 15 * time.Second
	// retryInterval is how often a name that somebody else squats on, or a holder that
	// does not answer, is tried again.
	retryInterval = 5 * time.Second
	// handoverDelay lets the process that was given the lease take the name first.
	handoverDelay = 200 * time.Millisecond
	// maxUnauthenticated bounds connections that were not examined yet.
	maxUnauthenticated = 32
)

// State is what is known of the lease.
type State struct {
	// Standby means that Holder programs the node.
	Standby bool
	Holder  Identity
	// Others stand by while this process programs the node.
	Others []Identity
	// Fault is why it cannot be known whether others program the node.
	Fault string
}

// Lease is this process's share. Set the exported fields before Run.
type Lease struct {
	Transport Transport
	Self      Identity
	// Changed is called after each change, in order.
	Changed func(State)

	// rounds is held to read by whatever programs the node.
	rounds sync.RWMutex

	mu       sync.Mutex
	state    State
	granted  bool
	decided  chan struct{} // closed once it was decided who programs the node
	wanted   chan struct{} // closed when there is something to program
	wantOnce sync.Once
	watchers map[*Conn]Identity
	notifyMu sync.Mutex // for the order of Changed
}

// New returns a Lease that is not decided yet.
func New(t Transport, self Identity, changed func(State)) *Lease {
	return &Lease{
		Transport: t, Self: self, Changed: changed,
		decided: make(chan struct{}), wanted: make(chan struct{}), watchers: map[*Conn]Identity{},
	}
}

// Enter reports that this process may program the node until it calls leave. The
// first call asks for the lease and waits until that is decided.
func (l *Lease) Enter(ctx context.Context) (leave func(), ok bool) {
	l.wantOnce.Do(func() { close(l.wanted) })
	select {
	case <-ctx.Done():
		return nil, false
	case <-l.decided:
	}
	l.rounds.RLock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.granted {
		l.rounds.RUnlock()
		return nil, false
	}
	return l.rounds.RUnlock, true
}

// Standby reports that another process programs the node.
func (l *Lease) Standby() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.Standby
}

// Run takes the lease when there is something to program, and then holds it or
// stands by, until ctx ends.
func (l *Lease) Run(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-l.wanted:
	}
	held, err := l.take(ctx)
	for ctx.Err() == nil {
		if err != nil { // nobody can be asked, so traffic goes first
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

// retake tries for the lease until it has it, once in a while.
func (l *Lease) retake(ctx context.Context) (held Listener, err error) {
	for {
		if !pause(ctx, retryInterval) {
			return nil, ctx.Err()
		}
		if held, err = l.take(ctx); err == nil {
			return held, nil
		}
	}
}

// take asks whoever has the lease for it, and returns with the name.
func (l *Lease) take(ctx context.Context) (Listener, error) {
	for try := 0; ; try++ {
		held, err := l.Transport.Listen()
		if err == nil || !errors.Is(err, ErrHeld) {
			return held, err
		}
		c, answer, err := l.request(ctx, requestTake, takeTimeout)
		if err == nil {
			_ = c.Close()
			if !answer.Yielded {
				err = fmt.Errorf("%s does not yield", answer.Identity)
			}
		}
		const tries = 10 // the name may pass to a third one meanwhile
		if err != nil && (try >= tries || !errors.Is(err, errHolderGone)) || ctx.Err() != nil {
			return nil, errors.Join(err, ctx.Err())
		}
		if err != nil && !pause(ctx, handoverDelay/tries) {
			return nil, ctx.Err()
		}
	}
}

// grant lets this process program the node.
func (l *Lease) grant(ctx context.Context, s State) {
	l.mu.Lock()
	l.granted = true
	l.mu.Unlock()
	l.setState(s)
}

// setState makes s known.
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
	if l.Changed != nil {
		l.Changed(s)
	}
}

// pause reports that ctx did not end within d.
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
