// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Limits keep a slow peer from taking the whole day.
const (
	peerStart   = 45 * time.Second // until the first program is complete
	peerChange  = 30 * time.Second // for one change
	peerChanges = 6 * time.Second  // for all changes of one kind
	peerRounds  = 20               // of changes of one kind
)

// peer is another proxy, with all that it needs.
type peer struct {
	task
	network *network
	server  *apiServer
	addr    string
	dir     string
	process atomic.Pointer[process]
}

// measurePeer measures the program that the environment names.
func measurePeer(ctx context.Context, t task) (*figures, error) {
	n, err := newNetwork()
	if err != nil {
		return nil, err
	}
	defer n.close()
	p := &peer{task: t, network: n}
	if p.dir, err = os.MkdirTemp("", "bench-peer-"); err != nil {
		return nil, fmt.Errorf("make temporary directory: %w", err)
	}
	defer os.RemoveAll(p.dir)
	if err := errors.Join(p.serve(ctx), n.echo()); err != nil {
		return nil, err
	}
	f := newFigures()
	version, err := exec.CommandContext(ctx, t.Peer, "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("ask the peer for its version: %w", err)
	}
	f.note("Peer: %s.", strings.TrimSpace(string(version)))
	err = p.measure(ctx, f)
	if errors.Is(err, errSlow) { // keep the figures so far
		f.note("Peer: gave up while measuring the %v.", err)
		err = nil
	}
	return f, err
}

// serve starts the API server.
func (p *peer) serve(ctx context.Context) error {
	l, err := p.network.node.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for the peer: %w", err)
	}
	p.addr = l.Addr().String()
	p.server = newAPIServer(p.Services, func() time.Duration {
		if running := p.process.Load(); running != nil {
			return running.usedCPU()
		}
		return 0
	})
	go func() { _ = http.Serve(l, p.server) }() // ends with this process
	return nil
}

func (p *peer) measure(ctx context.Context, f *figures) error {
	kernel, err := p.kernelMemory()
	if err != nil {
		return err
	}
	running, err := p.start()
	if err != nil {
		return err
	}
	err = p.first(ctx, f, running)
	if err == nil {
		var after float64
		after, err = p.kernelMemory()
		f.set("kernel", after-kernel) // with the page tables of its processes
	}
	if err == nil {
		err = p.changes(ctx, f, running)
	}
	rss, stopErr := running.stop()
	f.set("rss", rss)
	if err = errors.Join(err, stopErr); err != nil {
		return err
	}
	return p.again(ctx, f)
}

func (p *peer) start() (*process, error) {
	running, err := startProcess(p.network, p.Peer, p.addr, p.dir)
	if err != nil {
		return nil, err
	}
	p.process.Store(running)
	return running, nil
}

// first measures the time until the change of the rules after which connections work.
func (p *peer) first(ctx context.Context, f *figures, running *process) error {
	p.logf("first program")
	var tried time.Time
	for now := range ticks(ctx, time.Millisecond) {
		delivered, before, ok := p.server.whenDelivered()
		changed := running.rules.changed()
		switch {
		case running.ended():
			return fmt.Errorf("the peer has ended: %w", running.logTail())
		case now.Sub(running.began) > peerStart:
			return fmt.Errorf("first program, not in after %s and %s of CPU: %w", peerStart, running.usedCPU(), errSlow)
		case !ok || changed.Equal(tried):
			continue
		}
		if !p.answers() {
			tried = changed
			continue
		}
		f.seconds("start.wall", changed.Sub(running.began))
		f.seconds("first.wall", changed.Sub(delivered))
		if err := running.waitForChildren(ctx); err != nil {
			return err
		}
		cpu := running.usedCPU()
		f.seconds("start.cpu", cpu)
		f.seconds("first.cpu", cpu-before)
		_, err := running.awaitIdle(ctx, peerStart)
		return wrap("work after the first program", err)
	}
	return ctx.Err()
}

