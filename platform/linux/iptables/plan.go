// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/packet"
)

// plan is the change from the installed state to a snapshot. It implements reconcile.Plan.
type plan struct {
	backend         *Backend
	*stage                     // nil if nothing changes
	from            *installed // the state before, snapshot nil if unknown
	next            *installed
	enableLocalnet  bool     // enable route_localnet
	disableLocalnet bool     // disable route_localnet
	dormant         []string // tables, see Driver
	drift           []string
	removed         []*service.Port
	fullSync        bool // made from the tables, not from a difference
}

func (p *plan) Empty() bool {
	return (p.stage == nil || p.stage.empty()) && !p.enableLocalnet && !p.disableLocalnet && len(p.dormant) == 0
}

func (p *plan) Outcome() reconcile.Outcome {
	b := p.backend
	out := reconcile.Outcome{FullSync: p.fullSync, Drift: p.drift, Removed: p.removed, Degraded: b.degradedReason}
	out.Rules = &reconcile.Rules{Held: b.rules.Held, Written: perTable()}
	if len(p.drift) > 0 {
		out.Suspect = b.driver.Suspect()
	}
	return out
}

func (p *plan) Changes() reconcile.Changes {
	var all reconcile.Changes
	if p.stage != nil {
		all = p.list(p.layout.portNames(p.from, p.next))
	}
	for _, table := range p.dormant {
		all.Add("~ %s table: active, no longer dormant", table)
	}
	if p.enableLocalnet {
		all.Add("+ routing of loopback addresses")
	}
	if p.disableLocalnet {
		all.Add("- routing of loopback addresses")
	}
	return all
}

// ErrBusy means that iptables did not run or could not finish, whatever its input.
var ErrBusy = errors.New("iptables is busy or cannot run")

func (p *plan) Apply(ctx context.Context) reconcile.Outcome {
	b := p.backend
	b.rules = reconcile.Rules{Written: perTable()}
	dormant := p.activate()
	err := p.program(ctx)
	if dormant != nil {
		b.installed = nil
		err = errors.Join(dormant, err)
	}
	out, rules := p.Outcome(), b.rules
	out.Err, out.Rules = err, &rules
	return out
}

// program applies the change. If the kernel refuses it, bisect finds the Ports at fault.
func (p *plan) program(ctx context.Context) error {
	b := p.backend
	b.installed = nil // after a failure, the next Plan reads the tables
	if err := p.stopRoutingLocalnet(ctx); err != nil {
		return err
	}
	var err error
	if p.stage != nil && !p.stage.empty() {
		err = b.restoreInPieces(ctx, p.stage)
	}
	switch {
	case err != nil && (errors.Is(err, ErrBusy) || ctx.Err() != nil):
		return fmt.Errorf("program the tables of %s: %w", command(b.family), err)
	case err != nil:
		return p.bisectAndRoute(ctx, err)
	}
	if p.stage != nil {
		p.stage.recordSums()
	}
	if err := p.routeLocalnet(ctx); err != nil {
		return err
	}
	b.recordInstalled(p.next)
	return nil
}

// bisectAndRoute calls bisect. If only some Ports failed, others may need route_localnet.
func (p *plan) bisectAndRoute(ctx context.Context, refusal error) error {
	err := p.bisect(ctx, refusal)
	if !reconcile.OnlyPortErrors(err) {
		return err
	}
	return errors.Join(err, p.routeLocalnet(ctx))
}

// change is the input of one run of iptables-restore.
type change struct {
	writes      []chain // created or flushed, then filled
	deletes     []id
	moves       []move     // moved to the positions of jumps
	insertJumps []jump     // inserted at the head of their chains, or
	insertAfter map[id]int // behind this number of rules
	deleteJumps []jump     // removed from their chains
}

func (c *change) empty() bool {
	return len(c.writes) == 0 && len(c.deletes) == 0 && len(c.moves) == 0 && len(c.insertJumps) == 0 && len(c.deleteJumps) == 0
}

