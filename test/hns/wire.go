// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
)

// maxFrame bounds a frame in bytes. A list of 100,000 identities has 4 MB.
const maxFrame = 64 << 20

// A frame is a length of four bytes, little-endian, and fields that each end with a zero
// byte. A request has the function, a GUID, a handle in decimal and three strings, of
// which the last ones may be left out. A reply has the code in hexadecimal, a handle, and
// two documents.

func readFrame(r io.Reader) ([]string, error) {
	var length uint32
	if err := binary.Read(r, binary.LittleEndian, &length); err != nil {
		return nil, err
	}
	if length > maxFrame {
		return nil, fmt.Errorf("frame of %d bytes: at most %d", length, maxFrame)
	}
	frame := make([]byte, length)
	if _, err := io.ReadFull(r, frame); err != nil {
		return nil, err
	}
	return strings.Split(string(frame), "\x00"), nil
}

func writeFrame(w *bufio.Writer, fields ...string) error {
	frame := strings.Join(fields, "\x00") + "\x00"
	length := binary.LittleEndian.AppendUint32(nil, uint32(len(frame)))
	_, err := w.Write(append(length, frame...))
	return errors.Join(err, w.Flush())
}

func requestOf(fields []string) Request {
	fields = append(fields, make([]string, 6)...)
	handle, _ := strconv.ParseUint(fields[2], 10, 64) // 0 is never open
	return Request{Function: fields[0], ID: fields[1], Handle: handle, Args: [3]string(fields[3:6])}
}

// Serve serves calls of the program under test until the listener is closed, which closes
// all connections.
func (s *Simulator) Serve(l net.Listener) error {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			s.DropConnections()
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept a caller: %w", err)
		}
		s.addPeer(c)
		go func() {
			defer s.removePeer(c)
			s.serveConn(c)
		}()
	}
}

func (s *Simulator) serveConn(c net.Conn) {
	r, w := bufio.NewReader(c), bufio.NewWriter(c)
	for {
		fields, err := readFrame(r)
		if err != nil {
			return // the caller has gone, or uses another protocol
		}
		reply := s.CallAs(Caller, requestOf(fields))
		code := fmt.Sprintf("%08x", uint32(reply.Code))
		if writeFrame(w, code, strconv.FormatUint(reply.Handle, 10), reply.Output, reply.Error) != nil {
			return
		}
	}
}

type closer interface{ Close() error }

// peers are the connections.
type peers struct {
	open   map[closer]bool
	served int // and those that were dropped in the middle of a call
}

func (p peers) drop() {
	for c := range p.open {
		_ = c.Close() // the peer will notice
		delete(p.open, c)
	}
}

func (s *Simulator) addPeer(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peers.open[c] = true
	s.peers.served++
}

// Connections returns how many connections there are. A dropped one counts until its
// current call is over.
func (s *Simulator) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.peers.served
}

func (s *Simulator) removePeer(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.peers.open, c)
	s.peers.served--
	_ = c.Close()
}
