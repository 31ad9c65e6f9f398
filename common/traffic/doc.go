// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package traffic adds up the traffic of Services. The counters of a dataplane go in. They
// may disappear, and start again at 0 when rules change. Totals for each Service and
// endpoint come out, which only grow. The backend of a mode decides how to count.
package traffic

import (
	"context"
	"net/netip"

	"kubeproxy/common/service"
)

// Counts are what connections carried. "In" is from clients to endpoints.
type Counts struct {
	// Connections counts those that began. For UDP it counts flows.
	Connections uint64 `json:"connections"`
	PacketsIn   uint64 `json:"packetsIn,omitempty"`
	PacketsOut  uint64 `json:"packetsOut,omitempty"`
	BytesIn     uint64 `json:"bytesIn,omitempty"`
	BytesOut    uint64 `json:"bytesOut,omitempty"`
}

// Plus returns the sums of c and d.
func (c Counts) Plus(d Counts) Counts {
	return Counts{
		c.Connections + d.Connections, c.PacketsIn + d.PacketsIn, c.PacketsOut + d.PacketsOut,
		c.BytesIn + d.BytesIn, c.BytesOut + d.BytesOut,
	}
}

// Since returns what was counted after last. A counter with a lower value than before has
// started again at 0.
func (c Counts) Since(last Counts) Counts {
	if c.Connections < last.Connections || c.PacketsIn < last.PacketsIn || c.PacketsOut < last.PacketsOut ||
		c.BytesIn < last.BytesIn || c.BytesOut < last.BytesOut {
		return c
	}
	return Counts{
		c.Connections - last.Connections, c.PacketsIn - last.PacketsIn, c.PacketsOut - last.PacketsOut,
		c.BytesIn - last.BytesIn, c.BytesOut - last.BytesOut,
	}
}

// Kinds is what a mode counts besides connections.
type Kinds struct {
	Packets bool `json:"packets"`
	Bytes   bool `json:"bytes"`
}

// Counter identifies a counter of a dataplane.
type Counter struct {
	// Name is the Service port that it belongs to. If the dataplane does not know that,
	// Name is empty, and Protocol and Frontend say which address clients dialled.
	Name     service.PortName
	Protocol service.Protocol
	Frontend netip.AddrPort
	Endpoint netip.AddrPort
}

// Sample is the value of a counter.
type Sample struct {
	Counter
	Counts
}

// Reader reads the counters of a dataplane for one family. Its methods are called from
// one goroutine at a time, while rounds go on.
type Reader interface {
	// Kinds returns what it counts besides connections.
	Kinds() Kinds
	// Read returns the present value of each counter once. want is the latest snapshot. A
	// counter that is not returned has been removed. If it appears again, it starts at 0.
	Read(ctx context.Context, want *service.Snapshot) ([]Sample, error)
}
