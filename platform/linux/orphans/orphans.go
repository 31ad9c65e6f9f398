// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package orphans ends established TCP connections to endpoints that left for good, and, for
// Services that ask for it, to endpoints with more than their share after a scale-up. The
// kernel goes on to translate the packets of such a connection. If the endpoint does not
// answer any more, its client waits until its own retransmissions end, for a quarter of an
// hour by default. Where a Service asks for it, connections to endpoints that left and
// still answer end, too.
//
// A look compares the entries of connection tracking with the slices. It depends on no
// event, so it also finds what happened while no process ran. Connections to be ended are
// put into a Table, where the kernel answers the next packet of the client with a reset.
package orphans

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/platform/linux/conntrack"
)

// Table makes the kernel end connections.
type Table interface {
	// Set makes the kernel end these connections and no others.
	Set([]conntrack.Flow) error
	// Forget makes the next Set assume nothing of what is in the kernel.
	Forget()
}

// Options are what Orphans needs of the system.
type Options struct {
	Family service.Family
	// Filter restricts the dumps to entries that may lead from a Service to an endpoint.
	Filter conntrack.Filter
	Dump   func(context.Context, conntrack.Filter, func(conntrack.Flow)) error
	Table  Table
	// CPUTime returns how long the calling thread has run.
	CPUTime func() time.Duration
	// Answers dials an endpoint. It reports whether anything came back, also a refusal.
	Answers func(context.Context, netip.AddrPort) bool
	// TCPTimeout returns the timeout of entries in a state in seconds, 0 if that is not known.
	TCPTimeout func(state string) uint32
	Log        klog.Logger
}

// The times of a search.
const (
	pace   = 500 * time.Millisecond // between two looks
	moving = 200 * time.Millisecond // see dial
	// Looks take up to 1/share of a processor, after a pause up to burst/share at once: the
	// kernel walks its whole table for each.
	share = 50
	burst = 10 * time.Second
	// The pause until the next look grows from pace to maxPause while there are connections
	// to endpoints that left, and to restless while clients may be about to find one dead.
	maxPause, restless = time.Minute, time.Second
	// patient makes it grow so slowly that a look falls between two packets of a client that
	// waits, whose pauses double.
	patient = 8
	// patience is how long the kernel waits for a packet of the client.
	patience = 15 * time.Minute
)

// maxEnding bounds the connections in the Table.
const maxEnding = 1 << 16

// Orphans ends connections of one family.
type Orphans struct {
	Options
	tracker *track.Tracker
	enter   func(context.Context) (leave func(), ok bool)
	report  func(begun []track.Ending, orphans, rebalanced int)
	inForce atomic.Pointer[service.Snapshot]
	wake    chan struct{}

	before *service.Snapshot // of the last look
	// missing are the ways of the last look to endpoints that left.
	missing map[way]bool
	// ending holds since when connections are to end.
	ending    map[flow]time.Time
	paidUntil time.Time     // for the time of looks so far
	pause     time.Duration // until the next look, 0 for no need
	since     time.Time     // of the first look with a pause
	failure   string        // of the Table, logged
	// silent are the hosts of endpoints that do not serve which did not answer the last dials,
	// asked is when those without clients that wait were dialled.
	silent  map[netip.Addr]bool
	asked   time.Time
	balance *balance
}

// New returns Orphans that do nothing before Run.
func New(o Options) *Orphans {
	return &Orphans{Options: o, wake: make(chan struct{}, 1), ending: map[flow]time.Time{}, balance: newBalance(o)}
}

// way is from where to where connections lead.
type way struct{ frontend, endpoint netip.AddrPort }

// flow identifies a connection.
type flow struct {
	client netip.AddrPort
	way
}

func flowOf(f conntrack.Flow) flow { return flow{f.Src, way{f.Dst, f.ReplySrc}} }

// InForce records the snapshot of a round whose rules are at least partly in force. Only
// then do clients that come back reach other endpoints.
func (o *Orphans) InForce(s *service.Snapshot) {
	o.inForce.Store(s)
	o.kick()
}

