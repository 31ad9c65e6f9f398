// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
)

// measureUserspace measures mode userspace beside connections that bypass the proxy.
func (b *bench) measureUserspace(ctx context.Context, s *section) error {
	s.how = howRelayed
	ours, remove, err := buildProgram(ctx)
	if err != nil {
		return err
	}
	defer remove()
	f, err := b.child(ctx, task{Role: roleRelay, Services: 1, Program: ours})
	if err != nil {
		return err
	}
	t := table{services: 1, base: "direct", rows: relayRows()}
	t.add(roleOurs, f)
	s.add(b.out, t)
	return nil
}

func inGigabytes(v float64) string { return fmt.Sprintf("%.2f GB/s", v/1e9) }
func inKilobytes(v float64) string { return fmt.Sprintf("%.1f kB", v/1e3) }
func inWhole(v float64) string     { return thousands(int(v)) }

func relayRows() []row {
	return []row{
		{label: "one long flow, median", metric: "flow.through", floor: "flow.direct", ratio: "flow.ratio", unit: inGigabytes, aim: aim{least: 0.6},
			why: "Every packet passes through two more sockets, on the same processors as both its ends."},
		{label: "proxy's CPU for each GB", metric: "flow.cpu", unit: inSeconds},
		{label: "connection, p50", metric: "connect.first", floor: "connect.direct", ratio: "connect.first.ratio", unit: inSeconds, cited: true},
		{label: "connections at once", metric: "many.count", unit: inWhole},
		{label: "memory (RSS) for each of them", metric: "many.memory", unit: inKilobytes, cited: true},
	}
}

const howRelayed = `
The whole program between client, node and server, which share the processors. A **flow** is one TCP connection at full
speed for two seconds; its ratio is the median of 16 pairs. Connections **at once** are answered and silent.
`
