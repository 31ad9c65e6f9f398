// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"fmt"
	"sync"
)

// Limits shares out the files that the process may have open. The Backends of
// both families have one in common.
type Limits struct {
	files int // that the process may have
	max   int // that relaying may have

	mu     sync.Mutex
	freed  *sync.Cond
	used   int
	share  [2]int // of used, what listeners and UDP clients have
	wave   *sync.WaitGroup
	conns  int // of TCP
	text   string
	report func(string)
}

// Kinds of what is only given a share.
const (
	forListener = iota
	forSession
)

// NewLimits shares out so many files. Some are left for all the rest that the
// process does.
func NewLimits(files int) *Limits {
	l := &Limits{files: files, max: files - min(512, files/4), wave: &sync.WaitGroup{}}
	l.freed = sync.NewCond(&l.mu)
	return l
}

// Observe has report told what the relay lacks, and with an empty text that it
// lacks nothing any more, from now on. report must not block.
func (l *Limits) Observe(report func(text string)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.report = report
	report(l.text)
}

// enter takes the files of one TCP connection. It waits until there are some
// and is false if by then nobody wants them, which stop tells.
func (l *Limits) enter(stop func() bool) (leave func(), ok bool) {
	const two = 2
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.used+two > l.max {
		if stop() {
			return nil, false
		}
		l.say(fmt.Sprintf("connections to Services wait, as %d files are open, and the process may have %d: raise its limit of open files", l.used, l.files))
		l.freed.Wait()
	}
	l.used += two
	l.conns++
	wave := l.wave
	wave.Add(1)
	return func() {
		l.mu.Lock()
		l.conns--
		l.mu.Unlock()
		l.release(two)
		wave.Done()
	}, true
}

// take takes one file for kind, if it has not got its share.
func (l *Limits) take(kind int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.used >= l.max || l.share[kind] >= l.most(kind) {
		if kind == forSession {
			l.say(fmt.Sprintf("UDP clients of Services are turned away, as %d are served, and the process may have %d open files: raise its limit of open files", l.share[kind], l.files))
		}
		return false
	}
	l.used++
	l.share[kind]++
	return true
}

// most is the share of a kind.
func (l *Limits) most(kind int) int {
	return [...]int{forListener: l.max / 4 * 3, forSession: l.max / 2}[kind]
}

// ample reports that a kind has used less than half of its share, so that what
// is only of some use may be kept.
func (l *Limits) ample(kind int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.used < l.max/2 && l.share[kind] < l.most(kind)/2
}

// give gives back what take took.
func (l *Limits) give(kind int) {
	l.mu.Lock()
	l.share[kind]--
	l.mu.Unlock()
	l.release(1)
}

func (l *Limits) release(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used -= n
	l.freed.Signal()
	if l.text != "" && l.used <= l.max/8*7 {
		l.say("")
	}
}

// trouble says what the system refused, for as long as relaying is short of
// something.
func (l *Limits) trouble(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.say("connections to Services wait: " + err.Error())
}

// wake has those that wait look whether they still want to.
func (l *Limits) wake() {
	l.mu.Lock() // nobody is between looking and waiting
	defer l.mu.Unlock()
	l.freed.Broadcast()
}

func (l *Limits) say(text string) {
	if (text == "") == (l.text == "") { // the first reason is good enough
		return
	}
	l.text = text
	if l.report != nil {
		l.report(text)
	}
}

// Connections returns how many of TCP there are.
func (l *Limits) Connections() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conns
}

// Drain waits until the TCP connections that are open now have ended, or ctx.
func (l *Limits) Drain(ctx context.Context) {
	l.mu.Lock()
	wave := l.wave
	l.wave = &sync.WaitGroup{}
	l.mu.Unlock()
	done := make(chan struct{})
	go func() {
		wave.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}