// answers returns whether connections through Services work.
func (p *peer) answers() bool {
	err := p.network.client.Do(func() error {
		for _, i := range firstMiddleLast(p.Services) {
			to := &unix.SockaddrInet4{Port: servicePort, Addr: clusterIP(i).As4()}
			if _, _, err := transact(to, make([]byte, message), 50*time.Millisecond); err != nil {
				return err
			}
		}
		return nil
	})
	return err == nil
}

// changes measures from the write of a watch event to the next generation of the kernel's
// rules.
func (p *peer) changes(ctx context.Context, f *figures, running *process) error {
	p.logf("changes")
	var counts []string
	for _, c := range changes() {
		var took []time.Duration
		began := time.Now()
		for round := 0; round < p.pick(peerRounds, 2) && time.Since(began) < peerChanges; round++ {
			to := [][]int{c.a, c.b}[round%2]
			one, err := p.change(ctx, running, newSlice(serviceOfRound(round, p.Services), to))
			if err != nil {
				return wrap("change of one Service", err)
			}
			took = append(took, one)
		}
		f.set(c.metric+".p50", quantile(took, 0.5))
		counts = append(counts, fmt.Sprintf("%s %d", c.metric, len(took)))
	}
	f.note("Peer: changes measured: %s.", strings.Join(counts, ", "))
	return p.many(ctx, f, running)
}

// change returns how long the peer took for one change.
func (p *peer) change(ctx context.Context, running *process, s *discoveryv1.EndpointSlice) (time.Duration, error) {
	send, err := p.server.update(s)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	send()
	for now := range ticks(ctx, 200*time.Microsecond) {
		changed := running.rules.changed()
		if changed.After(began) {
			_, err := running.awaitIdle(ctx, peerChange)
			return changed.Sub(began), err
		}
		if now.Sub(began) > peerChange {
			return 0, errSlow
		}
	}
	return 0, ctx.Err()
}

// many changes many Services at once, and waits for the last commit.
func (p *peer) many(ctx context.Context, f *figures, running *process) error {
	var list []*discoveryv1.EndpointSlice
	for i := range min(manyServices, p.Services) {
		list = append(list, newSlice(i, numbers(perService-2)))
	}
	send, err := p.server.update(list...)
	if err != nil {
		return err
	}
	began := time.Now()
	send()
	last, err := running.awaitIdle(ctx, peerStart)
	if err == nil {
		f.seconds("many", last.Sub(began))
	}
	return wrap("change of many Services", err)
}

// again measures a second process that finds the rules of the first, then connections.
// All Services have all endpoints again.
func (p *peer) again(ctx context.Context, f *figures) (err error) {
	p.logf("restart")
	p.server.forget()
	running, err := p.start()
	if err != nil {
		return err
	}
	defer func() {
		_, stopErr := running.stop()
		err = errors.Join(err, stopErr)
	}()
	for range ticks(ctx, 5*time.Millisecond) {
		if _, _, ok := p.server.whenDelivered(); ok || running.ended() {
			break
		}
	}
	last, err := running.awaitIdle(ctx, peerStart)
	if err != nil {
		return wrap("restart", err)
	}
	if delivered, before, _ := p.server.whenDelivered(); last.After(delivered) {
		f.seconds("restart.wall", last.Sub(delivered))
		f.seconds("restart.cpu", running.usedCPU()-before)
	}
	p.logf("connections")
	bare, err := newNetwork()
	if err != nil {
		return err
	}
	defer bare.close()
	if err := errors.Join(p.network.shortenConntrackTimeouts(), bare.echo()); err != nil {
		return err
	}
	return p.compare(f, p.targets(p.network, bare))
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// ticks yields the time at an interval, until ctx ends.
func ticks(ctx context.Context, every time.Duration) iter.Seq[time.Time] {
	return func(yield func(time.Time) bool) {
		t := time.NewTicker(every)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case now := <-t.C:
				if !yield(now) {
					return
				}
			}
		}
	}
}
