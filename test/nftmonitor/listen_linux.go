// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nftmonitor listens to changes of the nftables rules of a host. The kernel
// reports every change of every process after its commit. So tests and the bench learn
// what a proxy wrote, and when it came into force. They decide what should be written.
package nftmonitor

import (
	"encoding/binary"
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

// Event is one thing that changed.
type Event struct {
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
	NewElement     Kind = "new element"
	DeletedElement Kind = "gone element"
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
		return DeletedElement
	case unix.NFT_MSG_NEWGEN:
		return Commit
	}
	return Kind(fmt.Sprintf("message %d", message))
}

// Listener hears the notices of one host from Listen to Close.
type Listener struct {
	host     *netlab.Host
	conn     *netlink.Conn
	callback func(Event)
	done     chan struct{}

	mu         sync.Mutex
	counts     Counts
	generation uint32 // is the generation of the latest commit, all of which was heard
	err        error
}

// buffer has room for the notices about a whole first program.
const buffer = 256 << 20

// Listen starts to listen on h. hear, if not nil, is called for each notice
// from one goroutine and must return soon.
func Listen(h *netlab.Host, hear func(Event)) (*Listener, error) {
	l := &Listener{host: h, callback: hear, done: make(chan struct{}), counts: Counts{}}
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
	if l.generation, err = Generation(h); err != nil {
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
			l.handle(now, m)
		}
	}
}

func (l *Listener) handle(now time.Time, m netlink.Message) {
	n := Event{At: now, Kind: kindOf(uint8(m.Header.Type)), Data: m.Data}
	if l.callback != nil {
		l.callback(n)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts[n.Kind]++
	if n.Kind != Commit {
		return
	}
	id, err := generation(m.Data)
	if err != nil {
		l.err = err
		return
	}
	l.generation = id
}

// Counts is how many notices of each kind there were.
type Counts map[Kind]int

// countsTimeout is how long Tally waits for what was committed to be heard: long
// enough for a busy machine, since only a fault makes anybody wait for it.
const countsTimeout = time.Minute

// Counts returns the counts of all that was committed until now, and an error if some may
// be missing. It waits for notifications that were not read yet: they arrive after the
// process that made the change sees it in force.
func (l *Listener) Counts() (Counts, error) {
	now, err := Generation(l.host)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(countsTimeout); ; time.Sleep(time.Millisecond) {
		if tally, upTo, err := l.snapshot(); err != nil || int32(upTo-now) >= 0 { // it may wrap
			return tally, err
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("listen to the rules of %s: generation %d was not reported within %s", l.host.Name, now, countsTimeout)
		}
	}
}

func (l *Listener) snapshot() (Counts, uint32, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.counts), l.generation, l.err
}

// Close ends the listening.
func (l *Listener) Close() error {
	err := l.conn.Close()
	<-l.done
	return err
}

// Since returns what came after an earlier tally.
func (t Counts) Since(earlier Counts) Counts {
	more := Counts{}
	for kind, n := range t {
		if n > earlier[kind] {
			more[kind] = n - earlier[kind]
		}
	}
	return more
}

// String lists the counts in the order of the kinds' names.
func (t Counts) String() string {
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(t)) {
		parts = append(parts, fmt.Sprintf("%s %d", kind, t[kind]))
	}
	return strings.Join(parts, ", ")
}

// Generation returns the number of the latest change of rules on h, by any process.
func Generation(h *netlab.Host) (uint32, error) {
	var id uint32
	err := h.Do(func() error {
		conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
		if err != nil {
			return err
		}
		defer conn.Close()
		replies, err := conn.Execute(netlink.Message{
			Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: netlink.Request},
			Data:   []byte{unix.AF_UNSPEC, 0, 0, 0},
		})
		if err != nil {
			return err
		}
		if len(replies) == 0 {
			return errors.New("no reply")
		}
		id, err = generation(replies[0].Data)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("ask for the generation of the rules of %s: %w", h.Name, err)
	}
	return id, nil
}

// generation reads the message of the kernel about a commit, or about the present state.
func generation(data []byte) (uint32, error) {
	const header = 4
	if len(data) < header {
		return 0, fmt.Errorf("generation: message of %d bytes", len(data))
	}
	attrs, err := netlink.NewAttributeDecoder(data[header:])
	if err != nil {
		return 0, fmt.Errorf("generation: %w", err)
	}
	attrs.ByteOrder = binary.BigEndian
	var id uint32
	for attrs.Next() {
		if attrs.Type() == unix.NFTA_GEN_ID {
			id = attrs.Uint32()
		}
	}
	if err := attrs.Err(); err != nil {
		return 0, fmt.Errorf("generation: %w", err)
	}
	if id == 0 {
		return 0, errors.New("generation: the message has none")
	}
	return id, nil
}