// text returns c in the format of iptables-restore --noflush.
func (c *change) text() string { return c.textOf(allTables) }

// removal returns the text of a change that only removes. iptables-restore commits table after
// table. Table filter, which rejects what is untranslated, goes first: IPVS may translate after
// nat.
func (c *change) removal() string { return c.textOf([]string{filter, nat, mangle}) }

func (c *change) textOf(tables []string) string {
	var b strings.Builder
	for _, table := range tables {
		c.writeTable(&b, table)
	}
	return b.String()
}

func (c *change) writeTable(b *strings.Builder, table string) {
	var head, body strings.Builder
	for _, w := range c.writes {
		if w.table != table {
			continue
		}
		head.WriteString(":" + w.name + " - [0:0]\n")
		for _, r := range w.rules {
			body.WriteString("-A " + w.name + " " + r + "\n")
		}
	}
	c.writeJumps(&body, table)
	for _, d := range c.deletes {
		if d.table == table { // flushed first, so that no rule refers to a deleted chain
			head.WriteString(":" + d.name + " - [0:0]\n")
			body.WriteString("-X " + d.name + "\n")
		}
	}
	if head.Len() > 0 || body.Len() > 0 {
		fmt.Fprintf(b, "*%s\n%s%sCOMMIT\n", table, head.String(), body.String())
	}
}

// writeJumps writes the changes of the built-in chains of table. insertAfter counts positions in
// the present chain, so jumps behind others are deleted last.
func (c *change) writeJumps(body *strings.Builder, table string) {
	remove := func(first bool) {
		for _, j := range c.deleteJumps {
			if j.from.table == table && (c.insertAfter[j.from] == 0) == first {
				body.WriteString("-D " + j.from.name + " " + j.rule + "\n")
			}
		}
	}
	remove(true)
	for _, m := range c.moves { // the old rule is behind its new position
		if m.from.table == table {
			fmt.Fprintf(body, "-D %s %s\n-I %s %d %s\n", m.from.name, m.rule, m.from.name, c.insertAfter[m.from]+1, m.jump.rule)
		}
	}
	for _, j := range c.insertJumps {
		if j.from.table == table {
			fmt.Fprintf(body, "-I %s %d %s\n", j.from.name, c.insertAfter[j.from]+1, j.rule)
		}
	}
	remove(false)
}

// list describes c, a change for each chain or jump. names has the Ports of chains of one Port.
func (c *change) list(names map[id]service.PortName) reconcile.Changes {
	var all reconcile.Changes
	for _, w := range c.writes {
		all = append(all, reconcile.Change{Text: fmt.Sprintf("+ %s chain %s (rules: %d)", w.table, w.name, len(w.rules)), Port: names[w.id]})
	}
	for _, m := range c.moves {
		all.Add("~ %s rule in %s: %s: ahead of %s", m.from.table, m.from.name, m.jump.rule, m.shadowedBy)
	}
	for _, j := range c.insertJumps {
		all.Add("+ %s rule in %s: %s", j.from.table, j.from.name, j.rule)
	}
	for _, j := range c.deleteJumps {
		all.Add("- %s rule in %s: %s", j.from.table, j.from.name, j.rule)
	}
	for _, d := range c.deletes {
		all = append(all, reconcile.Change{Text: fmt.Sprintf("- %s chain %s", d.table, d.name), Port: names[d]})
	}
	return all
}

// stage collects a change to chains whose sums are known.
type stage struct {
	change
	layout  layout
	sums    map[id]sum // read only
	newSums map[id]sum // of the chains that are written
	changes []service.Change
	// keepDeleted keeps the chains of removed Ports. It is set for an incomplete
	// snapshot, because retained rules may jump to them.
	keepDeleted bool
}

// ensure writes those chains that differ from the desired ones.
func (s *stage) ensure(chains ...chain) {
	if s.newSums == nil {
		s.newSums = map[id]sum{}
	}
	for _, c := range chains {
		now := c.sum()
		old, held := s.sums[c.id]
		if _, twice := s.newSums[c.id]; twice || held && old == now {
			continue
		}
		s.newSums[c.id] = now
		s.writes = append(s.writes, c)
	}
}

