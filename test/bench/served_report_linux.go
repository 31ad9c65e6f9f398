// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// measureServed measures our program, and the peer, through an API server.
func (b *bench) measureServed(ctx context.Context, s *section) error {
	ours, remove, err := buildProgram(ctx)
	if err != nil {
		return err
	}
	defer remove()
	x := task{Quick: b.quick}.extent()
	s.how = fmt.Sprintf(howServed, thousands(x.services), x.samples, thousands(x.most), x.churns)
	b.notePeer(s, "")
	t := table{services: x.services, rows: servedRows()}
	programs := map[role]program{roleOurs: ours}
	if b.peer != "" {
		programs[rolePeer] = program{"Peer", b.peer}
	}
	for _, r := range []role{roleOurs, rolePeer} {
		p, ok := programs[r]
		if !ok {
			continue
		}
		f, err := b.child(ctx, task{Role: roleServed, Services: x.services, Program: p})
		if err != nil {
			return err
		}
		t.add(r, f)
	}
	s.add(b.out, t)
	return nil
}

// buildProgram builds the proxy; remove deletes it.
func buildProgram(ctx context.Context) (ours program, remove func() error, err error) {
	dir, err := os.MkdirTemp("", "bench-program-")
	if err != nil {
		return ours, nil, fmt.Errorf("make temporary directory: %w", err)
	}
	remove = func() error { return os.RemoveAll(dir) }
	ours = program{"Ours", filepath.Join(dir, "kube-proxy")}
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", ours.Path, "kubeproxy/cmd/kube-proxy")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		return ours, nil, errors.Join(fmt.Errorf("build the proxy: %w\n%s", err, text), remove())
	}
	return ours, remove, nil
}

// servedRows are the lines of the table, with the aims for the whole extent.
func servedRows() []row {
	const (
		whySingle = "It has the API server's own write in it."
		whyMemory = "It grows with what was programmed last."
	)
	return []row{
		{label: "one endpoint changed, p50", metric: "served.single.p50", unit: inSeconds, aim: aim{most: always(20e-3)}, why: whySingle},
		{label: "one endpoint changed, p99", metric: "served.single.p99", unit: inSeconds, aim: aim{most: always(250e-3)}, why: whySingle},
		{label: "changes of one endpoint", metric: "served.single.count", unit: inWhole},
		{label: "Services made at once, by the API server", metric: "served.together.written", unit: inSeconds},
		{label: "Services made at once, p50", metric: "served.together.p50", unit: inSeconds},
		{label: "Services made at once, p99", metric: "served.together.p99", unit: inSeconds},
		{label: "steady changes in a second", metric: "served.steady.rate", unit: inWhole},
		{label: "steady changes, CPU for each", metric: "served.steady.cpu", unit: inSeconds},
		{label: "steady changes, p50", metric: "served.steady.p50", unit: inSeconds},
		{label: "steady changes, p99", metric: "served.steady.p99", unit: inSeconds},
		{label: "memory (RSS) with all Services", metric: "served.rss", unit: inMegabytes, aim: aim{most: always(110e6)}, why: whyMemory},
		{label: "memory after changes of everything", metric: "served.after", unit: inMegabytes},
		{label: "peak memory", metric: "served.peak", unit: inMegabytes},
		{label: "growth from the first to the last of them", metric: "served.growth", unit: inPercent, aim: aim{most: always(0.1)}, why: whyMemory},
	}
}

const howServed = `
The whole program reads a real etcd and kube-apiserver on the same machine, over TLS. A time begins with the request to the
API server and ends when the kernel reports the change. A peer has the same configuration and objects.

- **one endpoint changed**: with %s Services of 10 endpoints, %d changes, 1.1 s apart.
- **memory**: with %s Services of 10 endpoints, at rest; then every endpoint is replaced, %d times. Growth is
  between the first and the last of these.
`
