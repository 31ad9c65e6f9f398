// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package modes

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"kubeproxy/common/condition"
	"kubeproxy/common/explain"
	"kubeproxy/common/peers"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/common/silence"
	"kubeproxy/common/takeover"
	"kubeproxy/config"
	"kubeproxy/platform/linux/conntrack"
	"kubeproxy/platform/linux/direct"
	"kubeproxy/platform/linux/nftables"
	"kubeproxy/platform/linux/orphans"
	linuxsilence "kubeproxy/platform/linux/silence"
	"kubeproxy/platform/linux/socketlb"
	"kubeproxy/platform/linux/sysctl"
	"kubeproxy/platform/linux/userspace"
	"kubeproxy/platform/mode"
)

// withHints returns d with a probe whose errors name a reason outside of the mode, if there is one.
func withHints(d mode.Descriptor) mode.Descriptor {
	if d.System == nil || d.System.Probe == nil || !d.System.Conntrack {
		return d
	}
	probe, files := d.System.Probe, sysctl.Host()
	s := *d.System
	s.Probe = func(c *config.Config, f service.Family) error { return sysctl.WithConntrackHint(files, probe(c, f)) }
	d.System = &s
	return d
}

// accompany adds to backends what Linux needs in every mode: socket acceleration, the
// cleanup of connection tracking, and listeners on loopback addresses. A listener opens in the first round that
// needs it. All listeners share the file limit of the process.
func accompany(ctx context.Context, d mode.Descriptor, s mode.Setup, backends []*mode.Backend) {
	limits := sync.OnceValues(func() (*userspace.Limits, error) {
		files, err := userspace.RaiseFileLimit()
		if err != nil {
			return nil, err
		}
		l := userspace.NewLimits(files)
		l.Observe(s.DetailedCondition(condition.Relay))
		return l, nil
	})
	for _, b := range backends {
		accelerate(ctx, s, b)
		if d.System.Conntrack {
			c := newConntrackCleaner(ctx, b)
			b.Conntrack = c
			if d.System.Translates {
				b.Backend = retiring{b.Backend, c}
			}
		}
		endOrphans(ctx, d, s, b)
		if d.Consistent {
			returnDirectly(s, b)
		}
		if b.Localhost == nil && (b.LacksLocalhost || d.ListensOnLocalhost(b.Family)) {
			attempted := func(name service.PortName, e netip.AddrPort, err error) { s.Attempted(b.Family, name, e, err) }
			b.Localhost = userspace.NewLocalhost(b.Family, 0, userspace.LocalhostParts{Limits: limits, Attempted: attempted})
		}
	}
}

// accelerate puts socket acceleration above the rules of b. Where it is off, the first
// round removes what an earlier process left of it.
func accelerate(ctx context.Context, s mode.Setup, b *mode.Backend) {
	c := s.Config
	o := accelerationOptions(c)
	o.Connections = trackedConnections
	o.Watcher = &socketlb.Watcher{
		Observe: func(e silence.Evidence) { s.Silent().Observe(e) }, Silent: func() map[service.Address]silence.Record { return s.Silent().Records() },
		Draws: s.Draws, Drawn: s.Drawn, Late: func(a service.Address) bool { return s.Silent().Late(a) }, Flows: conntrack.Netlink{}, Table: nftables.RedrawPlace(b.Family, c.ProxyName), Log: klog.FromContext(ctx),
	}
	layer := socketlb.New(b.Family, socketlb.NewDriver(b.Family, o), o)
	b.Backend = reconcile.Both(b.Backend, layer)
	if len(b.Owned) > 0 { // else nothing is taken over
		b.Owned = append(b.Owned, socketlb.Leftovers{Family: b.Family, Options: accelerationOptions(c)}.String())
	}
	if !accelerates(c) {
		return
	}
	b.Accelerated = layer.Taken
	trace(b, func() (traceLayer, func() error) {
		l := newLayer(c, b.Family)
		add := func(_ context.Context, want *service.Snapshot, c route.Conn, _ func(netip.Addr) bool, w *explain.Walk) error {
			return l.Trace(want, c, w)
		}
		return add, l.Close
	})
}

// traceLayer adds to a walk through the rules what a layer above them does.
type traceLayer = func(ctx context.Context, want *service.Snapshot, c route.Conn, local func(netip.Addr) bool, w *explain.Walk) error

