// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Packets are the counters of rules since the rules were created.
type Packets struct {
	// Invalid counts dropped packets that connection tracking could not assign.
	Invalid uint64
	// Loopback counts connections to NodePorts on loopback addresses.
	Loopback uint64
}

// lister is a Driver that can read counters.
type lister interface {
	// List returns the rules of a chain in the format of iptables -S -v. It is safe for
	// concurrent use.
	List(ctx context.Context, table, chain string) (string, error)
}

// counts caches the counters.
type counts struct {
	mu     sync.Mutex
	latest Packets
	err    error
	next   time.Time
}

// countShare limits the time for reading counters to one part in countShare.
// iptables-legacy reads the whole table to list one chain.
const countShare = 100

// Packets reads the counters of the rules. If reading takes long, it returns the cached
// result of an earlier call. It is safe for concurrent use. With a relay it returns
// errors.ErrUnsupported.
func (b *Backend) Packets(ctx context.Context) (Packets, error) {
	l, ok := b.driver.(lister)
	if !ok || b.relays() {
		return Packets{}, errors.ErrUnsupported
	}
	c := &b.counts
	c.mu.Lock()
	defer c.mu.Unlock()
	start := time.Now()
	if start.Before(c.next) {
		return c.latest, c.err
	}
	now := Packets{}
	var errs []error
	for _, x := range []struct {
		table, chain, rule string
		to                 *uint64
	}{
		{filter, forwardChain, invalidRule, &now.Invalid},
		{nat, postroutingChain, loopbackRule, &now.Loopback},
	} {
		text, err := l.List(ctx, x.table, x.chain)
		errs = append(errs, err)
		*x.to = parseCount(text, x.rule)
	}
	c.err = errors.Join(errs...)
	if c.err != nil {
		c.err = fmt.Errorf("ask %s what its rules have counted: %w", command(b.family), c.err)
	} else {
		c.latest = now
	}
	c.next = start.Add(countShare * time.Since(start))
	return c.latest, c.err
}

// parseCount returns the number of packets that a rule has matched, 0 if the rule is not
// in text.
func parseCount(text, rule string) uint64 {
	for line := range strings.Lines(text) {
		_, line, _ = strings.Cut(strings.TrimSpace(strings.TrimPrefix(line, "-A ")), " ")
		before, after, found := strings.Cut(line, "-c ")
		w := strings.Fields(after)
		if !found || len(w) < 2 || strings.Join(append(strings.Fields(before), w[2:]...), " ") != rule {
			continue
		}
		n, _ := strconv.ParseUint(w[0], 10, 64)
		return n
	}
	return 0
}
