// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"kubeproxy/test/vm"
)

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
	b.facts.still = true
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
