// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"kubeproxy/common/service"
)

// counting is a kernel whose rules have counters.
type counting struct {
	*fake
	texts map[string]string
	err   error
	asked int
	takes time.Duration
}

// List implements lister.
func (c *counting) List(_ context.Context, table, chain string) (string, error) {
	c.asked++
	time.Sleep(c.takes)
	return c.texts[table+" "+chain], c.err
}

// TestPackets reads counters as iptables prints them, and rarely if that takes long.
func TestPackets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &counting{fake: newFake(), texts: map[string]string{
			"filter KUBE-FORWARD": "-N KUBE-FORWARD\n-A KUBE-FORWARD -m conntrack --ctstate INVALID -c 12 3456 -j DROP\n" +
				"-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -c 9 9 -j ACCEPT\n",
			"nat KUBE-POSTROUTING": "-N KUBE-POSTROUTING\n-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -c 5 5 -j RETURN\n" +
				"-A KUBE-POSTROUTING -m conntrack --ctorigdst 127.0.0.0/8 -c 7 420\n",
		}}
		b := NewWith(service.IPv4, Options{}, c)
		if got, err := b.Packets(t.Context()); err != nil || got != (Packets{Invalid: 12, Loopback: 7}) {
			t.Errorf("Packets = %+v, %v", got, err)
		}
		c.err = errors.New("busy")
		b.counts.next = time.Time{}
		if got, err := b.Packets(t.Context()); !errors.Is(err, c.err) || got.Invalid != 12 {
			t.Errorf("without an answer: %+v, %v, want what it was, and why", got, err)
		}
		c.err, c.takes = nil, 20*time.Millisecond
		b.counts.next = time.Time{}
		_, _ = b.Packets(t.Context())
		asked := c.asked
		if _, err := b.Packets(t.Context()); err != nil || c.asked != asked {
			t.Errorf("asked again at once: %v", err)
		}
		time.Sleep(2 * countShare * c.takes) // two chains are listed
		if _, err := b.Packets(t.Context()); err != nil || c.asked == asked {
			t.Errorf("not asked again when it is time: %v", err)
		}
		if _, err := newBackend(service.IPv4, newFake()).Packets(t.Context()); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("a kernel that does not count: %v", err)
		}
	})
}
