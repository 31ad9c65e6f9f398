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

	"kubeproxy/common/explain"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipset"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/platform/linux/ipvs/companion"
	"kubeproxy/test/backendtest"
	"kubeproxy/test/generate"
	"kubeproxy/test/xtables"
)

// fake is a kernel that is as strict as the real one about objects that exist or do not
// exist.
type fake struct {
	family          service.Family
	sets            *xtables.Sets // companion.VirtualServerSet among them
	tables          *xtables.System
	addrs           []netip.Addr
	device          bool
	routes          map[netip.Addr]localRoute
	servers         map[key]*fakeServer
	missingSettings []string
	scopes          []settingsScope // that were compared
	loadTime        time.Duration
	// upstream are virtual servers that kube-proxy made.
	upstream    []key
	clock       time.Time
	reads       int
	serverReads int // of single virtual servers
	ops         int
	done        []string // ops and settings, as a plan prints them
	// omitted are virtual servers that a list leaves out.
	omitted []key
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
		routes: map[netip.Addr]localRoute{}, servers: map[key]*fakeServer{},
		missingSettings: []string{"net.ipv4.vs.conntrack = 1"}, clock: time.Unix(1e9, 0),
	}
}

func (k *fake) MissingSettings(_ context.Context, of settingsScope) ([]string, error) {
	k.scopes = append(k.scopes, of)
	return k.missingSettings, nil
}

func (k *fake) ApplySettings(context.Context, settingsScope) error {
	for _, s := range k.missingSettings {
		k.done = append(k.done, "+ setting "+s)
	}
	k.missingSettings = nil
	return nil
}

func (k *fake) Commit(_ context.Context, ops []op) map[int]error {
	var goes []ipset.Entry
	for _, o := range ops {
		if o.removesFromSet() {
			goes = append(goes, o.key.entry())
		}
	}
	closed := k.deleteEntries(companion.VirtualServerSet(k.family), goes...)
	failed := applyInOrder(ops, func(o *op) error {
		if o.removesFromSet() && closed != nil {
			return closed
		}
		if k.refuse != nil {
			if err := k.refuse(*o); err != nil {
				return err
			}
		}
		if err := k.do(*o); err != nil {
			return err
		}
		k.ops++
		k.done = append(k.done, o.text())
		return nil
	})
	var members []ipset.Member
	for i, o := range ops {
		if o.addsToSet(failed[i]) {
			members = append(members, ipset.Member{Entry: o.key.entry()})
		}
	}
	if len(members) == 0 {
		return failed
	}
	if err := k.sets.Add(companion.VirtualServerSet(k.family), members); err != nil && !errors.Is(err, ipset.ErrMissing) {
		markNotInSet(ops, failed, err)
	}
	return failed
}

func (k *fake) do(o op) error {
	addrs, a := companion.NodeIPSet(k.family), ipset.Entry{Addr: o.route.addr}
	switch o.verb {
	case addDevice:
		k.device = true
		return nil
	case addRoute, delRoute:
		return k.route(o)
	case addServerToSet, delServerFromSet: // done for all ops at once
		return nil
	case addSets:
		return errors.Join(k.sets.Create(companion.VirtualServerSet(k.family)), k.sets.Create(addrs))
	case addAddrToSet:
		return k.sets.Add(addrs, []ipset.Member{{Entry: a}})
	case delAddrFromSet:
		return k.deleteEntries(addrs, a)
	}
	return k.doServer(o)
}

// deleteEntries removes entries from s, if the set exists.
func (k *fake) deleteEntries(s ipset.Set, entries ...ipset.Entry) error {
	if len(entries) == 0 {
		return nil
	}
	if err := k.sets.Del(s, entries); !errors.Is(err, ipset.ErrMissing) {
		return err
	}
	return nil
}

// readSets reads the sets of virtual servers and addresses.
func (k *fake) readSets(s *state) {
	servers, addrs := k.sets.ByName[companion.VirtualServerSet(k.family).Name], k.sets.ByName[companion.NodeIPSet(k.family).Name]
	s.serverSet, s.addrSet = map[key]bool{}, map[netip.Addr]bool{}
	if s.hasSets = servers != nil && addrs != nil; !s.hasSets {
		return
	}
	for e := range servers.Members {
		s.serverSet[key{e.Addr, e.Port, e.Protocol}] = true
	}
	for e := range addrs.Members {
		s.addrSet[e.Addr] = true
	}
}