// trace has the Tracer of b follow connections through a layer, too.
func trace(b *mode.Backend, layer func() (traceLayer, func() error)) {
	if open := b.Tracer; open != nil {
		b.Tracer = func() (mode.Tracer, error) {
			t, err := open()
			if err != nil {
				return nil, err
			}
			add, end := layer()
			return &layeredTracer{t, add, end}, nil
		}
	}
}

// endOrphans makes b end connections to endpoints that left.
func endOrphans(ctx context.Context, d mode.Descriptor, s mode.Setup, b *mode.Backend) {
	place := nftables.LeftPlace(b.Family, s.Config.ProxyName)
	o := orphans.Options{
		Family: b.Family, Filter: conntrack.Filter{Family: b.Family, Protocol: service.TCP, Translated: d.System.Translates},
		Dump: conntrack.Netlink{}.Dump, Table: nftables.NewLeftTable(place), CPUTime: linuxsilence.ThreadTime, Answers: orphans.Answers, Log: klog.FromContext(ctx),
		TCPTimeout: func(state string) uint32 { return sysctl.TCPTimeout(sysctl.Host(), state) },
	}
	if r, relays := b.Relay.(*userspace.Backend); relays {
		both := userspace.Orphans{Relay: r, Kernel: o.Dump, Table: o.Table}
		o.Dump, o.Table = both.Dump, both
	}
	b.Orphans = orphans.New(o)
	if len(b.Owned) > 0 { // else nothing is taken over
		b.Owned = append(b.Owned, place.String(), nftables.RedrawPlace(b.Family, s.Config.ProxyName).String())
		if b.Family == mode.PrimaryFamily(s.Config) {
			b.Owned = append(b.Owned, settings(s.Config).String())
		}
	}
}

// returnDirectly puts direct return above the rules of b. Where no Service asks for it, the first round removes
// what an earlier process left of it.
func returnDirectly(s mode.Setup, b *mode.Backend) {
	k := direct.NewKernel(b.Family, s.Config.ProxyName)
	layer := direct.New(b.Family, k, s.Peers)
	b.Backend = reconcile.Both(b.Backend, layer)
	trace(b, func() (traceLayer, func() error) {
		return direct.Inspector{Layer: layer, Kernel: k}.Trace, func() error { return nil }
	})
	b.Tunnel = func(own netip.Addr) (peers.Conn, error) { return direct.Open(own, layer.Road) }
	if len(b.Owned) > 0 { // else nothing is taken over
		b.Owned = append(b.Owned, k.String())
	}
}

// settings is where the proxy of c keeps its settings.
func settings(c *config.Config) nftables.Leftovers {
	return nftables.SettingsPlace(mode.PrimaryFamily(c), c.ProxyName)
}

// KeepSettings keeps text beside the rules of the proxy of c, for LastSettings.
func KeepSettings(ctx context.Context, c *config.Config, text []byte) error {
	return settings(c).KeepSettings(ctx, text)
}

// LastSettings returns what the last proxy kept that served the Services of c here, nil if none did.
func LastSettings(c *config.Config) ([]byte, error) {
	for _, f := range service.Families {
		if text, err := nftables.SettingsPlace(f, c.ProxyName).Settings(); text != nil || err != nil {
			return text, err
		}
	}
	return nil, nil
}

// beside lists the tables that a proxy has in every mode.
func beside(c *config.Config, f service.Family) []nftables.Leftovers {
	return []nftables.Leftovers{nftables.LeftPlace(f, c.ProxyName), nftables.SettingsPlace(f, c.ProxyName), nftables.RedrawPlace(f, c.ProxyName).Leftovers}
}

// IsBeside reports whether a target is a table that the proxy of c has in every mode. It serves nobody.
func IsBeside(c *config.Config, t takeover.Target) bool {
	l, is := t.Leftovers.(nftables.Leftovers)
	return is && slices.Contains(beside(c, l.Family), l)
}

// Beside names tables of this proxy that decide nothing for a first packet, as in
// explain.Walk.Followed.
func Beside(c *config.Config, f service.Family) []string {
	return []string{nftables.LeftPlace(f, c.ProxyName).Name(), nftables.RedrawPlace(f, c.ProxyName).Name(), nftables.DirectPlace(f, c.ProxyName).Name()}
}

