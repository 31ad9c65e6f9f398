// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

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
	"strings"
	"time"
	"unicode"
)

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
	if op := (*net.OpError)(nil); errors.As(err, &op) {
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
