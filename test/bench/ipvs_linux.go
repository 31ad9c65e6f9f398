// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	library "github.com/moby/ipvs"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/platform/linux/ipvs"
	"kubeproxy/test/vm"
)

const (
	virtualServices = 1000  // that are programmed beside the library
	changedServices = 10000 // among which one changes
	virtualRounds   = 400   // of changes of one kind
)

// measureIPVS measures everything about mode ipvs, each part in a process of its own, on
// the machine of this process.
func measureIPVS(ctx context.Context, t task) (*figures, error) {
	b := &bench{options: options{quick: t.Quick}, out: io.Discard}
	f := newFigures()
	few, many := task{Services: fewServices}, task{Services: t.pick(changedServices, 100)}
	turns, err := b.alternate(ctx, task{Services: t.pick(virtualServices, 50)}, roleLibrary, roleVirtual)
	if err != nil {
		return nil, err
	}
	for r, got := range turns {
		f.merge(string(r)+".", got)
	}
	for _, x := range []struct {
		prefix string
		role   role
		task   task
	}{
		{"few.", roleVirtualPaths, few}, {"few.nftables.", roleFew, few},
		{"many.", roleVirtualChanges, many}, {"many.nftables.", roleFew, many},
	} {
		x.task.Role = x.role
		got, err := b.child(ctx, x.task)
		if err != nil {
			return nil, err
		}
		f.merge(x.prefix, got)
	}
	return f, nil
}

// merge adds other figures under names that begin with prefix.
func (f *figures) merge(prefix string, other *figures) {
	for metric, v := range other.Values {
		f.set(prefix+metric, v)
	}
	f.Notes = append(f.Notes, other.Notes...)
}

// newVirtual returns a pipeline to the virtual servers of n's node. It compares the
// observed with the desired state once in a period, or in each round if period is 0.
func newVirtual(n *network, period time.Duration) (*pipeline, error) {
	r := &pipeline{tracker: track.New(track.Options{
		NodeName: ownNode, NodePorts: service.AnyAddress(),
		Pods: service.LocalPods{Prefixes: []netip.Prefix{netip.MustParsePrefix(clusterCIDR)}},
	}), do: n.node.Do}
	err := n.node.Do(func() (err error) {
		r.backend, err = ipvs.New(service.IPv4, ipvs.Options{MasqueradeBit: masqueradeBy, SyncPeriod: period})
		return err
	})
	return r, err
}

// withVirtual runs measure with t's Services in a new network, of which nothing is
// programmed yet.
func (t task) withVirtual(measure func(*network, *pipeline) error) error {
	n, err := newNetwork()
	if err != nil {
		return err
	}
	defer n.close()
	r, err := newVirtual(n, time.Hour)
	if err != nil {
		return err
	}
	r.feed(t.Services)
	r.tracker.Synced()
	return measure(n, r)
}

// measureVirtual measures the first program of a whole backend.
func measureVirtual(ctx context.Context, t task) (*figures, error) {
	f := newFigures()
	return f, t.withVirtual(func(n *network, r *pipeline) error {
		t.logf("first program")
		m := start()
		if _, err := r.apply(ctx); err != nil {
			return err
		}
		f.usage("first", m)
		return t.checkProgrammed(n)
	})
}

// measureLibrary creates the same virtual servers with the library.
func measureLibrary(_ context.Context, t task) (*figures, error) {
	f := newFigures()
	return f, t.withVirtual(func(n *network, _ *pipeline) error {
		t.logf("one by one")
		err := n.node.Do(func() error {
			h, err := library.New("")
			if err != nil {
				return err
			}
			defer h.Close()
			m := start()
			for i := range t.Services {
				if err := makeVirtual(h, i); err != nil {
					return err
				}
			}
			f.usage("first", m)
			return nil
		})
		return errors.Join(err, t.checkProgrammed(n))
	})
}

// virtualOf is Service i as a value of the library.
func virtualOf(i int) *library.Service {
	return &library.Service{
		Address: net.IP(clusterIP(i).AsSlice()), Port: servicePort, Protocol: unix.IPPROTO_TCP,
		AddressFamily: unix.AF_INET, SchedName: "rr", Netmask: 0xffffffff,
	}
}