func (s *stage) changePort(c service.Change, node *service.Node) {
	s.changes = append(s.changes, c)
	stay := map[id]bool{}
	if c.New != nil {
		chains, same := s.layout.changedChains(c.New, c.Old, node)
		if slices.ContainsFunc(same, func(i id) bool { return !s.holds(i) }) {
			chains = s.layout.portChains(c.New, node)
		}
		for _, x := range chains {
			stay[x.id] = true
		}
		s.ensure(chains...)
	}
	if c.Old == nil || s.keepDeleted {
		return
	}
	chains, _ := s.layout.changedChains(c.Old, c.New, node)
	for _, x := range chains {
		if s.holds(x.id) && !stay[x.id] {
			s.deletes = append(s.deletes, x.id)
		}
	}
}

// holds reports whether the tables have a chain before the change.
func (s *stage) holds(i id) bool {
	_, held := s.sums[i]
	return held
}

// ensureShared adds all chains that do not belong to a single Port, and deletes branches
// of trees that are not among them.
func (s *stage) ensureShared(chains []chain) {
	s.ensure(chains...)
	stay := map[id]bool{}
	for _, c := range chains {
		stay[c.id] = true
	}
	for i := range s.sums {
		if s.layout.options.Role.isBranch(i) && !stay[i] {
			s.deletes = append(s.deletes, i)
		}
	}
	slices.SortFunc(s.deletes, id.compare)
}

// recordSums updates s.sums after the change has been applied.
func (s *stage) recordSums() {
	for i, v := range s.newSums {
		s.sums[i] = v
	}
	for _, d := range s.deletes {
		delete(s.sums, d)
	}
}

// passTargets let a packet leave a built-in chain before later rules. Those that drop or reject are
// left out: if an operator closes a node, no Service may open it again.
var passTargets = []string{"ACCEPT", "RETURN", "DNAT", "SNAT", "MASQUERADE", "REDIRECT", "NETMAP"}

// passProtocols are the protocols of Services, and all.
var passProtocols = []string{"tcp", "udp", "sctp", "all"}

// passesAll reports whether a rule lets all packets of a protocol of Services pass. A jump does not
// count: others insert jumps ahead of ours for good reasons, and answer for those chains.
func passesAll(w []string) bool {
	for len(w) > 1 {
		switch {
		case w[0] == "-j":
			return slices.Contains(passTargets, w[1])
		case w[0] == "-m" && w[1] == "comment", w[0] == "--comment", w[0] == "-p" && slices.Contains(passProtocols, w[1]):
			w = w[2:]
		default:
			return false
		}
	}
	return false
}

// move is a jump of ours that does not receive its packets.
type move struct {
	jump              // as desired
	rule       string // as observed
	shadowedBy string // the rule ahead
}

// misplaced returns those of jumps that are behind a rule that lets all packets pass. Of
// equal rules the last one counts, because the earlier ones are removed.
func (o *observed) misplaced(jumps []jump) []move {
	var all []move
	for _, j := range jumps {
		first, by := "", ""
		for i, l := range o.references {
			if l.bare() != j || first != "" && l.rule != first {
				continue
			}
			first, by = l.rule, o.shadowedBy[i]
		}
		if by != "" {
			all = append(all, move{j, first, by})
		}
	}
	return all
}

func (m move) String() string {
	return fmt.Sprintf("hidden: rule %q of chain %s of table %s stands behind %q, which lets all packets pass",
		m.rule, m.from.name, m.from.table, m.shadowedBy)
}

