// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/traffic"
)

// Tables are the tables of a node in one family.
type Tables struct {
	Command string  `json:"command"` // the command that restores them
	Tables  []Table `json:"tables"`
	// Unsupported is what the mode cannot do, by Service port.
	Unsupported []string `json:"unsupported,omitempty"`

	portOf func(in id, rule string) service.PortName // see portFinder; nil for none
}

// Table is one table.
type Table struct {
	Name   string  `json:"name"`
	Chains []Chain `json:"chains"`
}

// Chain is a chain with its rules.
type Chain struct {
	Name  string   `json:"name"`
	Rules []string `json:"rules,omitempty"`
}

// Render returns the tables of both families that a node would hold for want after a start with
// empty tables, as iptables-save prints them, IPv4 first. iptables-restore or ip6tables-restore
// accept their part. The document has the rules in a list per chain.
func Render(want *service.Snapshot, o Options) (reconcile.Objects, any) {
	return reconcile.Families(func(f service.Family) Tables { return Document(f, want, o) })
}

// Document returns the tables that a node would hold in family f.
func Document(f service.Family, want *service.Snapshot, o Options) Tables {
	return layout{family: f, options: o}.document(want)
}

// document returns the tables that a node would hold for want.
func (l layout) document(want *service.Snapshot) Tables {
	chains := l.shared(want.Node, want.Ports(l.family), nil)
	for p := range want.Ports(l.family) {
		chains = append(chains, l.portChains(p, want.Node)...)
	}
	d := Tables{Command: command(l.family)}
	for _, name := range l.options.Role.tables() {
		t := Table{Name: name}
		for _, j := range slices.Backward(l.jumps()) {
			if j.from.table == name {
				t.jump(j)
			}
		}
		for _, c := range chains {
			if c.table == name {
				t.Chains = append(t.Chains, Chain{c.name, c.rules})
			}
		}
		d.Tables = append(d.Tables, t)
	}
	return d
}

// jump appends a rule to a built-in chain.
func (t *Table) jump(j jump) {
	i := slices.IndexFunc(t.Chains, func(c Chain) bool { return c.Name == j.from.name })
	if i < 0 {
		i = len(t.Chains)
		t.Chains = append(t.Chains, Chain{Name: j.from.name})
	}
	t.Chains[i].Rules = append(t.Chains[i].Rules, j.rule)
}

// Objects returns ta in the format of iptables-restore.
func (ta Tables) Objects() reconcile.Objects {
	var all reconcile.Objects
	none := service.PortName{}
	portOf := ta.portOf
	if portOf == nil {
		portOf = func(id, string) service.PortName { return none }
	}
	all.Add("# for %s-restore\n", ta.Command)
	for _, s := range ta.Unsupported {
		all.Add("# unsupported: %s\n", s)
	}
	for _, t := range ta.Tables {
		all.Add("*%s\n", t.Name)
		for _, c := range t.Chains {
			i, policy := id{t.Name, c.Name}, "-"
			if i.isSystem() {
				policy = "ACCEPT"
			}
			all.AddFor(portOf(i, ""), ":%s %s [0:0]\n", c.Name, policy)
		}
		for _, c := range t.Chains {
			for _, r := range c.Rules {
				all.AddFor(portOf(id{t.Name, c.Name}, r), "-A %s %s\n", c.Name, r)
			}
		}
		all.Add("COMMIT\n")
	}
	return all
}

// restore applies c and counts the result.
func (b *Backend) restore(ctx context.Context, c *change) error {
	if err := b.driver.Restore(ctx, c.text()); err != nil {
		b.rules.Refused = true
		return err
	}
	for _, w := range c.writes {
		b.rules.Written[w.table] += len(w.rules)
	}
	for _, j := range c.insertJumps {
		b.rules.Written[j.from.table]++
	}
	return nil
}