func makeVirtual(h *library.Handle, i int) error {
	s := virtualOf(i)
	err := h.NewService(s)
	for j := range perService {
		d := &library.Destination{
			Address: net.IP(endpointIP(i, j).AsSlice()), Port: targetPort, Weight: 1, AddressFamily: unix.AF_INET,
		}
		err = errors.Join(err, h.NewDestination(s, d))
	}
	return err
}

// checkProgrammed requires every Service in n's node, and all endpoints of the last one.
func (t task) checkProgrammed(n *network) error {
	return n.node.Do(func() error {
		h, err := library.New("")
		if err != nil {
			return err
		}
		defer h.Close()
		all, err := h.GetServices()
		if err != nil {
			return fmt.Errorf("list virtual servers: %w", err)
		}
		dests, err := h.GetDestinations(virtualOf(t.Services - 1))
		if err != nil {
			return fmt.Errorf("list destinations: %w", err)
		}
		if len(all) != t.Services || len(dests) != perService {
			return fmt.Errorf("there are %d virtual servers, the last with %d destinations; want %d with %d each",
				len(all), len(dests), t.Services, perService)
		}
		return nil
	})
}

// measureVirtualPaths measures connections alone.
func measureVirtualPaths(ctx context.Context, t task) (*figures, error) {
	f := newFigures()
	return f, t.withVirtual(func(n *network, r *pipeline) error {
		if _, err := r.apply(ctx); err != nil {
			return err
		}
		return t.connections(f, n)
	})
}

// measureVirtualChanges measures what follows the first program, and then connections.
func measureVirtualChanges(ctx context.Context, t task) (*figures, error) {
	f := newFigures()
	return f, t.withVirtual(func(n *network, r *pipeline) error {
		runtime.GC() // the objects are no part of what follows
		t.logf("first program")
		m := start()
		if _, err := r.apply(ctx); err != nil {
			return err
		}
		f.usage("first", m)
		if err := t.checkProgrammed(n); err != nil {
			return err
		}
		for _, c := range changes()[:2] {
			t.logf("changes: %s", c.metric)
			if err := t.virtualChange(ctx, f, r, c); err != nil {
				return err
			}
		}
		if err := r.restore(ctx, t.Services); err != nil {
			return err
		}
		if err := r.drained(ctx); err != nil {
			return err
		}
		if err := t.virtualRestart(ctx, f, n); err != nil {
			return err
		}
		return t.connections(f, n)
	})
}

// virtualChange changes one Service at a time.
func (t task) virtualChange(ctx context.Context, f *figures, r *pipeline, c change) error {
	var took []time.Duration
	var spent time.Duration
	rounds := t.pick(virtualRounds, 10)
	for round := range rounds {
		to := c.a
		if round%2 == 1 {
			to = c.b
		}
		s := newSlice(serviceOfRound(round, t.Services), to)
		m := start()
		r.tracker.SetSlice(s)
		changed, err := r.apply(ctx)
		wall, cpu := m.stop()
		if err != nil || !changed {
			return fmt.Errorf("change one Service: changed=%v, %w", changed, err)
		}
		took, spent = append(took, wall), spent+cpu
	}
	f.set(c.metric+".p50", quantile(took, 0.5))
	f.set(c.metric+".p99", quantile(took, 0.99))
	f.seconds(c.metric+".cpu", spent/time.Duration(rounds))
	return nil
}

// drained waits until removed endpoints are drained, which the proxy checks every five
// seconds; a restart checks at once.
func (r *pipeline) drained(ctx context.Context) error {
	const long = 8 * time.Second
	began := time.Now()
	for now := range ticks(ctx, time.Second) {
		if _, err := r.apply(ctx); err != nil {
			return fmt.Errorf("let endpoints go: %w", err)
		}
		if now.Sub(began) > long {
			return nil
		}
	}
	return ctx.Err()
}

// virtualRestart measures a second proxy that finds the state of the first, and then the
// comparison that is made once in a sync period.
func (t task) virtualRestart(ctx context.Context, f *figures, n *network) error {
	t.logf("restart")
	r, err := newVirtual(n, 0)
	if err != nil {
		return err
	}
	r.feed(t.Services)
	runtime.GC()
	r.tracker.Synced()
	for _, metric := range []string{"restart", "again"} {
		m := start()
		changed, err := r.apply(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", metric, err)
		}
		f.usage(metric, m)
		if changed {
			return errNotEmpty
		}
	}
	return nil
}

