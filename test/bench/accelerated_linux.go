// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/conntrack"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/platform/linux/socketlb"
)

// stage is a number of Services in networks that handle them in different ways. Each has
// its own node.
type stage struct {
	task
	name string
	// alone has socket acceleration and no rules. layered has it above the rules of mode
	// nftables. chains has the rules of mode iptables, and known another proxy.
	alone, layered, chains, known *network
	rules                         *pipeline // of layered
	layers                        map[*network]*layer
	close                         []func()
}

// layer is socket acceleration of one node.
type layer struct {
	node    *network
	options socketlb.Options
	backend *socketlb.Backend
}

// open opens the layer like a new process.
func (l *layer) open() error {
	return l.node.node.Do(func() error {
		l.backend = socketlb.New(service.IPv4, socketlb.NewDriver(service.IPv4, l.options), l.options)
		l.backend.SetResync(time.Hour)
		return nil
	})
}

// apply brings the layer up to date.
func (l *layer) apply(ctx context.Context, s *service.Snapshot) error {
	p, err := l.backend.Plan(ctx, s)
	if err != nil || p.Empty() {
		return err
	}
	o := p.Apply(ctx)
	if o.Err == nil && o.Degraded != "" {
		return errors.New(o.Degraded)
	}
	return o.Err
}

// clients is the cgroup of a container of a pod. Processes in it are taken by the layer.
func (l *layer) clients() string { return filepath.Join(l.options.Cgroup, "kubepods", "pod1", "c1") }

// plainCgroup is the name of the cgroup of which no layer takes processes.
const plainCgroup = "plain"

// mountPins mounts a BPF file system, in the mount namespace of this process.
func mountPins() (dir string, remove func(), err error) {
	if dir, err = os.MkdirTemp("", "bench-pins-"); err != nil {
		return "", nil, fmt.Errorf("make temporary directory: %w", err)
	}
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		os.Remove(dir)
		return "", nil, fmt.Errorf("mount a BPF file system: %w", err)
	}
	return dir, func() {
		_ = unix.Unmount(dir, unix.MNT_DETACH)
		os.Remove(dir)
	}, nil
}

// newStage makes the networks for t's Services. Nothing is programmed, except by another
// proxy.
func (t task) newStage(ctx context.Context, name, pins string) (*stage, error) {
	t.logf("networks")
	s := &stage{task: t, name: name, layers: map[*network]*layer{}}
	for _, n := range []**network{&s.alone, &s.layered, &s.chains} {
		if err := s.network(n); err != nil {
			return s, err
		}
	}
	var err error
	if s.rules, err = newPipeline(s.layered); err != nil {
		return s, err
	}
	s.rules.feed(t.Services)
	s.rules.tracker.Synced()
	for part, n := range map[string]*network{"alone": s.alone, "layered": s.layered} {
		l := &layer{node: n, options: socketlb.Options{Cgroup: filepath.Join(t.Cgroup, name+"-"+part), Pins: pins}}
		s.layers[n] = l
		if err := errors.Join(os.MkdirAll(l.clients(), 0o755), l.open()); err != nil {
			return s, err
		}
	}
	if t.Peer == "" || name != fewName {
		return s, nil
	}
	return s, errors.Join(s.network(&s.known), s.startKnown(ctx))
}

func (s *stage) network(to **network) error {
	n, err := newNetwork()
	if err != nil {
		return err
	}
	*to = n
	s.close = append(s.close, func() { _ = n.close() })
	return errors.Join(n.shortenConntrackTimeouts(), n.echo())
}

func (s *stage) end() {
	for i := len(s.close) - 1; i >= 0; i-- {
		s.close[i]()
	}
}

// startKnown starts another proxy, and waits until connections pass through it.
func (s *stage) startKnown(ctx context.Context) error {
	p := &peer{task: s.task, network: s.known}
	var err error
	if p.dir, err = os.MkdirTemp("", "bench-peer-"); err != nil {
		return fmt.Errorf("make temporary directory: %w", err)
	}
	s.close = append(s.close, func() { os.RemoveAll(p.dir) })
	if err := p.serve(ctx); err != nil {
		return err
	}
	running, err := p.start()
	if err != nil {
		return err
	}
	s.close = append(s.close, func() { _, _ = running.stop() })
	for now := range ticks(ctx, 50*time.Millisecond) {
		switch {
		case p.answers():
			return nil
		case running.ended():
			return fmt.Errorf("the peer has ended: %w", running.logTail())
		case now.Sub(running.began) > peerStart:
			return errSlow
		}
	}
	return ctx.Err()
}

