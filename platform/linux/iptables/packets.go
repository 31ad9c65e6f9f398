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

// Packets is what rules have counted since they were made.
type Packets struct {
	// Invalid were dropped, as connection tracking could not place them.
	Invalid uint64
	// Loopback came to NodePorts of loopback addresses, one for each connection.
	Loopback uint64
}

// lister is a Driver whose rules count.
type lister interface {
	// List returns the rules of a chain as iptables -S -v prints them. It may
	// be called from any goroutine.
	List(ctx context.Context, table, chain string) (string, error)
}

// counts remembers what was counted.
type counts struct {
	mu     sync.Mutex
	latest Packets
	err    error
	next   time.Time
}

// countShare bounds what asking for counts takes: this part of the time. A list
// of one chain costs iptables-legacy the whole table.
const countShare = 100

// Packets asks what the rules have counted, or returns what it was a moment ago
// where asking takes long. It may be called from any goroutine, at any time.
// Before a relay nothing is counted.
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

// parseCount returns how many packets a rule has matched, 0 if it is not in text.
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