func (o *Orphans) kick() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// Run looks for connections until ctx ends. enter returns whether this process may change
// the node, see lease.Lease; without it, this process always may. report gets what is decided
// here, and how many connections ended after that.
func (o *Orphans) Run(ctx context.Context, t *track.Tracker, enter func(context.Context) (leave func(), ok bool), report func(begun []track.Ending, orphans, rebalanced int)) {
	o.tracker, o.enter, o.report = t, enter, report
	t.Subscribe(track.Listener{Changed: o.kick})
	timer := time.NewTimer(0)
	defer timer.Stop()
	var seen uint64
	due, last := true, time.Time{}
	for {
		select {
		case <-ctx.Done():
			o.change(context.WithoutCancel(ctx), nil)
			return
		case <-o.wake:
			due = due || len(o.ending) > 0 // an endpoint may be back
		case <-timer.C:
			due = due || o.pause > 0 && time.Since(last) >= o.pause
		}
		departures := t.Departures(o.Family)
		if departures != seen {
			due, o.pause = true, 0
		}
		due = o.balance.follow(o.inForce.Load()) || due
		wait := max(pace-time.Since(last), time.Until(o.paidUntil)-burst)
		switch {
		case !due && o.pause > 0:
			timer.Reset(o.pause - time.Since(last))
		case !due:
		case !last.IsZero() && wait > 0:
			timer.Reset(wait)
		case o.current():
			last, seen, due = time.Now(), departures, false
			o.look(ctx)
			timer.Reset(max(o.pause, pace))
		}
	}
}

// current reports whether the rules for all that the Tracker knows are in force. If not, a
// round follows and calls InForce.
func (o *Orphans) current() bool {
	s := o.inForce.Load()
	return s != nil && !s.Incomplete && o.tracker.Latest() == s
}

// look finds connections to endpoints that left, and ends those that should.
func (o *Orphans) look(ctx context.Context) {
	left, err := o.find(ctx)
	if err == nil && len(left) > 0 {
		answers := o.dial(ctx, left)
		if err = o.ask(left); err == nil && ctx.Err() == nil {
			for _, l := range left {
				l.judge(answers)
			}
			o.judgeHosts(left, answers)
		}
	}
	switch {
	case errors.Is(err, errUnsettled):
		o.pause = pace
		return
	case err != nil:
		o.pause = maxPause
		o.Log.V(1).Info("Connections to endpoints that left are not looked for now", "family", o.Family.String(), "reason", err.Error())
		return
	}
	o.end(ctx, left)
	if o.pause == 0 {
		o.since = time.Now()
	}
	o.pause = o.slower()
	for _, l := range left {
		if l.leaving == track.NotServing {
			o.pause = min(o.pause, restless)
		}
	}
	if len(left) == 0 && len(o.ending) == 0 {
		o.pause = 0
	}
	if p := o.balance.pause(); p > 0 {
		o.pause = min(cmp.Or(o.pause, p), p)
	}
}

// slower is a pause that grows from look to look.
func (o *Orphans) slower() time.Duration {
	return min(max(pace, time.Since(o.since)/patient), maxPause)
}

// verdict is what to do with the connections of a way.
type verdict uint8

const (
	keep verdict = iota
	// endStuck ends those whose endpoint owes an answer to the client.
	endStuck
	// endDead ends all if the endpoint owes an answer to one client or its host is dead, and
	// gave none to others.
	endDead
	end
)

// lost is a way to an endpoint that left.
type lost struct {
	way
	port    *service.Port // nil if no Service has the frontend any more
	leaving track.Leaving
	node    string // empty if the endpoint is in no slice
	verdict verdict
	why     string
	// owes, stuck and live say whether the endpoint owes an answer to a client, for long, and
	// whether it has just given one.
	owes, stuck, live bool
}