// ownKernel measures mode ipvs on this machine instead of a virtual one.
const ownKernel = "own"

// measureVirtualServers measures mode ipvs in a virtual machine, as many kernels are
// built without IPVS.
func (b *bench) measureVirtualServers(ctx context.Context, s *section) error {
	t := task{Role: roleIPVS, Services: changedServices}
	var f *figures
	var err error
	if b.kernel == ownKernel {
		f, err = b.child(ctx, t)
	} else {
		f, err = b.inside(ctx, t)
	}
	if err != nil {
		return err
	}
	if b.kernel != ownKernel {
		s.note(b.out, emulated)
	}
	s.how = howVirtual
	for _, t := range virtualTables(f, task{Quick: b.quick}) {
		s.add(b.out, t)
	}
	return nil
}

const emulated = "The machine is emulated, and its clock counts instructions: compare figures with each other only."

// virtualMemory is the memory of the machine, in MB.
const virtualMemory = 3072

// inside runs t in a virtual machine.
func (b *bench) inside(ctx context.Context, t task) (*figures, error) {
	m, err := vm.Prepare(ctx, b.kernel, os.Stderr)
	if err != nil {
		return nil, err
	}
	b.facts.kernel = fmt.Sprintf("Linux %s, in a virtual machine", m.Release())
	b.facts.cpu = "1, emulated on " + b.facts.cpu
	fmt.Fprintf(b.out, "\nIt is measured in a virtual machine with Linux %s.\n", m.Release())
	t.Quick = b.quick
	text, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = b.await(func() error {
		code, err := m.Run(ctx, vm.Job{
			Command: []string{self}, Env: []string{taskVariable + "=" + string(text)}, Memory: virtualMemory,
			Timeout: time.Hour, Stdout: &out, Stderr: os.Stderr,
		})
		if err == nil && code != 0 {
			err = fmt.Errorf("exit code %d", code)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("measure %s in a virtual machine: %w", t.Role, err)
	}
	f := newFigures()
	if err := json.Unmarshal(out.Bytes(), f); err != nil {
		return nil, fmt.Errorf("read what was measured in a virtual machine: %w", err)
	}
	return f, nil
}

// virtualTables are the tables of everything that measureIPVS measures.
func virtualTables(f *figures, t task) []table {
	program := t.pick(virtualServices, 50)
	many := t.pick(changedServices, 100)
	tables := []table{
		{services: program, base: "library", rows: virtualRows(), title: fmt.Sprintf("Making %s Services of %d endpoints", thousands(program), perService)},
		{services: many, rows: virtualChangeRows(), title: fmt.Sprintf("One change among %s Services of %d endpoints", thousands(many), perService)},
	}
	tables = append(tables, table{
		services: many, base: "nftables", head: "ipvs", rows: virtualPathRows("many."),
		title: fmt.Sprintf("Connections through %s Services", thousands(many)),
	})
	for i := range tables {
		tables[i].add(roleOurs, &figures{Values: f.Values})
	}
	return tables
}

func virtualRows() []row {
	const (
		first = ".first."
		why   = "Rules and addresses are in it, which the library's calls are not."
	)
	of := func(r role, what string) string { return string(r) + first + what }
	return []row{
		{label: "first program, time", metric: of(roleVirtual, "wall"), floor: of(roleLibrary, "wall"), unit: inSeconds, aim: aim{times: 1.3}, why: why},
		{label: "first program, CPU", metric: of(roleVirtual, "cpu"), floor: of(roleLibrary, "cpu"), unit: inSeconds},
	}
}

func virtualChangeRows() []row {
	const why = "An endpoint that leaves takes two steps: no new connections, and then its removal."
	return []row{
		{label: "one endpoint replaced, CPU", metric: "many.replace.cpu", unit: inSeconds, aim: aim{most: always(10e-3)}, why: why},
		{label: "one endpoint replaced, p50", metric: "many.replace.p50", unit: inSeconds},
		{label: "one endpoint added or removed, CPU", metric: "many.scale.cpu", unit: inSeconds, aim: aim{most: always(10e-3)}, why: why},
		{label: "one endpoint added or removed, p50", metric: "many.scale.p50", unit: inSeconds},
		{label: "first program, CPU", metric: "many.first.cpu", unit: inSeconds},
		{label: "restart on what is there, CPU", metric: "many.restart.cpu", unit: inSeconds},
		{label: "comparison once in a sync period, CPU", metric: "many.again.cpu", unit: inSeconds},
	}
}

// virtualPathRows are about connections, with figures whose names begin with prefix.
func virtualPathRows(prefix string) []row {
	var rows []row
	for _, x := range []struct{ label, name string }{
		{"connection, first Service", "first"}, {"connection, last Service", "last"},
	} {
		metric := "connect." + x.name
		rows = append(rows,
			row{label: x.label + ", p50", metric: prefix + metric, floor: prefix + "nftables." + metric, unit: inSeconds},
			row{label: x.label + ", as a multiple of a direct one", metric: prefix + metric + ".ratio", floor: prefix + "nftables." + metric + ".ratio", unit: times,
				cited: x.name == "last"})
	}
	return rows
}

const howVirtual = `
**library** is a bare loop over github.com/moby/ipvs that makes the same virtual servers; **ours** is a whole round, with
addresses, ipsets and rules. The table has the medians of three turns. A change is one of 400, spread over all Services.
`

// meter measures the time and the CPU time of this process, and of programs that it ran
// and waited for, since it was started.
type meter struct {
	began time.Time
	cpu   time.Duration
}

func start() meter                              { return meter{time.Now(), ownCPU()} }
func (m meter) stop() (wall, cpu time.Duration) { return time.Since(m.began), ownCPU() - m.cpu }

func ownCPU() time.Duration {
	total := time.Duration(0)
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if err := unix.Getrusage(who, &u); err != nil {
			return 0
		}
		total += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return total
}

// heapInUse returns the bytes of live Go objects.
func heapInUse() float64 {
	runtime.GC()
	runtime.GC() // empties pools, which survive one collection
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// peakRSS returns the peak resident set of process pid, or "self".
func peakRSS(pid string) (float64, error) {
	kB, err := field("/proc/"+pid+"/status", "VmHWM:")
	return kB * 1024, err
}

// field returns the number in the second column of the line whose first word is name.
func field(path, name string) (float64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if len(words) >= 2 && words[0] == name {
			return strconv.ParseFloat(words[1], 64)
		}
	}
	return 0, fmt.Errorf("file %s: no line %q", path, name)
}

const memoryRoot = "/sys/fs/cgroup/memory"

// memoryGroup creates a cgroup of version 1 for t, in which the kernel counts its own
// allocations. The path is empty if there is none. See
// https://docs.kernel.org/admin-guide/cgroup-v1/memory.html
func memoryGroup(t task) (path string, remove func()) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", func() {}
	}
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 || parts[1] != "memory" {
			continue
		}
		path = filepath.Join(memoryRoot, parts[2], fmt.Sprintf("bench-%d-%s-%d", os.Getpid(), t.Role, t.Services))
	}
	if path == "" || os.Mkdir(path, 0o755) != nil {
		return "", func() {}
	}
	return path, func() { removeGroup(path) }
}

// removeGroup removes a cgroup once it is empty: a program that was killed within a large
// transaction first has to finish it.
func removeGroup(path string) {
	deadline := time.Now().Add(3 * time.Minute)
	reported := false
	for os.Remove(path) != nil && time.Now().Before(deadline) {
		if _, err := os.Stat(path); err != nil {
			return
		}
		if !reported {
			reported = true
			fmt.Fprintln(os.Stderr, "waiting for the last process of a measurement to end")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (t task) joinGroup() error {
	if t.Group == "" {
		return nil
	}
	file := filepath.Join(t.Group, "cgroup.procs")
	if err := os.WriteFile(file, []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
		return fmt.Errorf("join memory cgroup: %w", err)
	}
	return nil
}

// kernelMemory returns the bytes that the kernel holds for this process. If the kernel
// does not count by process, it returns the size of all kernel caches.
func (t task) kernelMemory() (float64, error) {
	if t.Group == "" {
		kB, err := field("/proc/meminfo", "Slab:")
		return kB * 1024, err
	}
	text, err := os.ReadFile(filepath.Join(t.Group, "memory.kmem.usage_in_bytes"))
	if err != nil {
		return 0, fmt.Errorf("read kernel memory: %w", err)
	}
	return strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
}
