// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package notices

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"kubeproxy/test/netlab"
)

// Notice is one thing that changed.
type Notice struct {
	// At is when it was read, a moment after the commit.
	At   time.Time
	Kind Kind
	// Data has the thing's attributes as the kernel writes them: addresses
	// stand in it as their bytes. It must not be changed, nor kept.
	Data []byte
}

// Kind is what happened to what, in words: "new element", "gone chain".
type Kind string

// The kinds that tests look for.
const (
	NewElement  Kind = "new element"
	GoneElement Kind = "gone element"
	// Commit comes once for each transaction, after its other notices.
	Commit Kind = "commit"
)

// kindOf names a type of message.
func kindOf(message uint8) Kind {
	const new, gone = "new ", "gone "
	switch message {
	case unix.NFT_MSG_NEWTABLE:
		return new + "table"
	case unix.NFT_MSG_DELTABLE:
		return gone + "table"
	case unix.NFT_MSG_NEWCHAIN:
		return new + "chain"
	case unix.NFT_MSG_DELCHAIN:
		return gone + "chain"
	case unix.NFT_MSG_NEWRULE:
		return new + "rule"
	case unix.NFT_MSG_DELRULE:
		return gone + "rule"
	case unix.NFT_MSG_NEWSET:
		return new + "set"
	case unix.NFT_MSG_DELSET:
		return gone + "set"
	case unix.NFT_MSG_NEWSETELEM:
		return NewElement
	case unix.NFT_MSG_DELSETELEM:
		return GoneElement
	case unix.NFT_MSG_NEWGEN:
		return Commit
	}
	return Kind(fmt.Sprintf("message %d", message))
}

// Listener hears the notices of one host from Listen to Close.
type Listener struct {
	host *netlab.Host
	conn *netlink.Conn
	hear func(Notice)
	done chan struct{}

	mu    sync.Mutex
	tally Tally
	upTo  uint32 // is the generation of the latest commit, all of which was heard
	err   error
}

// buffer has room for what the kernel tells of a whole first program.
const buffer = 256 << 20

// Listen starts to listen on h. hear, if not nil, is called for each notice
// from one goroutine and must return soon.
func Listen(h *netlab.Host, hear func(Notice)) (*Listener, error) {
	l := &Listener{host: h, hear: hear, done: make(chan struct{}), tally: Tally{}}
	err := h.Do(func() (err error) {
		l.conn, err = netlink.Dial(unix.NETLINK_NETFILTER, nil)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen to the rules of %s: %w", h.Name, err)
	}
	if err := errors.Join(l.conn.SetReadBuffer(buffer), l.conn.JoinGroup(unix.NFNLGRP_NFTABLES)); err != nil {
		return nil, errors.Join(fmt.Errorf("listen to the rules of %s: %w", h.Name, err), l.conn.Close())
	}
	if l.upTo, err = Generation(h); err != nil {
		return nil, errors.Join(err, l.conn.Close())
	}
	go l.run()
	return l, nil
}

func (l *Listener) run() {
	defer close(l.done)
	for {
		messages, err := l.conn.Receive()
		now := time.Now()
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil {
			l.mu.Lock()
			l.err = err // some are lost; more may come
			l.mu.Unlock()
			if errors.Is(err, unix.ENOBUFS) {
				continue
			}
			return
		}
		for _, m := range messages {
			l.take(now, m)
		}
	}
}

func (l *Listener) take(now time.Time, m netlink.Message) {
	n := Notice{At: now, Kind: kindOf(uint8(m.Header.Type)), Data: m.Data}
	if l.hear != nil {
		l.hear(n)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tally[n.Kind]++
	if n.Kind != Commit {
		return
	}
	id, err := generation(m.Data)
	if err != nil {
		l.err = err
		return
	}
	l.upTo = id
}

// Tally is how many notices of each kind there were.
type Tally map[Kind]int

// patience is how long Tally waits for what was committed to be heard: long
// enough for a busy machine, since only a fault makes anybody wait for it.
const patience = time.Minute

// Tally returns the counts of all that was committed until now, and an error if
// some may be missing. What the kernel told of and nobody read yet it waits for:
// the notices of a change come after those who asked for it saw it in force.
func (l *Listener) Tally() (Tally, error) {
	now, err := Generation(l.host)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if tally, upTo, err := l.heard(); err != nil || int32(upTo-now) >= 0 { // it may wrap
			return tally, err
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("listen to the rules of %s: generation %d is not told of after %s", l.host.Name, now, patience)
		}
	}
}

func (l *Listener) heard() (Tally, uint32, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.tally), l.upTo, l.err
}

// Close ends the listening.
func (l *Listener) Close() error {
	err := l.conn.Close()
	<-l.done
	return err
}

// Since returns what came after an earlier tally.
func (t Tally) Since(earlier Tally) Tally {
	more := Tally{}
	for kind, n := range t {
		if n > earlier[kind] {
			more[kind] = n - earlier[kind]
		}
	}
	return more
}

// String lists the counts in the order of the kinds' names.
func (t Tally) String() string {
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(t)) {
		parts = append(parts, fmt.Sprintf("%s %d", kind, t[kind]))
	}
	return strings.Join(parts, ", ")
}
