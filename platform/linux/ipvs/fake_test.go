// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipset"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/test/backendtest"
	"kubeproxy/test/generate"
	"kubeproxy/test/xtables"
)

// fake is a kernel that is as strict as the real one about objects that exist or do not
// exist.
type fake struct {
	family          service.Family
	sets            *xtables.Sets // virtualServerSet among them
	tables          *xtables.System
	addrs           []netip.Addr
	device          bool
	routes          map[netip.Addr]localRoute
	servers         map[service.Address]*fakeServer
	missingSettings []string
	marks           []markRule
	marksErr        error
	scopes          []settingsScope // that were compared
	loadTime        time.Duration
	// upstream are virtual servers that kube-proxy made.
	upstream    []service.Address
	clock       time.Time
	reads       int
	serverReads int // of single virtual servers
	ops         int
	done        []string // ops and settings, as a plan prints them
	// omitted are virtual servers that a list leaves out.
	omitted []service.Address
	// refuse, if not nil, may refuse an op before it is executed.
	refuse func(op) error
}

type fakeServer struct {
	server
	dests map[netip.AddrPort]dest
}

var (
	errInjected = backendtest.ErrInjected
	errSource   = errors.New("invalid argument")
)

func newFake(f service.Family) *fake {
	sets := xtables.NewSets()
	return &fake{
		family: f, sets: sets, tables: xtables.New(sets),
		addrs:  []netip.Addr{generate.NodeAddr[f], generate.OtherNodeAddr[f]},
		routes: map[netip.Addr]localRoute{}, servers: map[service.Address]*fakeServer{},
		missingSettings: []string{"net.ipv4.vs.conntrack = 1"}, clock: time.Unix(1e9, 0),
	}
}

func (fa *fake) MissingSettings(_ context.Context, of settingsScope) ([]string, error) {
	fa.scopes = append(fa.scopes, of)
	return fa.missingSettings, nil
}

func (fa *fake) ApplySettings(context.Context, settingsScope) error {
	for _, s := range fa.missingSettings {
		fa.done = append(fa.done, "+ setting "+s)
	}
	fa.missingSettings = nil
	return nil
}

func (fa *fake) MarkRules(context.Context) ([]markRule, error) { return fa.marks, fa.marksErr }

func (fa *fake) Commit(_ context.Context, ops []op) map[int]error {
	var goes []ipset.Entry
	for _, o := range ops {
		if o.removesFromSet() {
			goes = append(goes, entryOf(o.key))
		}
	}
	closed := fa.deleteEntries(setOf(fa.family, virtualServerSet), goes...)
	failed := applyInOrder(ops, func(o *op) error {
		if o.removesFromSet() && closed != nil {
			return closed
		}
		if fa.refuse != nil {
			if err := fa.refuse(*o); err != nil {
				return err
			}
		}
		if err := fa.do(*o); err != nil {
			return err
		}
		fa.ops++
		fa.done = append(fa.done, o.text())
		return nil
	})
	var members []ipset.Member
	for i, o := range ops {
		if o.addsToSet(failed[i]) {
			members = append(members, ipset.Member{Entry: entryOf(o.key)})
		}
	}
	if len(members) == 0 {
		return failed
	}
	if err := fa.sets.Add(setOf(fa.family, virtualServerSet), members); err != nil && !errors.Is(err, ipset.ErrMissing) {
		markNotInSet(ops, failed, err)
	}
	return failed
}

func (fa *fake) do(o op) error {
	addrs, a := setOf(fa.family, nodeIPSet), ipset.Entry{Addr: o.route.addr}
	switch o.verb {
	case addDevice:
		fa.device = true
		return nil
	case addRoute, delRoute:
		return fa.route(o)
	case addServerToSet, delServerFromSet: // done for all ops at once
		return nil
	case addSets:
		return errors.Join(fa.sets.Create(setOf(fa.family, virtualServerSet)), fa.sets.Create(addrs))
	case addAddrToSet:
		return fa.sets.Add(addrs, []ipset.Member{{Entry: a}})
	case delAddrFromSet:
		return fa.deleteEntries(addrs, a)
	}
	return fa.doServer(o)
}

// deleteEntries removes entries from s, if the set exists.
func (fa *fake) deleteEntries(s ipset.Set, entries ...ipset.Entry) error {
	if len(entries) == 0 {
		return nil
	}
	if err := fa.sets.Del(s, entries); !errors.Is(err, ipset.ErrMissing) {
		return err
	}
	return nil
}

// readSets reads the sets of virtual servers and addresses.
func (fa *fake) readSets(s *state) {
	servers, addrs := fa.sets.ByName[setOf(fa.family, virtualServerSet).Name], fa.sets.ByName[setOf(fa.family, nodeIPSet).Name]
	s.serverSet, s.addrSet = map[service.Address]bool{}, map[netip.Addr]bool{}
	if s.hasSets = servers != nil && addrs != nil; !s.hasSets {
		return
	}
	for e := range servers.Members {
		s.serverSet[addressAt(e.Addr, e.Port, e.Protocol)] = true
	}
	for e := range addrs.Members {
		s.addrSet[e.Addr] = true
	}
}

