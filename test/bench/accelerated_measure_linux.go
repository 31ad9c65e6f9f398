// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/conntrack"
)

// The names of the two stages.
const (
	fewName  = "few"
	manyName = "many"
)

// measureConnect measures socket acceleration with few and with t's Services.
func measureConnect(ctx context.Context, t task) (*figures, error) {
	pins, remove, err := mountPins()
	if err != nil {
		return nil, err
	}
	defer remove()
	if err := os.MkdirAll(filepath.Join(t.Cgroup, plainCgroup), 0o755); err != nil {
		return nil, err
	}
	bare, err := newNetwork()
	if err != nil {
		return nil, err
	}
	defer bare.close()
	if err := bare.echo(); err != nil {
		return nil, err
	}
	f := newFigures()
	var targets []target
	var stages []*stage
	for name, services := range map[string]int{fewName: fewServices, manyName: t.Services} {
		x := t
		x.Services = services
		s, err := x.newStage(ctx, name, pins)
		defer s.end()
		if err == nil {
			err = s.program(ctx, f)
		}
		if err != nil {
			return nil, fmt.Errorf("%d Services: %w", services, err)
		}
		stages = append(stages, s)
		targets = append(targets, s.paths(bare)...)
	}
	t.logf("connections")
	p, err := takeTurns(targets, t.pick(150, 6), time.Duration(t.pick(30, 5))*time.Millisecond)
	if err != nil {
		return nil, err
	}
	t.report(f, p, targets)
	for _, s := range stages {
		if s.name == fewName {
			err = errors.Join(err, s.tracked(ctx, f, s.paths(bare)))
		}
	}
	return f, err
}

// report records what connections took.
func (t task) report(f *figures, p pairs, targets []target) {
	for _, x := range targets {
		size, _, _ := strings.Cut(x.name, ".")
		p.set(f, x.name, size+"."+directName)
	}
	for _, part := range []string{"made.", ""} {
		for _, size := range []string{fewName, manyName} {
			f.spread("beside."+part+size, p.ratios(part, size+".layer", size+".beside"))
		}
		for _, path := range []string{"alone", "layer"} {
			var all []float64
			for i := range p[part+"few.direct"] {
				cost := func(size string) float64 { return p[part+size+"."+path][i] / p[part+size+"."+directName][i] }
				all = append(all, cost(manyName)/cost(fewName)-1)
			}
			slices.Sort(all)
			f.spread("more."+part+path, all)
		}
	}
}

// program programs everything, and measures that.
func (s *stage) program(ctx context.Context, f *figures) error {
	s.logf("first program")
	own := s.layers[s.alone]
	for name, program := range map[string]func() error{
		"rules": func() error { _, err := s.rules.apply(ctx); return err },
		"layer": func() error { return own.apply(ctx, s.rules.tracker.Latest()) },
	} {
		heap := heapInUse()
		kernel, err := s.kernelMemory()
		if err != nil {
			return err
		}
		m := start()
		if err := program(); err != nil {
			return err
		}
		f.usage(s.name+"."+name+".start", m)
		after, err := s.kernelMemory()
		if err != nil {
			return err
		}
		f.set(s.name+"."+name+".memory", (after-kernel+heapInUse()-heap)/float64(s.Services*perService))
	}
	if err := errors.Join(s.startAgain(ctx, f, own), s.change(ctx, f, own)); err != nil {
		return err
	}
	s.logf("mode iptables")
	return errors.Join(s.layers[s.layered].apply(ctx, s.rules.tracker.Latest()), s.programChains(ctx))
}

