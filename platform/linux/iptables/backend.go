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
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink"
)

// Driver is what Backend needs from the system, for one family. All methods except Watch
// are called from one goroutine at a time.
type Driver interface {
	// Restore applies text, in the format of iptables-restore --noflush. Each table is
	// changed completely or not at all. An error that is not caused by the text wraps
	// ErrBusy.
	Restore(ctx context.Context, text string) error
	// PieceRules returns how many rules of new chains one text should have, so that the
	// command needs little memory. 0 means any number.
	PieceRules() int
	// Save returns the output of iptables-save for the tables that exist.
	Save(ctx context.Context) (string, error)
	// Touched reports whether others may have changed the tables since the last call of
	// Save. Changes by Restore do not count. The call is cheap.
	Touched(ctx context.Context) (bool, error)
	// Dormant lists the tables of the role that have the flag dormant: the kernel
	// evaluates none of their rules (nft(8)). Activate clears the flag of one table.
	Dormant() ([]string, error)
	// SavedTables names the tables that Save prints, as explain.Walk has them.
	SavedTables() []string
	Activate(table string) error
	// RouteLocalnetEnabled reports whether the kernel routes packets to loopback addresses, which
	// Enable and DisableRouteLocalnet switch. Its error means that this cannot be switched on or
	// read.
	RouteLocalnetEnabled() (bool, error)
	EnableRouteLocalnet() error
	DisableRouteLocalnet() error
	// Recent returns how long ago each client was entered in a list of the match recent.
	Recent(list string) (map[netip.Addr]time.Duration, error)
	// Liberal reports whether the kernel accepts packets outside of the TCP window of
	// their connection as valid (nf_conntrack_tcp_be_liberal, see
	// docs.kernel.org/networking/nf_conntrack-sysctl.html).
	Liberal() bool
	// Watch calls touched whenever others change the tables, until ctx is done.
	Watch(ctx context.Context, touched func()) error
	// Suspect names the process that changed our chains last, empty if unknown.
	Suspect() string
	// Close releases the kernel resources of the Driver.
	Close()
}

// Backend keeps the chains of one family as wanted. It implements reconcile.Backend.
type Backend struct {
	reconcile.Base
	layout
	driver Driver
	// installed is what the tables hold, nil if that is not known.
	installed *installed
	rules     reconcile.Rules // of the latest Apply
	counts    counts
	// localnetMarked means that localnetMark existed when the tables were last read.
	// localnetRouted means that the kernel routes loopback addresses.
	localnetMarked, localnetRouted bool
	localnetErr                    error // why it cannot route them
	listeners                      bool  // there are listeners for what cannot be routed
	degradedReason                 string
	pending                        pending
	readsOnce                      bool // see ReadOnce
	kept                           *reading
}

// installed describes chains that match a snapshot.
type installed struct {
	snapshot *service.Snapshot
	sums     map[id]sum
	// retained are entries of an earlier process that an incomplete snapshot lacks.
	retained []entry
}

// Plan implements reconcile.Backend. Without foreign changes its cost is proportional to
// the difference between want and the last snapshot, plus the number of Services if a
// Service was added or removed. After foreign changes it reads the tables.
func (b *Backend) Plan(ctx context.Context, want *service.Snapshot) (reconcile.Plan, error) {
	touched, settingsChanged := true, b.readSettings()
	if b.installed != nil {
		var err error
		if touched, err = b.driver.Touched(ctx); err != nil {
			return nil, fmt.Errorf("ask for changes to the tables: %w", err)
		}
		// A complete snapshot allows the removal of what the incomplete one retained.
		touched = touched || b.installed.snapshot.Incomplete && !want.Incomplete
	}
	var p *plan
	if touched {
		// The driver reports a change once, so the tables are unknown until a plan was applied.
		have := b.installed
		b.installed = nil
		t, err := b.read(ctx)
		if err != nil {
			return nil, err
		}
		p = b.planAll(t, have, b.withPendingNodePorts(want, t))
	} else {
		p = b.planChanges(b.withPendingNodePorts(want, nil), settingsChanged)
	}
	b.planLocalnet(p)
	// The caller may discard the plan while another process makes the same change.
	b.installed = nil
	switch {
	case p.Empty() && p.fullSync:
		b.recordInstalled(p.next)
	case p.Empty():
		b.installed = p.next
	}
	return p, nil
}

// maxReads bounds how often the tables are read again because others change them meanwhile.
const maxReads = 5

func (b *Backend) read(ctx context.Context) (*observed, error) {
	_, t, err := b.list(ctx)
	return t, err
}

// list reads the tables, as text and parsed.
func (b *Backend) list(ctx context.Context) (string, *observed, error) {
	for range maxReads {
		text, err := b.driver.Save(ctx)
		if err != nil {
			return "", nil, fmt.Errorf("read the tables of %s: %w", command(b.family), err)
		}
		if h := parse(text, b.options.Role); !h.interrupted {
			h.dormant, err = b.driver.Dormant()
			return text, h, err
		}
	}
	return "", nil, fmt.Errorf("read the tables of %s: others changed them meanwhile, %d times in a row", command(b.family), maxReads)
}