func (fa *fake) route(o op) error {
	_, found := fa.routes[o.route.addr]
	switch {
	case !fa.device:
		return errMissing
	case o.verb == delRoute && !found:
		return errMissing
	case o.verb == delRoute:
		delete(fa.routes, o.route.addr)
	case o.route.source.IsValid() && !slices.Contains(fa.addrs, o.route.source):
		return errSource
	default:
		fa.routes[o.route.addr] = o.route
	}
	return nil
}

func (fa *fake) doServer(o op) error {
	s := fa.servers[o.key]
	switch {
	case o.verb == addServer && s != nil:
		return errExists
	case o.verb == addServer:
		o.server.flags |= flagHashed
		fa.servers[o.key] = &fakeServer{o.server, map[netip.AddrPort]dest{}}
	case s == nil:
		return errMissing
	case o.verb == setServer:
		o.server.flags |= flagHashed
		s.server = o.server
	case o.verb == delServer:
		delete(fa.servers, o.key)
	default:
		return s.do(o)
	}
	return nil
}

// do changes a destination.
func (s *fakeServer) do(o op) error {
	x, found := s.dests[o.dest.addr]
	switch {
	case o.verb == addDest && found:
		return errExists
	case o.verb == addDest:
		s.dests[o.dest.addr] = o.dest
	case !found:
		return errMissing
	case o.verb == delDest:
		delete(s.dests, o.dest.addr)
	default:
		x.weight, x.wrongMode = o.dest.weight, false
		s.dests[o.dest.addr] = x
	}
	return nil
}

func (fa *fake) Read(ctx context.Context) (*state, error) {
	fa.reads++
	s := &state{device: fa.device, servers: map[service.Address]*observedServer{}, oneTimeCost: fa.loadTime}
	time.Sleep(fa.loadTime)
	fa.loadTime = 0
	fa.readSets(s)
	for _, a := range slices.SortedFunc(maps.Keys(fa.routes), netip.Addr.Compare) {
		s.routes = append(s.routes, fa.routes[a])
	}
	for at := range fa.servers {
		if !slices.Contains(fa.omitted, at) {
			s.servers[at], _ = fa.Server(ctx, at)
			fa.serverReads--
		}
	}
	return s, nil
}

func (fa *fake) Server(ctx context.Context, at service.Address) (*observedServer, error) {
	fa.serverReads++
	x := fa.servers[at]
	if x == nil {
		return nil, nil
	}
	dests, err := fa.Dests(ctx, at)
	return &observedServer{server: x.server, dests: dests, destsKnown: true, upstream: slices.Contains(fa.upstream, at)}, err
}

func (fa *fake) Dests(_ context.Context, at service.Address) ([]dest, error) {
	if fa.servers[at] == nil {
		return nil, nil
	}
	dests := slices.Collect(maps.Values(fa.servers[at].dests))
	slices.SortFunc(dests, func(a, b dest) int { return a.addr.Compare(b.addr) })
	return dests, nil
}

func (fa *fake) NodeAddrs(context.Context) ([]netip.Addr, error) { return fa.addrs, nil }

func (fa *fake) RemoveDevice(context.Context) error {
	fa.device = false
	return nil
}

func (fa *fake) Watch(ctx context.Context, _ func()) error {
	<-ctx.Done()
	return nil
}

func (fa *fake) close() {}

// fakeRules replaces rules in tests of virtual servers alone. It records the
// snapshot it was applied for.
type fakeRules struct {
	reconcile.Base
	held   *service.Snapshot
	refuse func(op) error
}

type fakePlan struct {
	rules *fakeRules
	want  *service.Snapshot
}

func (r *fakeRules) Plan(_ context.Context, want *service.Snapshot) (reconcile.Plan, error) {
	return &fakePlan{r, want}, nil
}

// ReadBack is not for these rules, which have no sets.
func (r *fakeRules) Cleanup(context.Context) error {
	r.held = nil
	return nil
}

func (p *fakePlan) Empty() bool                { return p.rules.held == p.want }
func (p *fakePlan) Outcome() reconcile.Outcome { return reconcile.Outcome{} }
func (p *fakePlan) Changes() reconcile.Changes { return nil }

func (p *fakePlan) Apply(context.Context) reconcile.Outcome {
	if p.rules.refuse != nil {
		if err := p.rules.refuse(op{}); err != nil {
			return reconcile.Outcome{Err: err}
		}
	}
	p.rules.held = p.want
	return reconcile.Outcome{}
}

func newBackend(f service.Family, k *fake, o Options) *Backend {
	o.SyncPeriod = 30 * time.Second
	return &Backend{family: f, options: o, driver: k, rules: &fakeRules{}, now: func() time.Time { return k.clock }}
}

// newBackendWithRules returns a Backend with real rules.
func newBackendWithRules(f service.Family, k *fake, o Options) *Backend {
	b := newBackend(f, k, o)
	chains := iptables.NewWith(f, o.chains(f), k.tables)
	b.rules = newRules(f, chains, k.sets, b.now)
	b.SetResync(b.options.SyncPeriod)
	return b
}

type fataler interface{ Fatalf(string, ...any) }

// apply runs one sync that must succeed.
func apply(t fataler, b *Backend, want *service.Snapshot) *plan {
	return generate.Apply(t, b, want).(*plan)
}
