// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"kubeproxy/test/nftmonitor"
)

// ProgrammingLatency notes when the rules of a host first had each endpoint.
type ProgrammingLatency struct {
	mu         sync.Mutex
	firstSeen  map[uint32]time.Time
	lastCommit time.Time
}

// Observe is for nftmonitor.Listen.
func (a *ProgrammingLatency) Observe(n nftmonitor.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.firstSeen == nil {
		a.firstSeen = map[uint32]time.Time{}
	}
	if n.Kind == nftmonitor.Commit {
		a.lastCommit = n.At
		return
	}
	if n.Kind == nftmonitor.DeletedElement {
		return // which names endpoints that leave
	}
	// Whatever the proxy makes of an endpoint, its address stands in it.
	for i := 0; i+4 <= len(n.Data); i++ {
		if n.Data[i] != firstAddress>>24 {
			continue
		}
		address := binary.BigEndian.Uint32(n.Data[i:])
		if address < firstAddress || address >= afterLast {
			continue
		}
		if _, ok := a.firstSeen[address]; !ok {
			a.firstSeen[address] = n.At
		}
	}
}

// LastCommit is when the rules last changed, zero for never.
func (a *ProgrammingLatency) LastCommit() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lastCommit
}

// Missing counts the writes whose Services have none of their endpoints since
// then in force.
func (a *ProgrammingLatency) Missing(writes []Write) int { return len(writes) - len(a.Delays(writes)) }

// Delays returns how long it took, latest write first, until each write was in
// force, or one that followed it for the same Service, for who comes late may
// skip what no longer counts. Writes that are not in force yet have no delay.
func (a *ProgrammingLatency) Delays(writes []Write) []time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []time.Duration
	inForce := map[string]time.Time{} // by Service: what came later was, then
	for i := len(writes) - 1; i >= 0; i-- {
		w := writes[i]
		at, ok := a.firstSeen[number(w.Endpoint)]
		if later, skipped := inForce[w.Service]; !ok && skipped {
			at, ok = later, true
		}
		if ok {
			inForce[w.Service] = at
			all = append(all, at.Sub(w.At))
		}
	}
	return all
}

func number(a netip.Addr) uint32 {
	b := a.As4()
	return binary.BigEndian.Uint32(b[:])
}

// PercentilesOf sorts values into a Spread, which is zero for none.
func PercentilesOf(values []time.Duration) Percentiles {
	if len(values) == 0 {
		return Percentiles{}
	}
	slices.Sort(values)
	at := func(share float64) time.Duration { return values[int(share*float64(len(values)-1)+0.5)] }
	return Percentiles{at(0.5), at(0.9), at(0.99), values[len(values)-1]}
}

// Percentiles is how values lie.
type Percentiles struct{ P50, P90, P99, Max time.Duration }

// String returns them in a line.
func (s Percentiles) String() string {
	r := func(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }
	return fmt.Sprintf("p50 %s, p90 %s, p99 %s, most %s", r(s.P50), r(s.P90), r(s.P99), r(s.Max))
}
