// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/traffic"
)

// TestCounts counts what rounds write, and what the tables hold after each.
func TestCounts(t *testing.T) {
	k := newFake()
	b := newBackend(service.IPv4, k)
	held := func() map[string]int {
		n := map[string]int{}
		for table, chains := range k.Tables {
			for name, rules := range chains {
				if strings.HasPrefix(name, "KUBE-") {
					n[table] += len(rules)
				}
			}
		}
		return n
	}
	round := func(b *Backend, want *service.Snapshot) reconcile.Outcome {
		t.Helper()
		p, err := b.Plan(t.Context(), want)
		switch {
		case err != nil:
			t.Fatal(err)
		case p.Empty():
			return p.Outcome()
		}
		return p.Apply(t.Context())
	}
	check := func(after string, got reconcile.Outcome, written map[string]int) {
		t.Helper()
		if diff := cmp.Diff(&reconcile.Rules{Held: held(), Written: written}, got.Rules); diff != "" || got.Err != nil {
			t.Errorf("after %s: %v (-want +got):\n%s", after, got.Err, diff)
		}
	}
	out := round(b, simple(20))
	first := held()
	written := map[string]int{}
	for _, j := range b.jumps() {
		written[j.from.table]++
	}
	for table, n := range first {
		written[table] += n
	}
	check("the first round", out, written)
	check("one without a change", round(b, simple(20)), map[string]int{nat: 0, filter: 0})

	k.Refuse = func(string) error { return errInjected }
	if got := round(b, simple(21)); got.Err == nil || !got.Rules.Refused || got.Rules.Held != nil {
		t.Errorf("after a refusal: %v, %+v, want it refused and nothing known", got.Err, got.Rules)
	}
	k.Refuse = nil
	check("all in order again", round(b, simple(20)), map[string]int{nat: 0, filter: 0})
	check("rules are adopted", round(newBackend(service.IPv4, k), simple(20)), map[string]int{nat: 0, filter: 0})
}

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

// TestCounters adds up the rules of both policies of a port, as iptables-save -c prints
// them, and leaves out those of others.
func TestCounters(t *testing.T) {
	p := &service.Port{Name: service.PortName{Namespace: "shop", Name: "web", Port: "http", Protocol: service.TCP}}
	want := service.New(1, &service.Node{}, []*service.Port{p})
	cluster, local := portChainName(clusterPrefix, p), portChainName(localPrefix, p)
	text := strings.NewReplacer("CLUSTER", cluster, "LOCAL", local).Replace(`*nat
:CLUSTER - [0:0]
[40:2400] -A PREROUTING -j KUBE-SERVICES
[3:180] -A CLUSTER -d 10.96.0.1/32 -j KUBE-MARK-CLUSTER
[7:420] -A CLUSTER -p tcp -m statistic --mode random --probability 0.50000000000 -j DNAT --to-destination 10.244.0.1:8080
[5:300] -A CLUSTER -p tcp -j DNAT --to-destination 10.244.0.2:8080 --random
[2:120] -A LOCAL -p tcp -j DNAT --to-destination 10.244.0.1:8080
[9:540] -A CNI-DN-1 -p tcp -j DNAT --to-destination 10.244.0.9:80
[x:y] -A CLUSTER -p tcp -j DNAT --to-destination 10.244.0.3:8080
COMMIT
`)
	c := &Counters{family: service.IPv4, list: func(context.Context) (string, error) { return text, nil }}
	samples, err := c.Read(t.Context(), want)
	got := map[string]uint64{}
	for _, s := range samples {
		if s.Name != p.Name {
			t.Errorf("%v has another name", s)
		}
		got[s.Endpoint.String()] = s.Connections
	}
	if diff := cmp.Diff(map[string]uint64{"10.244.0.1:8080": 9, "10.244.0.2:8080": 5}, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	c.list = func(context.Context) (string, error) { return "", errors.New("refused") }
	if _, err := c.Read(t.Context(), want); err == nil || !strings.Contains(err.Error(), "iptables what its rules have counted: refused") {
		t.Errorf("%v, want the error of the command", err)
	}
	if _, to, _ := parseTranslation("[1:60] -A X -j DNAT --to-destination [fd00::1]:80\n"); to != netip.MustParseAddrPort("[fd00::1]:80") {
		t.Errorf("an address of IPv6 is %s", to)
	}
	if k := c.Kinds(); k != (traffic.Kinds{}) {
		t.Errorf("%+v are counted, too", k)
	}
}
