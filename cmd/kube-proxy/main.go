// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Command kube-proxy forwards the traffic of Kubernetes Services on one node.
// This package reads the command line and wires the parts together; each part
// does its work elsewhere.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"kubeproxy/common/printable"
)

func main() {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	to := streams{os.Stdout, &nonblockingWriter{to: os.Stderr}}
	stop := &shutdown{cancel: cancel, log: to.err, limit: stopLimit}
	ctx = context.WithValue(ctx, shutdownKey{}, stop)
	go func() { os.Exit(stop.waitForSignal(signals)) }()
	code := execute(ctx, os.Args[1:], to)
	klog.Flush()
	os.Exit(code)
}

// stopLimit is how long a stop may take, whatever hangs. Who stops containers or
// services often waits 10 s or more, and some as little as 5 s.
const stopLimit = stopTime + 500*time.Millisecond

// shutdown is how signals end the process.
type shutdown struct {
	cancel        context.CancelFunc
	log           io.Writer
	limit         time.Duration
	ignoreSignals atomic.Bool               // signals are no reason to end
	requestedAt   atomic.Pointer[time.Time] // when to end, nil before
}

type shutdownKey struct{}

// withoutSignals has signals not end the process, as for a Windows service, which a
// user who logs off must not end.
func withoutSignals(ctx context.Context) context.Context {
	if e, ok := ctx.Value(shutdownKey{}).(*shutdown); ok {
		e.ignoreSignals.Store(true)
	}
	return context.WithoutCancel(ctx)
}

// waitForSignal asks the process to end at the first signal, and returns the exit code when
// it must at once: when it has not ended in time, or at another signal. What is
// programmed stays in force either way.
func (e *shutdown) waitForSignal(signals <-chan os.Signal) (code int) {
	first := <-signals
	for e.ignoreSignals.Load() {
		first = <-signals
	}
	now := time.Now()
	e.requestedAt.Store(&now)
	e.cancel()
	select {
	case second := <-signals:
		return signalCode(second)
	case <-time.After(e.limit):
		fmt.Fprintf(e.log, "kube-proxy: not ended %s after the signal, as something hangs; ending now, and what is programmed stays in force\n", e.limit)
		return signalCode(first)
	}
}

// stopDeadline returns when a stop has to be over, which ends the process of ctx.
func stopDeadline(ctx context.Context) time.Time {
	requestedAt := time.Now()
	if e, ok := ctx.Value(shutdownKey{}).(*shutdown); ok && e.requestedAt.Load() != nil {
		requestedAt = *e.requestedAt.Load()
	}
	return requestedAt.Add(stopTime)
}

// signalCode is the exit code that shells report for a process ended by a signal.
func signalCode(s os.Signal) int {
	n, _ := s.(syscall.Signal)
	return 128 + int(n)
}

// streams is where a command writes: results to out, everything else to err.
type streams struct{ out, err io.Writer }

// execute runs the command line args and returns the exit code.
func execute(ctx context.Context, args []string, to streams) int {
	to.err = printable.Writer(to.err)
	root := newRoot(to)
	root.SetArgs(args)
	return exitCode(root.ExecuteContext(ctx), to.err)
}

// exitCode tells err, if there is something to tell, and returns the exit code.
func exitCode(err error, w io.Writer) int {
	end, coded := errors.AsType[*exit](err)
	if err != nil && (!coded || end.err != nil) {
		fmt.Fprintf(w, "kube-proxy: %s\n", printable.Error(err))
	}
	switch {
	case err == nil:
		return 0
	case coded:
		return end.code
	}
	return 1
}