// programChains programs mode iptables.
func (s *stage) programChains(ctx context.Context) error {
	s.Variant = "legacy"
	dir, err := s.commands()
	if dir != "" {
		s.close = append(s.close, func() { os.RemoveAll(dir) })
	}
	if err != nil {
		return err
	}
	var b reconcile.Backend
	err = s.chains.node.Do(func() (err error) {
		b, err = iptables.New(service.IPv4, iptables.Options{MasqueradeBit: masqueradeBy, DropInvalid: true, Dir: dir})
		return err
	})
	if err != nil {
		return err
	}
	_, err = (&pipeline{tracker: s.rules.tracker, backend: b, do: s.chains.node.Do}).apply(ctx)
	return err
}

// paths are the ways that connections are measured on. They lead to all Services in turn;
// the direct ones to as many other addresses.
func (s *stage) paths(bare *network) []target {
	plain := filepath.Join(s.Cgroup, plainCgroup)
	to := netip.AddrPortFrom(clusterIP(0), servicePort)
	services := func(i int) netip.Addr { return clusterIP(i * 7919 % s.Services) }
	direct := func(i int) netip.Addr { return endpointIP(i*7919%s.Services, perService+i%perService) }
	all := []target{
		{name: directName, from: bare, among: direct, cgroup: plain},
		{name: "alone", from: s.alone, among: services, cgroup: s.layers[s.alone].clients()},
		{name: "beside", from: s.layered, among: direct, cgroup: plain},
		{name: "layer", from: s.layered, among: services, cgroup: s.layers[s.layered].clients()},
		{name: "nftables", from: s.layered, among: services, cgroup: plain},
		{name: "iptables", from: s.chains, among: services, cgroup: plain},
	}
	if s.known != nil {
		all = append(all, target{name: "known", from: s.known, among: services, cgroup: plain})
	}
	for i := range all {
		x := &all[i]
		x.to = to
		if x.name == directName || x.name == "beside" {
			x.to = netip.AddrPortFrom(direct(0), targetPort)
		}
		x.name = s.name + "." + x.name
	}
	return all
}

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

// measureAcceleration measures socket acceleration beside everything that it competes with.
func (b *bench) measureAcceleration(ctx context.Context, s *section) error {
	s.how = howAccelerated
	b.notePeer(s, howKnown)
	cgroup, remove, err := acceleratedCgroup()
	if err != nil {
		return err
	}
	defer remove()
	services := task{Quick: b.quick}.pick(30000, 300)
	f, err := b.child(ctx, task{Role: roleConnect, Services: services, Cgroup: cgroup})
	if err != nil {
		return err
	}
	for _, t := range acceleratedTables(services) {
		t.add(roleOurs, f)
		s.add(b.out, t)
	}
	return nil
}

// errNotPossible means that this machine does not have what a part needs.
var errNotPossible = errors.New("not possible on this machine")

// acceleratedCgroup makes a cgroup for clients.
func acceleratedCgroup() (path string, remove func(), err error) {
	_, unmount, err := mountPins()
	if err != nil {
		return "", nil, fmt.Errorf("%w: %w", errNotPossible, err)
	}
	unmount()
	root, err := socketlb.UnifiedRoot()
	if err != nil {
		return "", nil, fmt.Errorf("%w: %w", errNotPossible, err)
	}
	if path, err = os.MkdirTemp(root, "bench-"); err != nil {
		return "", nil, fmt.Errorf("%w: make a cgroup: %w", errNotPossible, err)
	}
	return path, func() {
		var all []string
		_ = filepath.WalkDir(path, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				all = append(all, path)
			}
			return nil
		})
		for _, dir := range slices.Backward(all) {
			removeGroup(dir)
		}
	}, nil
}

func acceleratedTables(services int) []table {
	return []table{
		{services: fewServices, base: "direct", head: "here", rows: acceleratedPaths(fewName), title: fmt.Sprintf("Connections to %d Services", fewServices)},
		{services: services, base: "direct", head: "here", rows: append(acceleratedPaths(manyName), acceleratedSizes()...),
			title: fmt.Sprintf("Connections to %s Services", thousands(services))},
		{services: services, base: "rules", head: "layer", rows: acceleratedCosts(), title: fmt.Sprintf("What the layer adds to the rules of %s Services of %d endpoints", thousands(services), perService)},
		{services: fewServices, base: "entries", head: "translated", rows: acceleratedEntries(),
			title: fmt.Sprintf("Entries of connection tracking of %d connections", heldConnections)},
	}
}