// dump calls each for all entries, perhaps more than once.
func (o *Orphans) dump(ctx context.Context, each func(conntrack.Flow)) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, now := o.CPUTime(), time.Now()
	err := o.Dump(ctx, o.Filter, each)
	if o.paidUntil.Before(now) {
		o.paidUntil = now
	}
	o.paidUntil = o.paidUntil.Add(share * (o.CPUTime() - before))
	return err
}

// errUnsettled means that slices are being read, or that the rules for them are not in force yet.
var errUnsettled = errors.New("not all slices are known and in force")

// find returns the ways of connections whose endpoints left.
func (o *Orphans) find(ctx context.Context) (map[way]*lost, error) {
	ways, ages := map[way]*lost{}, o.ages()
	err := o.dump(ctx, func(f conntrack.Flow) {
		if w := (way{f.Dst, f.ReplySrc}); established(f) {
			o.balance.see(f)
			if ways[w] == nil {
				ways[w] = &lost{way: w}
			}
			ways[w].see(f, ages)
		}
	})
	if err != nil {
		return nil, err
	}
	now := o.inForce.Load()
	o.resolve(ways, now)
	left := maps.Clone(ways)
	maps.DeleteFunc(left, func(w way, l *lost) bool { return l.port == nil && !o.missing[w] })
	if err := o.ask(left); err != nil {
		return nil, err
	}
	o.before, o.missing = now, map[way]bool{}
	for w := range left {
		o.missing[w] = true
	}
	maps.DeleteFunc(o.ending, func(k flow, _ time.Time) bool { return ways[k.way] != nil && left[k.way] == nil }) // the endpoint is back
	return left, nil
}

// ask removes the ways whose endpoint did not leave.
func (o *Orphans) ask(left map[way]*lost) error {
	all := slices.Collect(maps.Values(left))
	asked := make([]track.Connection, len(all))
	for i, l := range all {
		asked[i] = l.connection()
	}
	leaving, nodes, settled := o.tracker.Left(asked)
	if !settled || !o.current() { // clients that come back must meet the rules for what Left knows
		return errUnsettled
	}
	for i, l := range all {
		l.node = nodes[asked[i].Endpoint]
		if l.leaving = leaving[i]; l.leaving == track.Stays {
			delete(left, l.way)
		}
	}
	return nil
}

// established reports whether f is an open connection whose destination was translated.
func established(f conntrack.Flow) bool {
	return f.Protocol == service.TCP && f.Answered && !f.Ended() && f.ReplySrc != f.Dst
}

// resolve finds the Service ports of ways. One that was deleted meanwhile is in the
// snapshot of the last look.
func (o *Orphans) resolve(ways map[way]*lost, now *service.Snapshot) {
	ports := map[service.Address]*service.Port{}
	for w := range ways {
		a := service.AddressOf(service.TCP, w.frontend)
		ports[a], ports[a.OnNode()] = nil, nil
	}
	take := func(p *service.Port) {
		for _, f := range p.Frontends {
			if _, asked := ports[p.Address(f)]; asked {
				ports[p.Address(f)] = p
			}
		}
	}
	for _, s := range []*service.Snapshot{cmp.Or(o.before, now), now} {
		for p := range s.Ports(o.Family) {
			take(p)
		}
	}
	for w, l := range ways {
		a := service.AddressOf(service.TCP, w.frontend)
		if l.port = ports[a]; l.port == nil {
			l.port = ports[a.OnNode()]
		}
	}
}

func (l *lost) connection() track.Connection {
	c := track.Connection{Endpoint: service.AddressOf(service.TCP, l.endpoint)}
	if l.port != nil {
		c.Port = l.port.Name
	}
	return c
}

// The bounds of dials in one look.
const (
	maxDialled  = 256 // endpoints
	maxParallel = 32
	maxPeers    = 3
)

