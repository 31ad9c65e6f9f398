// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package lease lets one of several service proxies on a node program it. The proxy that
// starts last takes the lease from the holder, which finishes its round and stands by.
// When the holder ends for any reason, a standby takes the lease again. The lease is a
// name that the operating system gives to one process at a time. A Transport provides the
// name and the connections. Whether a round may start comes out of Enter.
package lease

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"kubeproxy/common/reconcile"
)

// Identity identifies a proxy process. All of it is foreign, so it must be sanitized.
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
	// Accept returns the next connection of what may be a proxy, as far as the system knows.
	Accept() (*Conn, error)
	Close() error
}

// Transport is how proxies of one node find each other. A process's end must release the name.
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
	// heartbeat is the interval of a holder's messages. After heartbeatTimeout without, it is gone.
	heartbeat        = 3 * time.Second
	heartbeatTimeout = 15 * time.Second
	// retryInterval is between attempts while the holder, or what has the name, does not answer.
	retryInterval = 5 * time.Second
	// handoverDelay lets the process that got the lease take the name first.
	handoverDelay = 200 * time.Millisecond
	// watchTries bounds the attempts to stand by for a holder that sends no heartbeats.
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
	// Fault, if set, returns why this process's rules are not in force, for standbys to show.
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
		if !reconcile.Pause(ctx, retryInterval) {
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
		if try >= takeTries || try > 0 && !reconcile.Pause(ctx, takePause) {
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

// maxUnproven bounds the connections that have not sent a proof and a request yet.
const maxUnproven = 128

// places are connections without proof and request so far. The zero value is ready.
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
			if !reconcile.Pause(ctx, handoverDelay) { // out of file descriptors, for instance
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
		for send(c, l.heartbeat(), answerTimeout) == nil && reconcile.Pause(ctx, heartbeat) {
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
		if !reconcile.Pause(ctx, handoverDelay) {
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

// Requests to the holder.
const (
	requestTake     = "take"  // hand over the lease
	requestWatch    = "watch" // send heartbeats until the holder ends
	requestIdentity = "who"   // return the holder's identity
)

// message is what both sides send: its length in four bytes, then JSON. The other side may have
// another version, so fields may be added, but not renamed or removed.
type message struct {
	Identity Identity `json:"identity"`
	Request  string   `json:"ask,omitempty"`
	Yielded  bool     `json:"yielded,omitempty"`
	// InForce means that the rules of a holder are in force, else Fault is why not.
	InForce bool   `json:"inForce,omitempty"`
	Fault   string `json:"fault,omitempty"`
}

// maxMessage bounds a message.
const maxMessage = 8 << 10

func send(c net.Conn, m message, within time.Duration) error {
	text, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode a message: %w", err)
	}
	if err := c.SetWriteDeadline(time.Now().Add(within)); err != nil {
		return err
	}
	_, err = c.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...))
	return err
}

func receive(c net.Conn, within time.Duration) (message, error) {
	var m message
	if err := c.SetReadDeadline(time.Now().Add(within)); err != nil {
		return m, err
	}
	var size [4]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return m, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > maxMessage {
		return m, fmt.Errorf("message of %d bytes, more than %d", n, maxMessage)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(c, text); err != nil {
		return m, err
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return m, fmt.Errorf("decode a message: %w", err)
	}
	m.Identity, m.Fault = m.Identity.sanitized(), sanitizedText(m.Fault)
	return m, nil
}

// receive authenticates a new connection and returns its request.
func (l *Lease) receive(c *Conn) (message, error) {
	if err := c.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return message{}, err
	}
	if err := l.Transport.Authenticate(c); err != nil {
		return message{}, err
	}
	return receive(c, answerTimeout)
}

// errHolderGone means that the holder has ended in the meantime.
var errHolderGone = errors.New("the holder of the lease has gone")

// request sends a request to the holder and returns its answer.
func (l *Lease) request(ctx context.Context, what string, within time.Duration) (*Conn, message, error) {
	dialling, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	c, err := l.Transport.Dial(dialling)
	if err != nil {
		return nil, message{}, noAnswerError(err)
	}
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	m, err := l.exchange(c, what, within)
	if err != nil {
		_ = c.Close()
	}
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = noAnswerError(os.ErrDeadlineExceeded)
	}
	return c, m, err
}

func (l *Lease) exchange(c *Conn, what string, within time.Duration) (message, error) {
	if err := c.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return message{}, noAnswerError(err)
	}
	if err := l.Transport.Authenticate(c); errors.Is(err, ErrProtocol) {
		return message{}, fmt.Errorf("%s holds the lease of service proxies: %w", c.Peer, err)
	} else if err != nil {
		return message{}, noAnswerError(err)
	}
	if !c.Trusted {
		return message{}, fmt.Errorf("a process that may not program this node, %s, holds the lease of service proxies", c.Peer)
	}
	if err := send(c, message{Identity: l.Self, Request: what}, answerTimeout); err != nil {
		return message{}, noAnswerError(err)
	}
	m, err := receive(c, within)
	if err != nil {
		return message{}, noAnswerError(err)
	}
	m.Identity = m.Identity.mergedWith(c.Peer)
	return m, nil
}