// companionTargets lists where what accompanies a mode may have left something.
func companionTargets(c *config.Config) []takeover.Target {
	all := accelerationTargets(c)
	for _, f := range service.Families {
		for _, place := range beside(c, f) {
			all = append(all, takeover.Target{Leftovers: place, Family: f})
		}
		all = append(all, takeover.Target{Leftovers: direct.NewKernel(f, c.ProxyName), Family: f})
	}
	return all
}

func accelerates(c *config.Config) bool { return c.SocketAcceleration != config.AccelerateNone }

func accelerationOptions(c *config.Config) socketlb.Options {
	return socketlb.Options{Off: !accelerates(c), NodeOnly: c.SocketAcceleration == config.AccelerateNode, Name: socketlb.NameOf(c.ProxyName)}
}

// accelerationTargets lists where socket acceleration may have left something.
func accelerationTargets(c *config.Config) []takeover.Target {
	o := accelerationOptions(c)
	o.Off = false // its pins may not be mounted here
	var all []takeover.Target
	for _, f := range service.Families {
		all = append(all, takeover.Target{Leftovers: socketlb.Leftovers{Family: f, Options: o, Wanted: accelerates(c)}, Family: f})
	}
	return all
}

// unwantedAcceleration lists where socket acceleration may be that is switched off. The
// container that runs may have neither the rights to remove it nor the BPF file system of
// the node.
func unwantedAcceleration(c *config.Config) []takeover.Target {
	if accelerates(c) {
		return nil
	}
	return accelerationTargets(c)
}

