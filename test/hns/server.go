// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"net"
	"strings"
)

// Server is a Simulator that programs can call.
type Server struct {
	*Simulator
	Addr string // host and port, for the variable HNS_SIM_ADDR of the program

	listener net.Listener
	ended    chan error
}

// NewServer serves a Simulator at a listener, which it takes over.
func NewServer(s *Simulator, l net.Listener) *Server {
	server := &Server{Simulator: s, Addr: l.Addr().String(), listener: l, ended: make(chan error, 1)}
	go func() { server.ended <- s.Serve(l) }()
	return server
}

// Close ends all connections.
func (s *Server) Close() error {
	_ = s.listener.Close() // its only error is that it is closed
	return <-s.ended
}

// TB is the part of testing.TB that Start needs.
type TB interface {
	Helper()
	Cleanup(func())
	Errorf(format string, args ...any)
	Failed() bool
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
}

// Start serves a Simulator on a free port of the loopback address for one test. A warning
// fails the test, and a failed test logs its journal.
func Start(t TB, o Options) *Server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen for the simulated HNS: %v", err)
	}
	return StartAt(t, l, o)
}

// StartAt is Start at a listener of the caller, in a network namespace for instance.
func StartAt(t TB, l net.Listener, o Options) *Server {
	t.Helper()
	server := NewServer(New(o), l)
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Errorf("close the simulated HNS: %v", err)
		}
		server.report(t)
	})
	return server
}

// lastCalls is how much of the journal a failed test shows.
const lastCalls = 60

func (s *Server) report(t TB) {
	t.Helper()
	for _, w := range s.Warnings() {
		t.Errorf("simulated HNS: %s", w)
	}
	if !t.Failed() {
		return
	}
	var lines []string
	for _, e := range s.Journal() {
		lines = append(lines, e.String())
	}
	t.Logf("calls to the simulated HNS: %s\nthe last ones that change something:\n%s", s.Calls(), strings.Join(lines[max(0, len(lines)-lastCalls):], "\n"))
}
