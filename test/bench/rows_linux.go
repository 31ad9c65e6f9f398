// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

// through is a row of connections, whose floor is a direct one.
func through(label, metric string, a aim) row {
	metric = "connect." + metric
	return row{
		label: label, metric: metric, unit: inSeconds, aim: a, floor: "connect.direct", ratio: metric + ".ratio",
		why: "Only the first packet of a connection meets our rules, but all of them meet connection tracking, " +
			"without which no translation works: a direct connection beside the table costs nearly as much.",
	}
}

// What limits figures, as far as profiles show. Of 1,000 Services changed at once, half is
// comparing elements, a third the tracker, a fifth the kernel.
const (
	whyFirst = "Most of it is the kernel's work on new elements, and its messages about them to those who listen."
	whyCross = "The kernel checks again whatever the verdict map leads to."
	whyHeap  = "Netlink buffers of a fixed size weigh on few endpoints; beyond them it is the packed slices, " +
		"the chosen endpoints and the names."
	whyMany = "Most of it is the tracker's choice of endpoints and the planning."
)

var rows = []row{
	{label: "first program, time", metric: "first.wall", unit: inSeconds, aim: aim{times: 3}, why: whyFirst},
	{label: "first program, CPU", metric: "first.cpu", unit: inSeconds, aim: aim{most: firstCPU}, why: whyFirst},
	{label: "one endpoint replaced, p50", metric: "replace.p50", unit: inSeconds, aim: aim{most: oneChange}},
	{label: "one endpoint replaced, p99", metric: "replace.p99", unit: inSeconds},
	{label: "one endpoint added or removed, p50", metric: "scale.p50", unit: inSeconds, aim: aim{most: oneChange}},
	{label: "the same across a power of two, p50", metric: "cross.p50", unit: inSeconds, aim: aim{most: oneChange}, why: whyCross},
	{label: "1,000 Services changed at once", metric: "many", unit: inSeconds, aim: aim{most: always(60e-3)}, why: whyMany},
	{label: "restart on its own table, time", metric: "restart.wall", unit: inSeconds, cited: true},
	{label: "Go heap per endpoint", metric: "heap", unit: inBytes, aim: aim{most: always(150)}, why: whyHeap},
	{label: "peak RSS", metric: "rss", unit: inMegabytes, cited: true},
	{label: "kernel memory", metric: "kernel", unit: inMegabytes},
	through("direct connection beside the table, p50", "beside", aim{}),
	through("connection, first Service, p50", "first", aim{times: 1.3}),
	through("connection, middle Service, p50", "middle", aim{times: 1.3}),
	through("connection, last Service, p50", "last", aim{times: 1.3}),
	{label: "last Service against 10 Services", metric: overFew, unit: inPercent, aim: aim{most: always(0.1)}},
}