// dial asks the endpoints that left all slices, or owe an answer, and some to compare with,
// whether they answer. It takes as long as an endpoint may be missing that moves from one slice of its
// Service to another.
func (o *Orphans) dial(ctx context.Context, left map[way]*lost) map[netip.AddrPort]bool {
	moved := time.After(moving)
	answers := map[netip.AddrPort]bool{}
	quiet := o.pause == 0 || time.Since(o.asked) >= o.slower()
	if quiet {
		o.asked = time.Now()
	}
	for _, l := range left {
		_, known := answers[l.endpoint]
		if l.leaving == track.LeftService || l.leaving == track.NotServing && !l.owes && !quiet || !known && len(answers) >= maxDialled {
			continue
		}
		for _, e := range append(l.peers(), l.endpoint) {
			answers[e] = false
			if l.leaving == track.NotServing {
				answers[hostOf(e)] = false
			}
		}
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	slots := make(chan struct{}, maxParallel)
	for _, e := range slices.Collect(maps.Keys(answers)) {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			answered := o.Answers(ctx, e)
			mu.Lock()
			defer mu.Unlock()
			answers[e] = answered
		})
	}
	all.Wait()
	select {
	case <-moved:
	case <-ctx.Done():
	}
	return answers
}

// judge sets the verdict. A policy may keep this node from an endpoint, though not its
// clients. So silence means something only if another endpoint of the Service answers.
// Otherwise the connections decide.
func (l *lost) judge(answers map[netip.AddrPort]bool) {
	answered, asked := answers[l.endpoint]
	switch {
	case l.leaving == track.LeftService:
		l.verdict, l.why = end, "the Service asks for it"
	case !asked || answered:
	case slices.ContainsFunc(l.peers(), func(p netip.AddrPort) bool { return answers[p] }):
		l.verdict, l.why = end, "it does not answer"
		if l.leaving == track.NotServing {
			l.verdict, l.why = endDead, "it answers neither its clients nor the node, and is not ready"
		}
	case l.leaving == track.NotServing:
	default:
		l.verdict, l.why = endStuck, "it does not answer its clients"
	}
}

// hostOf is a port of the host of an endpoint at which nobody listens, so one that lives refuses.
func hostOf(e netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(e.Addr(), 1) }

// judgeHosts ends connections to nodes that are dead before a client waits: the endpoints there
// do not serve, neither they nor their hosts answer in two looks, and another endpoint of a
// Service and its host do. The host of a busy endpoint refuses, or others of its node answer.
func (o *Orphans) judgeHosts(left map[way]*lost, answers map[netip.AddrPort]bool) {
	silent, twice, dead, lives := map[netip.Addr]bool{}, map[*lost]bool{}, map[string]bool{}, map[string]bool{}
	for _, l := range left {
		at := hostOf(l.endpoint)
		answered, asked := answers[at]
		switch {
		case l.leaving != track.NotServing:
		case !asked:
			silent[at.Addr()] = o.silent[at.Addr()]
		case answered || answers[l.endpoint] || l.live:
			lives[l.at()] = true
		default:
			silent[at.Addr()], twice[l] = true, o.silent[at.Addr()]
			dead[l.at()] = dead[l.at()] || twice[l] && slices.ContainsFunc(l.peers(), func(p netip.AddrPort) bool { return answers[p] && answers[hostOf(p)] })
		}
	}
	o.silent = silent
	for l, is := range twice {
		if is && dead[l.at()] && !lives[l.at()] {
			l.verdict, l.why, l.stuck = endDead, "nothing on its node answers, and it is not ready", true
		}
	}
}

// at names the node, or else the host.
func (l *lost) at() string { return cmp.Or(l.node, l.endpoint.Addr().String()) }

// peers returns endpoints of the same Service port to compare with: those on other nodes
// if there are any, because policies often admit the own node.
func (l *lost) peers() []netip.AddrPort {
	if l.port == nil {
		return nil
	}
	var near, far []netip.AddrPort
	for _, e := range l.port.Cluster {
		switch {
		case e.Addr == l.endpoint:
		case e.Local:
			near = append(near, e.Addr)
		default:
			far = append(far, e.Addr)
		}
	}
	if len(far) == 0 {
		far = near
	}
	return slices.Clip(far[:min(len(far), maxPeers)])
}

