// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
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
	var all sync.WaitGroup
	defer all.Wait()
	slots := make(chan struct{}, maxUnauthenticated)
	for {
		raw, err := name.Accept()
		if ctx.Err() != nil {
			if err == nil {
				_ = raw.Close()
			}
			return
		}
		if err != nil {
			if !pause(ctx, handoverDelay) { // out of file descriptors, for instance
				return
			}
			continue
		}
		select {
		case slots <- struct{}{}:
		default: // too many idle connections
			_ = raw.Close()
			continue
		}
		all.Go(func() {
			c, request, err := l.receive(raw)
			<-slots
			if err != nil {
				_ = raw.Close()
				return
			}
			defer c.Close()
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
		for send(c, message{Identity: l.Self}, answerTimeout) == nil && pause(ctx, heartbeat) {
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
	l.mu.Unlock()
	finished := make(chan struct{})
	go func() {
		l.rounds.Lock()
		defer l.rounds.Unlock()
		close(finished)
	}()
	select {
	case <-finished:
	case <-time.After(takeTimeout / 2): // the other side times out after takeTimeout
	}
	l.setState(State{Standby: true, Holder: to})
}

// setWatcher records that peer stands by on c. A zero peer means that c has ended.
func (l *Lease) setWatcher(c *Conn, peer Identity) {
	l.mu.Lock()
	if peer == (Identity{}) {
		delete(l.watchers, c)
	} else {
		l.watchers[c] = peer
	}
	s := State{}
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

// standBy waits until the name is free, and takes it. It returns an error if the holder
// cannot be authenticated or does not answer.
func (l *Lease) standBy(ctx context.Context) (Listener, error) {
	for failures := 0; ; {
		if !pause(ctx, handoverDelay) {
			return nil, ctx.Err()
		}
		c, first, err := l.request(ctx, requestWatch, answerTimeout)
		if err == nil {
			failures = 0
			l.setState(State{Standby: true, Holder: first.Identity})
			l.watch(ctx, c)
		}
		held, listenErr := l.Transport.Listen()
		if listenErr == nil {
			return held, nil
		}
		const tries = 5
		if failures++; err != nil && failures >= tries {
			return nil, err
		}
	}
}

// watch returns when the holder has ended or sends no heartbeat, or when ctx ends.
func (l *Lease) watch(ctx context.Context, c *Conn) {
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	for {
		if _, err := receive(c, heartbeatTimeout); err != nil {
			return
		}
	}
}