func (k *fake) route(o op) error {
	_, found := k.routes[o.route.addr]
	switch {
	case !k.device:
		return errMissing
	case o.verb == delRoute && !found:
		return errMissing
	case o.verb == delRoute:
		delete(k.routes, o.route.addr)
	case o.route.source.IsValid() && !slices.Contains(k.addrs, o.route.source):
		return errSource
	default:
		k.routes[o.route.addr] = o.route
	}
	return nil
}

func (k *fake) doServer(o op) error {
	s := k.servers[o.key]
	switch {
	case o.verb == addServer && s != nil:
		return errExists
	case o.verb == addServer:
		o.server.flags |= flagHashed
		k.servers[o.key] = &fakeServer{o.server, map[netip.AddrPort]dest{}}
	case s == nil:
		return errMissing
	case o.verb == setServer:
		o.server.flags |= flagHashed
		s.server = o.server
	case o.verb == delServer:
		delete(k.servers, o.key)
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

func (k *fake) Read(ctx context.Context) (*state, error) {
	k.reads++
	s := &state{device: k.device, servers: map[key]*observedServer{}, oneTimeCost: k.loadTime}
	time.Sleep(k.loadTime)
	k.loadTime = 0
	k.readSets(s)
	for _, a := range slices.SortedFunc(maps.Keys(k.routes), netip.Addr.Compare) {
		s.routes = append(s.routes, k.routes[a])
	}
	for at := range k.servers {
		if !slices.Contains(k.omitted, at) {
			s.servers[at], _ = k.Server(ctx, at)
			k.serverReads--
		}
	}
	return s, nil
}

func (k *fake) Server(ctx context.Context, at key) (*observedServer, error) {
	k.serverReads++
	x := k.servers[at]
	if x == nil {
		return nil, nil
	}
	dests, err := k.Dests(ctx, at)
	return &observedServer{server: x.server, dests: dests, destsKnown: true, upstream: slices.Contains(k.upstream, at)}, err
}

func (k *fake) Dests(_ context.Context, at key) ([]dest, error) {
	if k.servers[at] == nil {
		return nil, nil
	}
	dests := slices.Collect(maps.Values(k.servers[at].dests))
	slices.SortFunc(dests, func(a, b dest) int { return a.addr.Compare(b.addr) })
	return dests, nil
}

func (k *fake) NodeAddrs(context.Context) ([]netip.Addr, error) { return k.addrs, nil }

func (k *fake) RemoveDevice(context.Context) error {
	k.device = false
	return nil
}

func (k *fake) Watch(ctx context.Context, _ func()) error {
	<-ctx.Done()
	return nil
}

func (k *fake) close() {}

// fakeRules replaces package companion in tests of virtual servers alone. It records the
// snapshot it was applied for.
type fakeRules struct {
	reconcile.Base
	held   *service.Snapshot
	refuse func(op) error
}

type rulesPlan struct {
	rules *fakeRules
	want  *service.Snapshot
}

func (r *fakeRules) Plan(_ context.Context, want *service.Snapshot) (reconcile.Plan, error) {
	return &rulesPlan{r, want}, nil
}

// ReadBack is not for these rules, which have no sets.
func (r *fakeRules) ReadBack(context.Context, *service.Snapshot, companion.Servers) (held, wanted companion.Document, err error) {
	return held, wanted, errors.ErrUnsupported
}

func (r *fakeRules) Follow(context.Context, companion.Question) (*explain.Walk, error) {
	return &explain.Walk{}, nil
}

func (r *fakeRules) Cleanup(context.Context) error {
	r.held = nil
	return nil
}

func (p *rulesPlan) Empty() bool                { return p.rules.held == p.want }
func (p *rulesPlan) Outcome() reconcile.Outcome { return reconcile.Outcome{} }
func (p *rulesPlan) String() string             { return "" }

func (p *rulesPlan) Apply(context.Context) reconcile.Outcome {
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

// newBackendWithRules returns a Backend that includes package companion.
func newBackendWithRules(f service.Family, k *fake, o Options) *Backend {
	b := newBackend(f, k, o)
	chains := iptables.NewWith(f, iptables.Options{Role: iptables.IPVSCompanion, MasqueradeBit: o.MasqueradeBit}, k.tables)
	b.rules = companion.NewWith(f, chains, k.sets, b.now)
	b.SetResync(b.options.SyncPeriod)
	return b
}

type fataler interface{ Fatalf(string, ...any) }

// apply runs one sync that must succeed.
func apply(t fataler, b *Backend, want *service.Snapshot) *plan {
	return generate.Apply(t, b, want).(*plan)
}