// ages tells how long entries of established connections have seen no packet: they live for
// acked seconds after the last one, and for owed if data of the client waits for its
// acknowledgement (kernel: net/netfilter/nf_conntrack_proto_tcp.c, nf_conntrack_tcp_packet).
type ages struct{ acked, owed uint32 }

func (o *Orphans) ages() ages {
	timeout := func(state string, usual uint32) uint32 { return cmp.Or(o.TCPTimeout(state), usual) }
	acked := timeout("established", 432000)
	return ages{acked, min(acked, timeout("unacknowledged", 300), timeout("max_retrans", 300))}
}

// stuck reports whether the endpoint of f owes an acknowledgement, and the client has sent
// nothing for more than a second: it has waited longer than before, as its pauses double.
func (a ages) stuck(f conntrack.Flow) bool {
	return f.State == conntrack.TCPEstablished && f.Owed && f.Expires+overdue <= a.owed
}

// overdue is a pause in seconds, of which the kernel tells whole ones that have begun.
const overdue = 2

// live reports whether all data of f was acknowledged a moment ago.
func (a ages) live(f conntrack.Flow) bool {
	return f.State == conntrack.TCPEstablished && !f.Owed && f.Expires <= a.acked && f.Expires+overdue > a.acked
}

// see notes what f says of its endpoint.
func (l *lost) see(f conntrack.Flow, a ages) {
	l.owes, l.stuck, l.live = l.owes || f.Owed, l.stuck || a.stuck(f), l.live || a.live(f)
}

// end makes the kernel end the connections of left as their verdicts say, those that are to
// be rebalanced, and no others.
func (o *Orphans) end(ctx context.Context, left map[way]*lost) {
	open, ages := map[flow]conntrack.Flow{}, o.ages()
	visit := func(f conntrack.Flow) {
		k := flowOf(f)
		l := left[k.way]
		if l == nil || !established(f) {
			return
		}
		l.see(f, ages)
		if _, begun := o.ending[k]; begun || l.verdict != keep && (l.verdict != endStuck || ages.stuck(f)) {
			open[k] = f
		}
	}
	if len(left) > 0 {
		if err := o.dump(ctx, visit); err != nil {
			return // the next look tries again
		}
	}
	dead, live := map[netip.AddrPort]bool{}, map[netip.AddrPort]bool{}
	for _, l := range left {
		dead[l.endpoint], live[l.endpoint] = dead[l.endpoint] || l.stuck, live[l.endpoint] || l.live
	}
	fresh := map[track.Ending]int{}
	flows, rebalanced := o.balance.decide(fresh)
	for k, f := range open {
		l := left[k.way]
		since, begun := o.ending[k]
		switch {
		case begun:
		case len(o.ending) >= maxEnding || l.verdict == endDead && (!dead[l.endpoint] || live[l.endpoint]):
			continue
		default:
			since = time.Now()
			o.ending[k] = since
			fresh[track.Ending{Connection: l.connection(), Why: l.why}]++
		}
		if time.Since(since) < patience {
			flows = append(flows, f)
		}
	}
	gone := 0
	for k := range o.ending {
		if _, is := open[k]; !is {
			delete(o.ending, k)
			gone++
		}
	}
	var begun []track.Ending
	if o.change(ctx, flows) {
		for e, n := range fresh {
			e.Count = n
			begun = append(begun, e)
		}
	} else {
		o.balance.forget()
	}
	o.report(begun, gone, rebalanced)
}

// change sets the table, unless another process programs the node.
func (o *Orphans) change(ctx context.Context, flows []conntrack.Flow) (changed bool) {
	if o.enter != nil {
		leave, ok := o.enter(ctx)
		if !ok {
			o.Table.Forget()
			return false
		}
		defer leave()
	}
	text := ""
	if err := o.Table.Set(flows); err != nil {
		text = err.Error()
	}
	if text != o.failure && text != "" {
		o.Log.Info("Warning: connections to endpoints that left cannot be ended, so their clients wait", "family", o.Family.String(), "reason", text)
	}
	o.failure = text
	return text == ""
}