// Cleanup implements reconcile.Backend. It removes the chains of any service proxy and the rules
// that jump there. A chain that others refer to is flushed and kept, and is reported as an error.
func (b *Backend) Cleanup(ctx context.Context) error {
	b.installed = nil
	t, err := b.read(ctx)
	if err != nil {
		return err
	}
	if _, routed := t.chains[localnetMark]; routed {
		if err := b.driver.DisableRouteLocalnet(); err != nil {
			return fmt.Errorf("stop to route loopback addresses: %w", err)
		}
	}
	b.localnetMarked = false
	c := t.extraneous(nil)
	if !c.empty() {
		if err := b.driver.Restore(ctx, c.text()); err != nil {
			return fmt.Errorf("remove the chains of %s: %w", command(b.family), err)
		}
	}
	return t.inUse()
}

// Forget implements reconcile.Backend.
func (b *Backend) Forget() { b.installed = nil }

// Watch implements reconcile.Backend.
func (b *Backend) Watch(ctx context.Context, touched func()) error {
	return b.driver.Watch(ctx, touched)
}

// planChanges plans from the last snapshot to want without reading the tables.
// settingsChanged means that chains may differ although the snapshot is the same.
func (b *Backend) planChanges(want *service.Snapshot, settingsChanged bool) *plan {
	h := b.installed
	p := &plan{backend: b, from: h, next: h}
	if want == h.snapshot && !settingsChanged {
		return p
	}
	p.next = &installed{snapshot: want, sums: h.sums, retained: h.retained}
	if h.snapshot.Node != want.Node || settingsChanged {
		p.stage = b.stageAll(h, want)
		return p
	}
	s := &stage{layout: b.layout, sums: h.sums, keepDeleted: len(h.retained) > 0}
	same := true
	for c := range service.Diff(h.snapshot, want, b.family) {
		same = same && b.sameEntries(c, want.Node)
		s.changePort(c, want.Node)
		p.next.dropRetained(b.keys(c.New, want.Node))
	}
	if !same {
		s.ensureShared(b.shared(want.Node, want.Ports(b.family), p.next.retained))
	}
	p.stage = s
	return p
}

// dropRetained removes retained entries that a Port of the snapshot has now.
func (i *installed) dropRetained(has []key) {
	if len(has) == 0 || len(i.retained) == 0 {
		return
	}
	i.retained = slices.DeleteFunc(slices.Clone(i.retained), func(e entry) bool { return slices.Contains(has, e.key) })
}

// stageAll compares all chains of want with the sums in h.
func (b *Backend) stageAll(h *installed, want *service.Snapshot) *stage {
	s := &stage{layout: b.layout, sums: h.sums, keepDeleted: len(h.retained) > 0}
	for c := range service.Diff(h.snapshot, want, b.family) {
		s.changePort(c, want.Node)
	}
	for p := range want.Ports(b.family) {
		s.ensure(b.portChains(p, want.Node)...)
	}
	s.ensureShared(b.shared(want.Node, want.Ports(b.family), h.retained))
	return s
}

// Close implements reconcile.Backend.
func (b *Backend) Close() error {
	b.driver.Close()
	return nil
}

// activate clears the flag dormant that others have set on tables. The kernel keeps the
// chains and rules of a dormant table and evaluates none of them (nft(8)). iptables
// neither prints nor changes the flag, so no rule of ours could repair this.
func (p *plan) activate() error {
	var errs []error
	for _, table := range p.dormant {
		if err := p.backend.driver.Activate(table); err != nil {
			name := netlink.FamilyName(p.backend.family) + " " + table
			errs = append(errs, fmt.Errorf("activate table %s, which is dormant, so none of its rules works: %w: try nft add table %s", name, err, name))
		}
	}
	return errors.Join(errs...)
}

// Ports is a range of ports, both ends included.
type Ports struct{ First, Last uint16 }

// String returns the range in the form of a match.
func (p Ports) String() string {
	if p.First == p.Last {
		return strconv.Itoa(int(p.First))
	}
	return fmt.Sprintf("%d:%d", p.First, p.Last)
}

// bound reports whether the relay listens at an address that other programs use, too.
func (l layout) bound() bool { return l.relays() && l.options.RelayPorts[l.family] != Ports{} }

// guard returns the rules for packets to and from the listeners of a relay. They accept translated
// packets before other rules see them, and drop the rest: of clients that guess a port, and late
// datagrams of forgotten flows. At an address of the node, packets of connections that the node
// began pass: they are not new.
func (l layout) guard() chain {
	drop := "-j DROP"
	if l.bound() {
		drop = "-m conntrack --ctstate NEW,UNTRACKED " + drop
	}
	return chain{id{filter, relayChain}, []string{"-m conntrack --ctstate DNAT -j ACCEPT", drop}}
}