// The limits of what a taken connection may cost, as multiples of a direct one.
const (
	connectLimit = 1.04
	requestLimit = 1.03
)

const whyTracked = "The rules make the kernel track all connections of the node, those to endpoints too."

// acceleratedPaths are rows on connections with one number of Services.
func acceleratedPaths(size string) []row {
	var all []row
	for _, part := range []struct {
		label, name string
		limit       float64
	}{{"connect", "made.", connectLimit}, {"request", "", requestLimit}} {
		direct := "connect." + part.name + size + "." + directName
		for _, x := range []struct {
			label, name string
			aim         aim
		}{
			{"layer alone", "alone", aim{times: part.limit}},
			{"direct, beside the rules", "beside", aim{}},
			{"layer above the rules", "layer", aim{times: part.limit}},
			{"mode nftables", "nftables", aim{}},
			{"mode iptables", "iptables", aim{}},
			{"peer", "known", aim{}},
		} {
			if size == manyName && x.name == "known" {
				continue // it has few Services only
			}
			metric := "connect." + part.name + size + "." + x.name
			all = append(all, row{label: part.label + ", " + x.label, metric: metric, floor: direct, ratio: metric + ".ratio",
				unit: inSeconds, spread: true, aim: x.aim, cited: part.name != "", why: whyTracked})
		}
		all = append(all, row{label: part.label + ", layer/direct, both beside the rules", metric: "connect." + part.name + size + ".layer",
			floor: "connect." + part.name + size + ".beside", ratio: "beside." + part.name + size, unit: inSeconds, spread: true, aim: aim{times: part.limit}})
	}
	return all
}

// acceleratedSizes are rows on what more Services cost.
func acceleratedSizes() []row {
	var all []row
	for _, part := range []struct{ label, name string }{{"connect", "made."}, {"request", ""}} {
		for _, path := range []struct{ label, name string }{{"layer alone", "alone"}, {"layer above the rules", "layer"}} {
			all = append(all, row{label: fmt.Sprintf("%s, %s, against %d Services", part.label, path.label, fewServices),
				metric: "more." + part.name + path.name, unit: inPercent, spread: true, aim: aim{most: always(0.02)}})
		}
	}
	return all
}

// acceleratedCosts are rows on what the layer costs beside the rules.
func acceleratedCosts() []row {
	of := func(label, metric string, u unit, a aim) row {
		return row{label: label, metric: manyName + ".layer." + metric, floor: manyName + ".rules." + metric, unit: u, aim: a}
	}
	return []row{
		of("start, CPU", "start.cpu", inSeconds, aim{most: always(0.5)}),
		of("memory for each endpoint", "memory", inBytes, aim{most: always(64)}),
		of("one endpoint replaced, p50", "replace.p50", inSeconds, aim{most: always(5e-6)}),
		of("one endpoint added or removed, p50", "scale.p50", inSeconds, aim{most: always(5e-6)}),
	}
}

// acceleratedEntries are rows on connection tracking.
func acceleratedEntries() []row {
	var all []row
	for _, x := range []struct{ label, name string }{
		{"direct", directName}, {"layer alone", "alone"}, {"direct, beside the rules", "beside"},
		{"layer above the rules", "layer"}, {"mode nftables", "nftables"}, {"mode iptables", "iptables"}, {"peer", "known"},
	} {
		all = append(all, row{label: x.label, metric: "translated.few." + x.name, floor: "entries.few." + x.name, unit: inWhole})
	}
	return all
}

const howAccelerated = `
**The layer** gives a socket its endpoint when it connects. A client in a pod's cgroup connects to all Services in turn;
**direct** connections go to as many other addresses, in a network without rules. A ratio is the median of 150 rounds, and
95 % is where the true one is with that probability. **The rules** are those of mode nftables. They make the kernel track
direct connections, too, so compare the layer above them with those. A start is the median of five, a change one of 2,000.
`

const howKnown = `
**peer** is the program that PEER_KUBE_PROXY named, in mode nftables, with 10 Services only.
`
