// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os/exec"
)

// knownLayout is the layout that mode iptables is compared with.
const knownLayout = "known layout"

// measureIPTables measures mode iptables with each installed variant, beside the known
// layout.
func (b *bench) measureIPTables(ctx context.Context, s *section) error {
	s.how = howChains
	for _, v := range variants {
		if _, err := exec.LookPath("iptables-" + v); err != nil {
			s.note(b.out, "iptables-%s was not measured: %v.", v, err)
			continue
		}
		for _, measure := range []func(context.Context, string) (table, error){b.measureProgram, b.measureTree} {
			t, err := measure(ctx, v)
			if err != nil {
				return err
			}
			s.add(b.out, t)
		}
	}
	return nil
}

// measureProgram measures the first program and changes: the known layout and ours in
// turn.
func (b *bench) measureProgram(ctx context.Context, variant string) (table, error) {
	services := task{Quick: b.quick}.pick(chainServices, 300)
	t := table{services: services, base: knownLayout, rows: programRows(variant)}
	t.title = fmt.Sprintf("iptables-%s, %s Services of %d endpoints", variant, thousands(services), perService)
	runs, err := b.alternate(ctx, task{Services: services, Variant: variant}, roleKnown, roleChains)
	known := runs[roleKnown]
	t.add(roleFloor, known)
	t.add(roleOurs, runs[roleChains])
	if err != nil || variant == "legacy" {
		return t, err
	}
	whole, err := b.child(ctx, task{Role: roleWhole, Services: services, Variant: variant})
	if err != nil {
		return t, err
	}
	for metric, v := range whole.Values {
		known.set(metric, v)
	}
	known.Notes = append(whole.Notes, known.Notes...)
	return t, nil
}

// alternate measures t in each of the roles, a few times, and returns the medians.
func (b *bench) alternate(ctx context.Context, t task, roles ...role) (map[role]*figures, error) {
	runs := map[role][]*figures{}
	for range b.repeats() {
		for _, r := range roles {
			t.Role = r
			f, err := b.child(ctx, t)
			if err != nil {
				return nil, err
			}
			runs[r] = append(runs[r], f)
		}
	}
	all := map[role]*figures{}
	for r, list := range runs {
		all[r] = medians(list)
	}
	return all, nil
}

// measureTree measures connections.
func (b *bench) measureTree(ctx context.Context, variant string) (table, error) {
	services := task{Quick: b.quick}.pick(pathServices, 300)
	t := table{services: services, base: knownLayout, rows: pathRows()}
	t.title = fmt.Sprintf("iptables-%s, connections through %s Services", variant, thousands(services))
	runs, err := b.alternate(ctx, task{Services: services, Variant: variant}, roleKnownPaths, roleChainsPaths)
	t.add(roleFloor, runs[roleKnownPaths])
	t.add(roleOurs, runs[roleChainsPaths])
	return t, err
}

const whyTable = "iptables-legacy reads and writes the whole table for each change."

func programRows(variant string) []row {
	rows := []row{
		{label: "first program, time", metric: "first.wall", unit: inSeconds},
		{label: "first program, CPU", metric: "first.cpu", unit: inSeconds},
		{label: "one endpoint replaced, time, p50", metric: "change.p50", unit: inSeconds},
		{label: "one endpoint replaced, CPU", metric: "change.cpu", unit: inSeconds},
	}
	if variant == "legacy" {
		rows[1].aim, rows[1].why = aim{times: 0.5}, whyTable
		rows[3].aim, rows[3].why = aim{times: 0.5}, whyTable
		return rows
	}
	rows[0].aim = aim{most: always(60)}
	rows[2].aim = aim{times: 1.0 / 3}
	return rows
}

func pathRows() []row {
	var rows []row
	for _, name := range []string{"first", "middle", "last"} {
		rows = append(rows, row{label: name + " Service, as a multiple of a direct one", metric: "connect." + name + ".ratio", unit: times})
	}
	rows[len(rows)-1].aim = aim{most: always(1.5)}
	return rows
}

const howChains = `
The **known layout** is the one that Services have had in iptables for years: one list of all, a chain for each, and a
chain for each endpoint. Its figures are those of iptables-restore, while **ours** begin at the tracker. The tables have the
medians of three turns, CPU with all commands. iptables-nft gets two minutes for the layout in one piece.
`