// noAnswerError explains why there was no answer, without addresses, which always differ.
func noAnswerError(err error) error {
	if op, is := errors.AsType[*net.OpError](err); is {
		err = op.Err
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("the service proxy that holds the lease does not answer: %w", err)
	}
	return fmt.Errorf("%w: %w", errHolderGone, err)
}

// closedByPeer reports whether the other side of c, which sends nothing, has closed it.
func closedByPeer(c net.Conn) bool {
	if c.SetReadDeadline(time.Now().Add(time.Millisecond)) != nil {
		return true
	}
	_, err := c.Read(make([]byte, 1))
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

// QueryHolder returns the identity of the holder. The error matches os.ErrDeadlineExceeded if
// there is one that does not answer, and others if there is none that can be authenticated.
func QueryHolder(ctx context.Context, t Transport) (Identity, error) {
	l := New(t, Identity{})
	c, m, err := l.request(ctx, requestIdentity, answerTimeout)
	if err != nil {
		return Identity{}, err
	}
	_ = c.Close()
	return m.Identity, nil
}

// maxText bounds each text from another process.
const maxText = 200

// sanitized returns i with sanitized texts.
func (i Identity) sanitized() Identity {
	for _, s := range []*string{&i.Command, &i.Pod, &i.Container, &i.Mode, &i.Version} {
		*s = sanitizedText(*s)
	}
	return i
}

// sanitizedText returns s shortened and printable, so that it cannot fill a log.
func sanitizedText(s string) string {
	s = strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)), " ")
	if r := []rune(s); len(r) > maxText {
		return string(r[:maxText]) + " ..."
	}
	return s
}

// mergedWith returns what a process said of itself, corrected by what the system says.
func (i Identity) mergedWith(system Identity) Identity {
	i.PID = system.PID
	i.Command = cmp.Or(system.Command, i.Command)
	i.Pod = cmp.Or(system.Pod, i.Pod)
	i.Container = cmp.Or(system.Container, i.Container)
	return i.sanitized()
}

// String describes i on one line.
func (i Identity) String() string {
	text := "process"
	switch {
	case i.PID > 0:
		text += fmt.Sprintf(" %d", i.PID)
	case i.OwnPID > 0:
		text += fmt.Sprintf(" %d of another container", i.OwnPID)
	default:
		text += " of unknown number"
	}
	if i.Command != "" {
		text += fmt.Sprintf(" (%s)", i.Command)
	}
	if i.Pod != "" {
		text += ", pod " + i.Pod
	}
	if i.Container != "" {
		text += ", container " + i.Container[:min(len(i.Container), 12)]
	}
	if i.Mode != "" {
		text += ", mode " + i.Mode
	}
	return text
}
