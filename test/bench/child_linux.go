// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// role is what a child measures.
type role string

const (
	roleFloor role = "floor"
	roleOurs  role = "ours"
	rolePeer  role = "peer"
	roleFew   role = "few" // only connections, with few Services
	// roleServed measures a whole program that reads a real API server.
	roleServed role = "served"
	// iptables chains: ours and the known layout, the latter in one piece, and
	// connections through each.
	roleChains      role = "chains"
	roleKnown       role = "known layout"
	roleWhole       role = "known layout, whole"
	roleChainsPaths role = "chains, connections"
	roleKnownPaths  role = "known layout, connections"
	// roleRelay measures a whole program in mode userspace.
	roleRelay role = "userspace"
	// roleConnect measures socket acceleration.
	roleConnect role = "connect"
	// roleCounting measures what it costs to count connections.
	roleCounting role = "traffic"
	// Mode ipvs. roleIPVS runs the other roles, each in a process of its own: the
	// library's calls, a whole backend, changes after its first round, and connections.
	roleIPVS           role = "ipvs"
	roleLibrary        role = "library"
	roleVirtual        role = "mode ipvs"
	roleVirtualChanges role = "mode ipvs, changes"
	roleVirtualPaths   role = "mode ipvs, connections"
)

// fewServices is the number of Services with which other sizes are compared.
const fewServices = 10

// task is the input of a child.
type task struct {
	Role     role
	Services int
	Quick    bool
	Peer     string
	Program  program // for roleServed
	Variant  string  // of iptables
	Group    string  // cgroup of version 1 to join, "" for none
	Cgroup   string  // of version 2, for roleConnect
}

// program is a proxy to measure.
type program struct{ Name, Path string }

// taskVariable holds a child's task.
const taskVariable = "BENCH_TASK"

// assigned returns the task of this process, if it has one.
func assigned() (task, bool) {
	var t task
	text, ok := os.LookupEnv(taskVariable)
	return t, ok && json.Unmarshal([]byte(text), &t) == nil
}

// figures are the measurements of a child, by metric, in seconds and bytes, and its
// notes.
type figures struct {
	Values map[string]float64
	Notes  []string
}

func newFigures() *figures { return &figures{Values: map[string]float64{}} }

// set records a figure, unless it is NaN.
func (f *figures) set(metric string, value float64) {
	if !math.IsNaN(value) {
		f.Values[metric] = value
	}
}

func (f *figures) seconds(metric string, value time.Duration) { f.set(metric, value.Seconds()) }
func (f *figures) note(format string, args ...any) {
	f.Notes = append(f.Notes, fmt.Sprintf(format, args...))
}

// medians returns the median of each metric over several runs of one task.
func medians(runs []*figures) *figures {
	f := newFigures()
	f.Notes = runs[0].Notes
	for metric := range runs[0].Values {
		var list []float64
		for _, r := range runs {
			if v, ok := r.Values[metric]; ok {
				list = append(list, v)
			}
		}
		f.set(metric, quantile(list, 0.5))
	}
	return f
}

// usage records the time and CPU time since m began.
func (f *figures) usage(metric string, m meter) {
	wall, cpu := m.stop()
	f.seconds(metric+".wall", wall)
	f.seconds(metric+".cpu", cpu)
}

// child runs t in a process of its own and returns its figures.
func (b *bench) child(ctx context.Context, t task) (*figures, error) {
	t.Quick, t.Peer = b.quick, b.peer
	group, remove := memoryGroup(t)
	defer remove()
	t.Group = group
	text, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), taskVariable+"="+string(text))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if t.Role == roleConnect { // its mounts end with it
		cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
	}
	err = cmd.Start() // by this thread, whose end would be the child's
	if err == nil {
		err = b.await(cmd.Wait)
	}
	if err != nil {
		return nil, fmt.Errorf("measure %s with %d Services: %w", t.Role, t.Services, err)
	}
	f := newFigures()
	if err := json.Unmarshal(out.Bytes(), f); err != nil {
		return nil, fmt.Errorf("read what was measured of %s with %d Services: %w", t.Role, t.Services, err)
	}
	return f, nil
}

// await waits for measure, and samples the load meanwhile.
func (b *bench) await(measure func() error) error {
	done := make(chan error, 1)
	go func() { done <- measure() }()
	often := time.NewTicker(5 * time.Second)
	defer often.Stop()
	for {
		select {
		case err := <-done:
			b.facts.sampleLoad()
			return err
		case <-often.C:
			b.facts.sampleLoad()
		}
	}
}

// work measures what t describes and writes the figures to out.
func (t task) work(ctx context.Context, out io.Writer) error {
	if err := t.joinGroup(); err != nil {
		return err
	}
	measure := map[role]func(context.Context, task) (*figures, error){
		roleFloor: measureFloor, roleOurs: measureOurs, rolePeer: measurePeer, roleFew: measureFew,
		roleServed: measureServed, roleRelay: measureRelay, roleCounting: measureCounted, roleConnect: measureConnect, roleChains: measureChains, roleKnown: measureChains, roleWhole: measureWhole,
		roleChainsPaths: measurePaths, roleKnownPaths: measurePaths,
		roleIPVS: measureIPVS, roleLibrary: measureLibrary,
		roleVirtual: measureVirtual, roleVirtualChanges: measureVirtualChanges, roleVirtualPaths: measureVirtualPaths,
	}[t.Role]
	if measure == nil {
		return fmt.Errorf("role %q: want one of the constants", t.Role)
	}
	f, err := measure(ctx, t)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(f)
}

// logf prints progress.
func (t task) logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s, %d Services: %s\n", t.Role, t.Services, fmt.Sprintf(format, args...))
}

// pick returns much, or few for a quick run.
func (t task) pick(much, few int) int {
	if t.Quick {
		return few
	}
	return much
}

var errNotEmpty = errors.New("a restart would change the table it finds")
