// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// hold serves other proxies as the holder, until another process has taken the lease or
// ctx ends. The name is free afterwards.
func (l *Lease) hold(ctx context.Context, name Listener) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	stop := context.AfterFunc(ctx, func() { _ = name.Close() })
	defer stop()
	l.grant(ctx, State{})
	defer l.strangerGone()
	var all sync.WaitGroup
	defer all.Wait()
	var unproven places
	for {
		c, err := name.Accept()
		if ctx.Err() != nil {
			if err == nil {
				_ = c.Close()
			}
			return
		}
		if err != nil {
			if !pause(ctx, handoverDelay) { // out of file descriptors, for instance
				return
			}
			continue
		}
		unproven.enter(c)
		all.Go(func() {
			defer c.Close()
			pid := c.Peer.PID
			request, err := l.receive(c)
			unproven.leave(c)
			if errors.Is(err, ErrProtocol) {
				l.metStranger(Identity{PID: pid})
			}
			if err != nil {
				return
			}
			l.answer(ctx, c, request, func() {
				end()
				_ = name.Close()
			})
		})
	}
}

// answer handles the request of the other side of c. release releases the name.
func (l *Lease) answer(ctx context.Context, c *Conn, request message, release func()) {
	peer := request.Identity.mergedWith(c.Peer)
	switch {
	case request.Request == requestTake && c.Trusted:
		l.yield(peer)
		release()
		_ = send(c, message{Identity: l.Self, Yielded: true}, answerTimeout)
	case request.Request == requestWatch && c.Trusted:
		l.setWatcher(c, peer)
		defer l.setWatcher(c, Identity{})
		for send(c, l.heartbeat(), answerTimeout) == nil && pause(ctx, heartbeat) {
			if closedByPeer(c) {
				return
			}
		}
	default:
		_ = send(c, message{Identity: l.Self}, answerTimeout)
	}
}

// yield stops this process from programming the node, after the current rounds.
func (l *Lease) yield(to Identity) {
	l.mu.Lock()
	l.granted = false
	if l.rounds > 0 && l.finished == nil {
		l.finished = make(chan struct{})
	}
	finished := l.finished
	l.mu.Unlock()
	if finished != nil {
		select {
		case <-finished:
		case <-time.After(takeTimeout / 2): // the other side times out after takeTimeout
		}
	}
	l.setState(State{Standby: true, Holder: to})
}

// heartbeat returns what a holder sends to standbys.
func (l *Lease) heartbeat() message {
	m := message{Identity: l.Self, InForce: true}
	if l.Fault != nil {
		m.Fault = l.Fault()
		m.InForce = m.Fault == ""
	}
	return m
}

// setWatcher records that peer stands by on c. A zero peer means that c has ended.
func (l *Lease) setWatcher(c *Conn, peer Identity) {
	l.mu.Lock()
	if peer == (Identity{}) {
		delete(l.watchers, c)
	} else {
		l.watchers[c] = peer
	}
	l.mu.Unlock()
	l.showOthers()
}

// showOthers sets the State of a holder.
func (l *Lease) showOthers() {
	l.mu.Lock()
	s := State{Fault: l.stranger.text}
	for _, x := range l.watchers {
		s.Others = append(s.Others, x)
	}
	granted := l.granted
	l.mu.Unlock()
	slices.SortFunc(s.Others, func(a, b Identity) int { return strings.Compare(a.String(), b.String()) })
	if granted {
		l.setState(s)
	}
}

// stranger is a process that asked for the lease in the way of another version. Such a
// proxy goes on programming the node, and asks again every retryInterval.
type stranger struct {
	text string // empty for none
	gone *time.Timer
}

// metStranger shows who, for as long as it asks again.
func (l *Lease) metStranger(who Identity) {
	const shown = 3 * retryInterval
	l.mu.Lock()
	known := l.stranger.text != ""
	if known {
		l.stranger.gone.Reset(shown)
	} else {
		l.stranger = stranger{
			text: fmt.Sprintf("%s asks for the lease of service proxies, but %v", who, ErrProtocol),
			gone: time.AfterFunc(shown, func() {
				if l.strangerGone() {
					l.showOthers()
				}
			}),
		}
	}
	l.mu.Unlock()
	if !known {
		l.showOthers()
	}
}

// strangerGone forgets the stranger. It reports whether there was one.
func (l *Lease) strangerGone() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stranger.text == "" {
		return false
	}
	l.stranger.gone.Stop()
	l.stranger = stranger{}
	return true
}

// standBy waits until the name is free, and takes it. It returns an error if the holder
// cannot be authenticated, does not answer or sends no heartbeats.
func (l *Lease) standBy(ctx context.Context) (Listener, error) {
	for failures := 0; ; {
		if !pause(ctx, handoverDelay) {
			return nil, ctx.Err()
		}
		began := time.Now()
		c, first, err := l.request(ctx, requestWatch, answerTimeout)
		if err == nil {
			l.watch(ctx, c, first)
			err = fmt.Errorf("%s holds the lease of service proxies, but ends each connection", first.Identity)
		}
		held, listenErr := l.Transport.Listen()
		if listenErr == nil {
			return held, nil
		}
		if time.Since(began) > heartbeatTimeout {
			failures = 0
		}
		if failures++; failures >= watchTries {
			return nil, err
		}
	}
}

// watch shows the state of the holder, of which first came. It returns when the holder
// has ended or sends no heartbeat, or when ctx ends.
func (l *Lease) watch(ctx context.Context, c *Conn, first message) {
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	s := State{Standby: true, Holder: first.Identity}
	l.setState(s)
	inForce := time.Now() // for the last time
	for m, err := first, error(nil); err == nil; m, err = receive(c, heartbeatTimeout) {
		fault := ""
		if m.InForce {
			inForce = time.Now()
		} else if time.Since(inForce) > heartbeatTimeout {
			fault = cmp.Or(m.Fault, "it does not say why")
		}
		if (fault == "") != (s.HolderFault == "") { // the rest of the text may be a duration
			s.HolderFault = fault
			l.setState(s)
		}
	}
}