// guardJumps lead to guard. At an address of the node, the mark distinguishes packets of
// listeners from those of other programs.
func (l layout) guardJumps() []jump {
	addr, to := hostPrefix(l.options.Relay[l.family]), "-j "+relayChain
	in, out := id{filter, "INPUT"}, id{filter, "OUTPUT"}
	if !l.bound() {
		return []jump{{in, "-d " + addr + " " + to}, {out, "-s " + addr + " " + to}}
	}
	return []jump{
		{in, l.listeners("tcp") + to},
		{in, l.listeners("udp") + to},
		{out, "-s " + addr + " -p udp -m udp --sport " + l.options.RelayPorts[l.family].String() + " -m mark --mark " + l.options.Marked() + " " + to},
	}
}

// listeners matches packets to the ports of a relay at an address of the node.
func (l layout) listeners(proto string) string {
	return fmt.Sprintf("-d %s -p %s -m %s --dport %s ", hostPrefix(l.options.Relay[l.family]), proto, proto, l.options.RelayPorts[l.family])
}

// hidden excludes the listeners of a relay from the rules that accept health checks.
func (l layout) hidden() string {
	if l.bound() {
		return l.listeners("tcp") + "-j RETURN"
	}
	return "-d " + hostPrefix(l.options.Relay[l.family]) + " -j RETURN"
}

// Guard puts only the rules of guard in force, before a relay opens listeners that others reach.
func (b *Backend) Guard(ctx context.Context) error {
	b.installed = nil
	t, err := b.read(ctx)
	if err != nil {
		return err
	}
	p := &plan{backend: b, dormant: t.dormant}
	if err := p.activate(); err != nil {
		return err
	}
	s := &stage{layout: b.layout, sums: t.sums()}
	s.ensure(b.guard())
	s.insertJumps, s.insertAfter, s.moves = t.missingJumps(b.guardJumps()), t.insertAfter, t.misplaced(b.guardJumps())
	if s.empty() {
		return nil
	}
	return b.program(ctx, s.text())
}

// pending replaces the node while the addresses that answer NodePorts are not known yet.
// The addresses that answered when the tables were first read stay in use.
type pending struct {
	prefixes []netip.Prefix
	from     *service.Node
	node     *service.Node     // from with prefixes
	want     *service.Snapshot // snapshot with node from
	snapshot *service.Snapshot // snapshot with node node
	read     bool              // prefixes have been read
}

// withPendingNodePorts returns want with the NodePort addresses that the tables t, if read, use
// now, while those of the node are pending. The same want returns the same pointer.
func (b *Backend) withPendingNodePorts(want *service.Snapshot, t *observed) *service.Snapshot {
	v := &b.pending
	if !want.Node.NodePortsPending[b.family] {
		*v = pending{read: true}
		return want
	}
	if t != nil && !v.read {
		v.read, v.prefixes = true, b.nodePortsIn(t)
	}
	if len(v.prefixes) == 0 {
		return want
	}
	if v.from != want.Node {
		node := *want.Node
		node.NodePorts = append(slices.Clone(node.NodePorts), v.prefixes...)
		v.from, v.node = want.Node, &node
	}
	if v.want != want {
		v.want, v.snapshot = want, want.With(want.Generation, v.node, nil)
	}
	return v.snapshot
}

// nodePortsIn reads from rules of ours or of kube-proxy which addresses answer NodePorts.
func (l layout) nodePortsIn(t *observed) []netip.Prefix {
	var all []netip.Prefix
	for _, r := range l.roots(nat) {
		for _, rule := range t.chains[id{nat, r.services}] {
			match, is := strings.CutSuffix(jump{rule: rule}.bare().rule, "-j "+r.nodePorts)
			if !is {
				continue
			}
			if p, ok := l.opened(match); ok && !slices.Contains(all, p) {
				all = append(all, p)
			}
		}
	}
	return all
}

// opened returns the addresses for which a rule of this match leads to NodePorts.
// kube-proxy leaves out loopback addresses in a match of all local ones, which
// nodePortRules does by a rule of its own, and names single addresses without asking
// whether they are local (kubernetes/kubernetes, pkg/proxy/iptables/proxier.go).
func (l layout) opened(match string) (netip.Prefix, bool) {
	all := netip.PrefixFrom(unspecified[l.family], 0)
	match = strings.TrimPrefix(match, "! -d "+loopback[l.family].String()+" ")
	rest, local := strings.CutSuffix(match, localOnly)
	if rest == "" {
		return all, local
	}
	to, named := strings.CutPrefix(rest, "-d ")
	p, err := netip.ParsePrefix(strings.TrimSpace(to))
	if !named || err != nil || service.FamilyOf(p.Addr()) != l.family {
		return all, false
	}
	return p, local || p.IsSingleIP()
}

var unspecified = [...]netip.Addr{service.IPv4: netip.IPv4Unspecified(), service.IPv6: netip.IPv6Unspecified()}