// pieces splits c so that no part has many more than limit rules of new chains, 0 for no
// limit. have are the chains that exist. Each part but the last only makes chains to which
// no rule leads yet, those first that others refer to. The last part has everything else,
// so packets meet the old rules until it is applied, and then all of the new ones.
//
// iptables-nft-restore took 92 MB of memory for 5,000 Services of ten endpoints in one
// text, and 14 MB for one more chain beside them. TestStartsWithLittleMemory (test/live)
// bounds that memory.
func (c *change) pieces(have map[id]sum, limit int) []change {
	if limit == 0 {
		return []change{*c}
	}
	s := splitter{fresh: map[id]*chain{}, done: map[id]bool{}, limit: limit}
	last := *c
	last.writes = nil
	for i := range c.writes {
		w := &c.writes[i]
		if _, exists := have[w.id]; exists {
			last.writes = append(last.writes, *w)
			continue
		}
		s.fresh[w.id] = w
		s.rules += len(w.rules)
	}
	if s.rules <= limit {
		return []change{*c}
	}
	for i := range c.writes {
		s.add(c.writes[i].id)
	}
	s.cut()
	return append(s.parts, last)
}

// splitter puts new chains into parts.
type splitter struct {
	fresh map[id]*chain
	done  map[id]bool
	limit int
	rules int // of all new chains
	parts []change
	now   change
	size  int // rules in now
}

// add adds a new chain, after those that it refers to.
func (s *splitter) add(i id) {
	c := s.fresh[i]
	if c == nil || s.done[i] {
		return
	}
	s.done[i] = true // chains do not lead back to themselves
	for _, r := range c.rules {
		if to := targetOf(packet.Split(r)); to != "" {
			s.add(id{i.table, to})
		}
	}
	s.now.writes = append(s.now.writes, *c)
	if s.size += len(c.rules); s.size >= s.limit {
		s.cut()
	}
}

func (s *splitter) cut() {
	if len(s.now.writes) > 0 {
		s.parts = append(s.parts, s.now)
	}
	s.now, s.size = change{}, 0
}

// maxFailures limits how many Ports may be refused one by one, before all else is at fault.
const maxFailures = 64

// bisect applies what the kernel accepts of p. A Port that is refused keeps its old rules.
func (p *plan) bisect(ctx context.Context, refusal error) error {
	b, want := p.backend, p.next.snapshot
	t, err := b.read(ctx) // one of the tables may have been changed
	if err != nil {
		return err
	}
	d := &bisection{plan: p, ctx: ctx, sums: t.sums(), ports: map[service.PortName]*service.Port{}, existing: t.entries(), jumps: t.missingJumps(b.jumps()), moves: t.misplaced(b.jumps()), insertAfter: t.insertAfter}
	d.owners = map[key]service.PortName{}
	changes := p.changes
	if p.fullSync {
		d.recordOwners(want)
	} else {
		for port := range p.from.snapshot.Ports(b.family) {
			d.ports[port.Name] = port
		}
		d.existing = p.next.retained
	}
	if err := d.try(nil); err != nil {
		return fmt.Errorf("program the tables of %s: %w", command(b.family), errors.Join(refusal, err))
	}
	d.jumps, d.moves = nil, nil
	d.bisect(changes)
	if len(d.errs) == 0 && d.fatal == nil {
		d.deleteObsolete()
	}
	return errors.Join(append(d.errs, d.fatal)...)
}

// bisection is the state of one call of plan.bisect.
type bisection struct {
	plan        *plan
	ctx         context.Context
	sums        map[id]sum
	jumps       []jump
	moves       []move
	insertAfter map[id]int
	ports       map[service.PortName]*service.Port // whose rules are installed
	existing    []entry                            // in the tables at the start
	owners      map[key]service.PortName           // the desired owner of each key
	errs        []error
	fatal       error // ends the bisection
}

// recordOwners stores the owner of each key of want.
func (bi *bisection) recordOwners(want *service.Snapshot) {
	b := bi.plan.backend
	for p := range want.Ports(b.family) {
		for _, k := range b.keys(p, want.Node) {
			bi.owners[k] = p.Name
		}
	}
}

