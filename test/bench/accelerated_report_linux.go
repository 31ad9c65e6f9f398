// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"kubeproxy/platform/linux/socketlb"
)

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
direct connections, too, so compare the layer above them with those. Mode iptables uses iptables-legacy. A start is the
median of five; a change is one of 2,000, from the snapshot to the kernel.
`

const howKnown = `
**peer** is the program that PEER_KUBE_PROXY named, in mode nftables, with 10 Services only.
`