func removeAcceleration(ctx context.Context, c *config.Config) error {
	var errs []error
	if accelerates(c) { // what is hidden here would stay in force
		for _, f := range service.Families {
			errs = append(errs, socketlb.Leftovers{Family: f, Options: accelerationOptions(c)}.Evict())
		}
	}
	for _, t := range unwantedAcceleration(c) {
		err := t.Remove(ctx)
		if takeover.AsUnchecked(err) != nil { // the proxy can start without an answer
			klog.FromContext(ctx).Info("Warning: not checked whether "+t.String()+", which is off, is in the kernel", "reason", err.Error())
			continue
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// pendingAcceleration lists what removeAcceleration would remove, one a line.
func pendingAcceleration(ctx context.Context, c *config.Config) ([]string, error) {
	var lines []string
	var errs []error
	for _, t := range unwantedAcceleration(c) {
		switch found, err := t.Find(ctx); {
		case takeover.AsUnchecked(err) != nil:
			lines = append(lines, fmt.Sprintf("? %s: %v", t, err))
		case found != "":
			lines = append(lines, fmt.Sprintf("- %s: %s", t, found))
		default:
			errs = append(errs, err)
		}
	}
	return lines, errors.Join(errs...)
}

// Layers returns backends that plan what accompanies any mode. They are not for Apply.
func Layers(c *config.Config, families []service.Family) []*mode.Backend {
	var all []*mode.Backend
	for _, f := range families {
		all = append(all, &mode.Backend{Mode: "socket acceleration", Family: f, Backend: newLayer(c, f)})
	}
	return all
}

// trackedConnections is a socketlb.Connections.
func trackedConnections(ctx context.Context, f service.Family, each func(from, to netip.AddrPort)) error {
	return conntrack.Netlink{}.Dump(ctx, conntrack.Filter{Family: f, Protocol: service.TCP}, func(x conntrack.Flow) {
		if x.Protocol == service.TCP { // a kernel that cannot filter has others, too
			each(x.Src, x.Dst)
		}
	})
}

func newLayer(c *config.Config, f service.Family) *socketlb.Backend {
	o := accelerationOptions(c)
	return socketlb.New(f, socketlb.NewDriver(f, o), o)
}

func readBackAcceleration(c *config.Config, f service.Family, want *service.Snapshot) (held, wanted reconcile.Objects, err error) {
	l := newLayer(c, f)
	defer l.Close()
	return l.ReadBack(want)
}

// layeredTracer follows a connection through the rules and a layer. It implements mode.Tracer and mode.Repeater.
type layeredTracer struct {
	mode.Tracer
	layer traceLayer
	end   func() error
}

func (t *layeredTracer) Trace(ctx context.Context, want *service.Snapshot, c route.Conn, local func(netip.Addr) bool) (*explain.Walk, error) {
	w, err := t.Tracer.Trace(ctx, want, c, local)
	if err != nil || w == nil {
		return w, err
	}
	if err := t.layer(ctx, want, c, local, w); err != nil {
		w.Notes = append(w.Notes, err.Error())
	}
	return w, nil
}

func (t *layeredTracer) ReadOnce() {
	if r, can := t.Tracer.(mode.Repeater); can {
		r.ReadOnce()
	}
}

func (t *layeredTracer) Close() error { return errors.Join(t.end(), t.Tracer.Close()) }

// conntrackCleaner is a mode.Conntrack.
type conntrackCleaner struct {
	flows   *conntrack.Reconciler
	family  service.Family
	log     klog.Logger
	recheck atomic.Bool
	// cleaned is the snapshot of the last Clean, nil before the first one. retiring are the
	// frontends that the rules refuse until the next Clean. leftovers are those of them that
	// an earlier process left.
	cleaned             *service.Snapshot
	retiring, leftovers []*service.Port
	// tracked, if set, returns the snapshot that entries follow instead of the one of the
	// round. The endpoints of a relay are ports of this process.
	tracked func() *service.Snapshot
}

func newConntrackCleaner(ctx context.Context, b *mode.Backend) *conntrackCleaner {
	c := &conntrackCleaner{flows: &conntrack.Reconciler{Driver: conntrack.Netlink{}, Family: b.Family}, family: b.Family, log: klog.FromContext(ctx)}
	if b.Relay != nil {
		c.tracked = b.Relay.Tracked
	}
	return c
}

func (c *conntrackCleaner) Recheck() { c.recheck.Store(true) }

func (c *conntrackCleaner) Clean(ctx context.Context, r reconcile.Result) (int, time.Duration, error) {
	now := r.Snapshot
	if c.tracked != nil {
		now = c.tracked()
	}
	if c.recheck.Swap(false) || len(r.Drift) > 0 { // foreign rules may have created entries
		c.flows.Resync()
	}
	n, err := c.flows.Sync(ctx, now)
	if removed := slices.Concat(r.Removed, c.leftovers); len(removed) > 0 && !errors.Is(err, errors.ErrUnsupported) {
		removedFlows, removeErr := c.flows.Reconcile(ctx, removedRules(removed), now)
		n, err = n+removedFlows, errors.Join(err, removeErr)
	}
	if n > 0 {
		c.log.V(2).Info("Removed stale flows", "family", c.family.String(), "flows", n)
	}
	if r.Err != nil { // a port that failed keeps its old rules, which may still create entries
		c.flows.Resync()
	}
	again := c.flows.ResyncAfter()
	if len(c.retiring) > 0 {
		again = 1
	}
	c.cleaned, c.retiring, c.leftovers = r.Snapshot, nil, nil
	return n, again, err
}

// retiring is a backend that has frontends refuse their clients until Clean has deleted
// their entries. Only then it removes them, see conntrack.Retiring.
type retiring struct {
	reconcile.Backend
	cleaner *conntrackCleaner
}

// Plan implements reconcile.Backend.
func (r retiring) Plan(ctx context.Context, want *service.Snapshot) (reconcile.Plan, error) {
	c := r.cleaner
	c.retiring, c.leftovers = conntrack.Retiring(c.cleaned, want, c.family), nil
	p, err := r.Backend.Plan(ctx, and(want, c.retiring))
	if err != nil {
		return nil, err
	}
	if c.leftovers = conntrack.RetiringLeftovers(p.Outcome().Removed, and(want, c.retiring)); len(c.leftovers) == 0 {
		return p, nil
	}
	c.retiring = append(c.retiring, c.leftovers...)
	return r.Backend.Plan(ctx, and(want, c.retiring))
}

// and returns s with more ports.
func and(s *service.Snapshot, ports []*service.Port) *service.Snapshot {
	if len(ports) == 0 {
		return s
	}
	var changes []service.Change
	for _, p := range ports {
		changes = append(changes, service.Change{New: p})
	}
	return s.With(s.Generation, s.Node, changes)
}

// removedRules returns conntrack rules for frontends that an earlier process left and
// that this process does not know.
func removedRules(ports []*service.Port) []conntrack.Rule {
	var rules []conntrack.Rule
	for _, p := range ports {
		rules = append(rules, conntrack.Changes(p, nil)...)
	}
	return rules
}