// existingEntries returns the entries that stay although no installed port has them.
func (bi *bisection) existingEntries() []entry {
	if !bi.plan.fullSync {
		return bi.existing
	}
	var all []entry
	for _, e := range bi.existing {
		owner, wanted := bi.owners[e.key]
		if !wanted && bi.plan.next.snapshot.Incomplete || wanted && bi.ports[owner] == nil {
			all = append(all, e)
		}
	}
	return all
}

// deleteObsolete removes obsolete chains after everything else has been applied.
func (bi *bisection) deleteObsolete() {
	b := bi.plan.backend
	// ensureShared has removed the obsolete branches of trees.
	c := change{deleteJumps: bi.plan.deleteJumps, deletes: slices.DeleteFunc(slices.Clone(bi.plan.deletes), b.options.Role.isBranch)}
	if !bi.plan.fullSync || c.empty() {
		return
	}
	if err := b.restore(bi.ctx, &c); err != nil {
		bi.fatal = fmt.Errorf("remove old chains from the tables of %s: %w", command(b.family), err)
	}
}

// bisect applies changes. If they are refused, it applies each half separately.
func (bi *bisection) bisect(changes []service.Change) {
	if len(changes) == 0 || bi.fatal != nil {
		return
	}
	err := bi.try(changes)
	switch {
	case err == nil:
	case errors.Is(err, ErrBusy) || bi.ctx.Err() != nil:
		bi.fatal = fmt.Errorf("program the tables of %s: %w", command(bi.plan.backend.family), err)
	case len(changes) > 1:
		bi.bisect(changes[:len(changes)/2])
		bi.bisect(changes[len(changes)/2:])
	default:
		bi.recordFailure(changes[0], err)
	}
}

func (bi *bisection) recordFailure(c service.Change, err error) {
	bi.errs = append(bi.errs, &reconcile.PortError{Family: bi.plan.backend.family, Name: c.Name(), Err: err})
	if len(bi.errs) >= maxFailures {
		bi.fatal = fmt.Errorf("tables of %s: gave up after %d refusals", command(bi.plan.backend.family), len(bi.errs))
	}
}

// try applies changes together with the shared chains.
func (bi *bisection) try(changes []service.Change) error {
	b, node := bi.plan.backend, bi.plan.next.snapshot.Node
	before := map[service.PortName]*service.Port{}
	s := &stage{layout: b.layout, sums: bi.sums, keepDeleted: bi.plan.next.snapshot.Incomplete && len(bi.existing) > 0}
	for _, c := range changes {
		before[c.Name()] = bi.ports[c.Name()]
		s.changePort(c, node)
		bi.setPort(c.Name(), c.New)
	}
	for port := range bi.sortedPorts() { // a partly refused text may have removed their chains
		s.ensure(b.portChains(port, node)...)
	}
	s.ensureShared(b.shared(node, bi.sortedPorts(), bi.existingEntries()))
	s.insertJumps, s.insertAfter, s.moves = bi.jumps, bi.insertAfter, bi.moves
	if s.empty() {
		return nil
	}
	if err := b.restore(bi.ctx, &s.change); err != nil {
		for name, p := range before {
			bi.setPort(name, p)
		}
		return errors.Join(err, bi.reread())
	}
	s.recordSums()
	return nil
}

// reread reads the tables after a refusal, because one of them may have been changed.
func (bi *bisection) reread() error {
	t, err := bi.plan.backend.read(bi.ctx)
	if err != nil {
		return err
	}
	bi.sums = t.sums()
	return nil
}

func (bi *bisection) setPort(name service.PortName, p *service.Port) {
	if p == nil {
		delete(bi.ports, name)
		return
	}
	bi.ports[name] = p
}

// sortedPorts yields the installed ports in the order of their names.
func (bi *bisection) sortedPorts() iter.Seq[*service.Port] {
	names := make([]service.PortName, 0, len(bi.ports))
	for name := range bi.ports {
		names = append(names, name)
	}
	slices.SortFunc(names, service.PortName.Compare)
	return func(yield func(*service.Port) bool) {
		for _, n := range names {
			if !yield(bi.ports[n]) {
				return
			}
		}
	}
}