// startAgain measures more starts, of which it keeps the median, and a start that finds the
// tables of an earlier process.
func (s *stage) startAgain(ctx context.Context, f *figures, l *layer) error {
	took, cpu := []float64{f.Values[s.name+".layer.start.wall"]}, []float64{f.Values[s.name+".layer.start.cpu"]}
	want := s.rules.tracker.Latest()
	for range s.pick(4, 1) {
		if err := errors.Join(l.backend.Cleanup(ctx), l.open()); err != nil {
			return err
		}
		runtime.GC()
		m := start()
		if err := l.apply(ctx, want); err != nil {
			return err
		}
		w, c := m.stop()
		took, cpu = append(took, w.Seconds()), append(cpu, c.Seconds())
	}
	f.set(s.name+".layer.start.wall", quantile(took, 0.5))
	f.set(s.name+".layer.start.cpu", quantile(cpu, 0.5))
	if err := errors.Join(l.backend.Close(), l.open()); err != nil {
		return err
	}
	m := start()
	p, err := l.backend.Plan(ctx, want)
	if err != nil {
		return err
	}
	f.usage(s.name+".layer.restart", m)
	if !p.Empty() {
		return errNotEmpty
	}
	return nil
}

// change measures one change at a time, from the snapshot to the kernel.
func (s *stage) change(ctx context.Context, f *figures, l *layer) error {
	s.logf("changes")
	for _, c := range changes()[:2] {
		took := map[string][]time.Duration{}
		for round := range s.pick(changeRounds, 20) {
			i := serviceOfRound(round, s.Services)
			s.rules.tracker.SetSlice(newSlice(i, [][]int{c.a, c.b}[round%2]))
			want := s.rules.tracker.Latest()
			began := time.Now()
			if err := l.apply(ctx, want); err != nil {
				return fmt.Errorf("change one Service: %w", err)
			}
			after := time.Now()
			if _, err := s.rules.apply(ctx); err != nil {
				return fmt.Errorf("change the rules of one Service: %w", err)
			}
			took["layer"], took["rules"] = append(took["layer"], after.Sub(began)), append(took["rules"], time.Since(after))
		}
		for name, list := range took {
			f.set(fmt.Sprintf("%s.%s.%s.p50", s.name, name, c.metric), quantile(list, 0.5))
			f.set(fmt.Sprintf("%s.%s.%s.p99", s.name, name, c.metric), quantile(list, 0.99))
		}
	}
	return s.rules.restore(ctx, s.Services)
}

// heldConnections is how many connections are open while their entries are counted.
const heldConnections = 100

// tracked counts the entries of connection tracking that open connections have, and those
// among them that translate an address.
func (s *stage) tracked(ctx context.Context, f *figures, paths []target) error {
	s.logf("connection tracking")
	for _, x := range paths {
		open, err := x.hold(heldConnections)
		entries, translated := 0, 0
		if err == nil {
			entries, translated, err = x.entries(ctx)
		}
		for _, fd := range open {
			unix.Close(fd)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", x.name, err)
		}
		f.set("entries."+x.name, float64(entries))
		f.set("translated."+x.name, float64(translated))
	}
	return nil
}

// hold opens connections that have been answered.
func (t target) hold(count int) (open []int, err error) {
	if err := t.joinCgroup(); err != nil {
		return nil, err
	}
	err = t.from.client.Do(func() error {
		for len(open) < count {
			to := &unix.SockaddrInet4{Port: int(t.to.Port()), Addr: t.among(len(open)).As4()}
			fd, err := dialAndTalk(to)
			switch {
			case err == nil:
				open = append(open, fd)
			case !errors.Is(err, unix.EINTR): // which a busy Go runtime causes
				return err
			}
		}
		return nil
	})
	return open, err
}

// entries counts the entries of open connections on the node.
func (t target) entries(ctx context.Context) (all, translated int, err error) {
	const established = 3 // of enum tcp_conntrack, in the kernel's nf_conntrack_tcp.h
	err = t.from.node.Do(func() error {
		return conntrack.Netlink{}.Dump(ctx, conntrack.Filter{Family: service.IPv4, Protocol: service.TCP}, func(x conntrack.Flow) {
			if x.State != established || x.Src.Addr() != t.from.client.IPv4 {
				return
			}
			all++
			if x.ReplySrc != x.Dst {
				translated++
			}
		})
	})
	return all, translated, err
}