// restoreInPieces applies the change of s. Its last piece brings it into force.
func (b *Backend) restoreInPieces(ctx context.Context, s *stage) error {
	for _, c := range s.pieces(s.sums, b.driver.PieceRules()) {
		if err := b.restore(ctx, &c); err != nil {
			return err
		}
	}
	return nil
}

// recordInstalled records that the tables hold h.
func (b *Backend) recordInstalled(h *installed) {
	b.installed = h
	b.rules.Held = perTable()
	for i, s := range h.sums {
		b.rules.Held[i.table] += s.rules
	}
}

func perTable() map[string]int {
	n := map[string]int{}
	for _, t := range tables {
		n[t] = 0
	}
	return n
}

// Counters reads how often the rules that translate connections have matched. It implements
// traffic.Reader. The kernel counts in any case, and table nat sees one packet of a connection.
// Reading lists table nat, which costs more with more endpoints. A rule counts from 0 when its
// chain is written, as when endpoints change.
type Counters struct {
	family service.Family
	list   func(context.Context) (string, error) // table nat with counters, as iptables-save prints it
}

// Kinds implements traffic.Reader.
func (c *Counters) Kinds() traffic.Kinds { return traffic.Kinds{} }

// Read implements traffic.Reader.
func (c *Counters) Read(ctx context.Context, want *service.Snapshot) ([]traffic.Sample, error) {
	text, err := c.list(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask %s what its rules have counted: %w", command(c.family), err)
	}
	ports := map[string]service.PortName{}
	for p := range want.Ports(c.family) {
		for _, x := range c.lists(p) {
			ports[x.name] = p.Name
		}
	}
	sums := map[traffic.Counter]uint64{}
	for line := range strings.Lines(text) {
		chain, to, n := parseTranslation(line)
		if name, known := ports[chain]; known && to.IsValid() {
			sums[traffic.Counter{Name: name, Endpoint: to}] += n
		}
	}
	all := make([]traffic.Sample, 0, len(sums))
	for k, n := range sums {
		all = append(all, traffic.Sample{Counter: k, Counts: traffic.Counts{Connections: n}})
	}
	return all, nil
}

// lists returns the chains that hold endpoints of p.
func (c *Counters) lists(p *service.Port) []chain {
	l := layout{family: c.family}
	cluster, _ := l.listChains(p, nil, service.PolicyCluster)
	local, _ := l.listChains(p, nil, service.PolicyLocal)
	return append(cluster, local...)
}

// parseTranslation parses "[PACKETS:BYTES] -A CHAIN ... --to-destination ENDPOINT".
func parseTranslation(line string) (chain string, to netip.AddrPort, packets uint64) {
	const destination = " --to-destination "
	i := strings.Index(line, destination)
	count, rest, found := strings.Cut(line, "] -A ")
	if i < 0 || !found {
		return "", netip.AddrPort{}, 0
	}
	chain, _, _ = strings.Cut(rest, " ")
	number, _, _ := strings.Cut(strings.TrimPrefix(count, "["), ":")
	packets, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return "", netip.AddrPort{}, 0
	}
	address, _, _ := strings.Cut(strings.TrimSpace(line[i+len(destination):]), " ")
	to, _ = netip.ParseAddrPort(address)
	return chain, to, packets
}

// Packets are the counters of rules since the rules were created.
type Packets struct {
	// Invalid counts dropped packets that connection tracking could not assign.
	Invalid uint64
	// Loopback counts connections to NodePorts on loopback addresses.
	Loopback uint64
}

// lister is a Driver that can read counters.
type lister interface {
	// List returns the rules of a chain as iptables -S -v does. It is safe for concurrent use.
	List(ctx context.Context, table, chain string) (string, error)
}

// counts caches the counters.
type counts struct {
	mu     sync.Mutex
	latest Packets
	err    error
	next   time.Time
}

// countShare bounds the part of the time for counters: iptables-legacy reads whole tables.
const countShare = 100

// Packets reads the counters of the rules, or returns earlier ones if that takes long. It is safe
// for concurrent use. With a relay it returns errors.ErrUnsupported.
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
