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
func inNumbers(v float64) string   { return fmt.Sprintf("%.1f", v) }
func inWhole(v float64) string     { return thousands(int(v)) }

func relayRows() []row {
	return []row{
		{label: "one long flow, median", metric: "flow.through", floor: "flow.direct", ratio: "flow.ratio", unit: inGigabytes, aim: aim{least: 0.6},
			why: "Every packet passes through two more sockets, on the same processors as both its ends."},
		{label: "the pair with the lowest ratio", metric: "flow.worst.through", floor: "flow.worst.direct", ratio: "flow.worst", unit: inGigabytes},
		{label: "proxy's CPU for each GB", metric: "flow.cpu", unit: inSeconds},
		{label: "connection, p50", metric: "connect.first", floor: "connect.direct", ratio: "connect.first.ratio", unit: inSeconds},
		{label: "connect alone, p50", metric: "connect.made.first", floor: "connect.made.direct", ratio: "connect.made.first.ratio", unit: inSeconds},
		{label: "connections at once", metric: "many.count", unit: inWhole},
		{label: "memory (RSS) for each of them", metric: "many.memory", unit: inKilobytes},
		{label: "open files for each of them", metric: "many.files", unit: inNumbers},
	}
}

const howRelayed = `
The whole program in mode userspace, between a client, the node and a server in
namespaces of their own. A **flow** is one TCP connection over which the client sends
as much as it can for two seconds, past the proxy (**direct**) and through a Service; the two
take turns 16 times, and the ratio is the median of the pairs' ratios. Client,
server, and proxy share the processors. Connections are measured as in the first
part. Those **at once** have all been answered and are silent; kernel memory of their
sockets comes on top.
`
