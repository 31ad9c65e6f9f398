// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"kubeproxy/cmd/kube-proxy/internal/host"
	"kubeproxy/common/condition"
	"kubeproxy/common/explain"
	"kubeproxy/common/metrics"
	"kubeproxy/common/report"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/common/source"
	"kubeproxy/common/track"
	"kubeproxy/common/traffic"
	"kubeproxy/common/trafficview"
	"kubeproxy/config"
	"kubeproxy/platform/linux/proc"
	"kubeproxy/platform/mode"
	"kubeproxy/platform/modes"
)

// packetsTimeout bounds how long a scrape waits for the packet counters of rules.
const packetsTimeout = 2 * time.Second

// accelerated returns how many connections socket acceleration took, by family, nil without it.
func accelerated(backends []*mode.Backend) map[service.Family]uint64 {
	var all map[service.Family]uint64
	for _, b := range backends {
		all = counted(all, b.Family, b.Accelerated)
	}
	return all
}

// counted adds to all what read returns for f, if it is there and can be read.
func counted(all map[service.Family]uint64, f service.Family, read func() (uint64, error)) map[service.Family]uint64 {
	if read == nil {
		return all
	}
	n, err := read()
	if err != nil {
		return all
	}
	if all == nil {
		all = map[service.Family]uint64{}
	}
	all[f] = n
	return all
}

// newReports returns what is reported of the backends of x. In o are the node, the
// build, the sources, the tracker, and the log.
func (s System) newReports(x *Selected, o report.Options) *report.Reports {
	c := x.Config
	var families []service.Family
	for _, b := range x.Backends {
		families = append(families, b.Family)
	}
	o.Mode, o.Families, o.Unavailable, o.Observe = string(x.Name), families, x.Unavailable, func(seen *metrics.Observation) {
		seen.Tracked = s.Tracked()
		x.observe(seen)
	}
	o.SyncPeriod, o.PodsFromNode, o.ProxyName, o.ExternalIPsIgnored = x.Section(c).SyncPeriod, c.DetectLocalMode == config.NodeCIDR, c.ProxyName, c.IgnoreExternalIPs()
	o.DeprecatedMode, o.MetricGroups = x.Deprecated, x.MetricGroups
	o.Features = featureMetrics(c)
	o.Addresses = func() []netip.Addr {
		all, err := host.InterfaceAddrs()
		if err != nil {
			return nil // some may be missing
		}
		return all
	}
	o.Processes, o.Listen, o.MaxConnections = s.Processes, listenOn, maxConnections(host.FilesLimit())
	o.Health, o.Relayed = x.health, x.relayed
	r := report.New(o)
	for _, b := range x.Backends {
		r.Metrics.Register(b.Collectors)
	}
	return r
}

// apiOf returns the API server that a source reads, nil for none.
func apiOf(from source.Source) *rest.Config {
	if api, ok := from.(*apiSource); ok {
		return api.Config
	}
	return nil
}

// observe adds what the backends count. What cannot be read keeps its value, or is left out.
func (se *Selected) observe(seen *metrics.Observation) {
	ctx, cancel := context.WithTimeout(context.Background(), packetsTimeout)
	defer cancel()
	seen.Localhost = map[service.Family]metrics.Localhost{}
	for _, b := range se.Backends {
		if b.Packets != nil {
			p, _ := b.Packets(ctx)
			if seen.Packets == nil {
				seen.Packets = &metrics.Packets{}
			}
			seen.Packets.Invalid += p.Invalid
			seen.Packets.Loopback += p.Loopback
		}
		if b.Localhost != nil {
			seen.Localhost[b.Family] = metrics.Localhost{Listeners: b.Localhost.Listeners(), Failures: b.Localhost.Failures()}
		}
		seen.Unrelayed = counted(seen.Unrelayed, b.Family, b.Unrelayed)
	}
	if r := se.Backends[0].Relay; r != nil {
		seen.Relay = r.Use()
	}
	if slices.ContainsFunc(se.Backends, func(b *mode.Backend) bool { return b.Relay != nil || b.Localhost != nil }) {
		seen.Unreached = se.relayed.Totals()
	}
	seen.Traffic, seen.Accelerated = se.named(), accelerated(se.Backends)
}

func featureMetrics(c *config.Config) []metrics.Feature {
	var all []metrics.Feature
	for _, f := range c.Features() {
		all = append(all, metrics.Feature{Name: f.Name, Stage: f.Stage, Enabled: f.Enabled})
	}
	return all
}

// newCollector returns what counts the traffic of x, nil if nothing is counted.
func newCollector(x *Selected, tracker *track.Tracker) *traffic.Collector {
	readers := map[service.Family]traffic.Reader{}
	for _, b := range x.Backends {
		if b.Traffic != nil {
			readers[b.Family] = b.Traffic
		}
	}
	if len(readers) == 0 {
		return nil
	}
	return &traffic.Collector{Latest: tracker.Latest, Readers: readers}
}

// trafficHandler answers what Services carry.
func (p *proxy) trafficHandler() http.Handler {
	s := &trafficview.Server{Mode: string(p.selected.Name), Node: p.node, Collector: p.selected.traffic, Silent: p.reports.Silent.List, Ended: p.reports.Ended.List}
	switch {
	case s.Collector != nil:
	case p.selected.Config.CountTraffic:
		s.Lack = "mode " + s.Mode + " cannot count what Services carry"
	default:
		s.Lack = "the proxy does not count what Services carry: start it with --count-traffic, or with countTraffic: true in its configuration"
	}
	return s.Handler()
}

// trafficTimeout bounds how long a scrape waits for counters.
const trafficTimeout = 5 * time.Second

// named returns what metrics show of traffic, nil if nothing is counted.
func (se *Selected) named() *traffic.Named {
	if se.traffic == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), trafficTimeout)
	defer cancel()
	return se.traffic.Named(ctx)
}

// trace follows c through the dataplane. It returns nil where the mode cannot do that.
func (p *proxy) trace(ctx context.Context, want *service.Snapshot, c route.Conn) (*explain.Walk, error) {
	t := p.newTracing()
	defer t.Close()
	w, err := t.traceTracked(ctx, want, c)
	if err != nil || w == nil {
		return nil, err
	}
	p.addBlocks(w, c)
	if x := route.Decide(want, c); x.Action == route.Forward {
		w.Faults = append(w.Faults, p.selected.relayed.Faults(x.Port.Family, x.Port.Name)...)
	}
	return w, nil
}

// Explainer answers questions about a node without a proxy, from what a mode's backends find.
func Explainer(t *track.Tracker, c *config.Config, d mode.Descriptor, backends []*mode.Backend) *explain.Server {
	trace := func(ctx context.Context, want *service.Snapshot, conn route.Conn) (*explain.Walk, error) {
		t := newTracing(backends, c)
		defer t.Close()
		return t.traceTracked(ctx, want, conn)
	}
	follower := func() explain.Follower { return newTracing(backends, c).repeated() }
	return &explain.Server{Tracker: t, Trace: trace, Local: isLocal, Interfaces: interfaces, Relays: d.Relays, Follower: follower, Reaches: reaches, Waiting: host.Waiting}
}

// traceTracked follows c, and adds what connection tracking knows of it.
func (t *tracing) traceTracked(ctx context.Context, want *service.Snapshot, c route.Conn) (*explain.Walk, error) {
	w, err := t.Trace(ctx, want, c)
	if err != nil || w == nil {
		return nil, err
	}
	flows, err := host.Flows(ctx, want, c)
	if err != nil {
		w.Notes = append(w.Notes, "whether connection tracking has an entry could not be read: "+err.Error())
	}
	w.SetFlows(flows)
	return w, nil
}

// tracing follows connections.
type tracing struct {
	backends []*mode.Backend
	config   *config.Config
	marks    uint32         // the bits of the mark that the modes set
	tracers  [2]mode.Tracer // by family, opened when they are needed
	others   host.Others
	local    func(netip.Addr) bool // as isLocal, with one look at the node
	many     bool                  // read what is installed once
}

// newTracing follows connections through what the backends of a mode have installed.
func newTracing(backends []*mode.Backend, c *config.Config) *tracing {
	t := &tracing{backends: backends, config: c, marks: 1<<*c.IPTables.MasqueradeBit | 1<<*c.NFTables.MasqueradeBit}
	addrs := sync.OnceValue(ownAddrs)
	t.local = func(a netip.Addr) bool { return a.IsLoopback() || addrs()[a] }
	return t
}

func (p *proxy) newTracing() *tracing { return newTracing(p.selected.Backends, p.active.config()) }

// follower returns what follows many connections.
func (p *proxy) follower() explain.Follower { return p.newTracing().repeated() }

// repeated makes t follow many connections.
func (t *tracing) repeated() *tracing {
	t.many = true
	return t
}

// Trace follows c, see proxy.trace. It leaves connection tracking out.
func (t *tracing) Trace(ctx context.Context, want *service.Snapshot, c route.Conn) (*explain.Walk, error) {
	tracer, err := t.tracer(service.FamilyOf(c.To.Addr()))
	if err != nil || tracer == nil {
		return nil, err
	}
	local := func(a netip.Addr) bool { return slices.Contains(want.Node.Addrs, a) || t.local(a) }
	w, err := tracer.Trace(ctx, want, c, local)
	if err != nil {
		return nil, err
	}
	w.Followed = slices.Concat(w.Followed, modes.Beside(t.config, service.FamilyOf(c.To.Addr())))
	addRoute(w, c, local)
	decide := sync.OnceValue(func() route.Verdict { return route.Decide(want, c) })
	addOwner(w, decide, c.To.Addr(), want.Node, t.local)
	w.Here = func(a netip.AddrPort) bool {
		return slices.ContainsFunc(decide().Endpoints, func(e service.Endpoint) bool { return e.Addr == a && e.Local })
	}
	if t.many && want.Len(service.IPv4)+want.Len(service.IPv6) > explain.SampledFrom {
		t.others.Most = explain.SampledEndpoints
	}
	if err := t.others.Add(ctx, w, c, local, t.marks); err != nil {
		w.Notes = append(w.Notes, "the rules of others could not be followed: "+err.Error())
	}
	return w, nil
}

// tracer returns the one of a family, nil where the mode has none.
func (t *tracing) tracer(f service.Family) (mode.Tracer, error) {
	i := slices.IndexFunc(t.backends, func(b *mode.Backend) bool { return b.Family == f })
	if t.tracers[f] != nil || i < 0 || t.backends[i].Tracer == nil {
		return t.tracers[f], nil
	}
	var err error
	t.tracers[f], err = t.backends[i].Tracer()
	if r, can := t.tracers[f].(mode.Repeater); can && t.many {
		r.ReadOnce()
	}
	return t.tracers[f], err
}

// Local implements explain.Follower.
func (t *tracing) Local(a netip.Addr) bool { return t.local(a) }

// Close closes t.
func (t *tracing) Close() error {
	var errs []error
	for _, x := range t.tracers {
		if x != nil {
			errs = append(errs, x.Close())
		}
	}
	t.others.Close()
	return errors.Join(errs...)
}

// addRoute says whether the node's own processes have a route to the destination, which the kernel
// looks for before any translation (kernel: net/ipv4/tcp_ipv4.c, tcp_v4_connect).
func addRoute(w *explain.Walk, c route.Conn, local func(netip.Addr) bool) {
	if to := c.To.Addr(); c.Interface == "" && w.Action == route.Forward && !w.Taken && !local(to) {
		if err := host.Route(to); err != nil {
			w.Faults = append(w.Faults, fmt.Sprintf("the node has no route to %s: %v; without one its own processes cannot connect, only pods and others can", to, err))
		}
	}
}

// addOwner says that no interface has the node's own address to, at which a Service is. Only the
// first of a family counts: others may be those of a router that translates them, as clouds have.
func addOwner(w *explain.Walk, decide func() route.Verdict, to netip.Addr, n *service.Node, local func(netip.Addr) bool) {
	i := slices.IndexFunc(n.Addrs, func(a netip.Addr) bool { return service.FamilyOf(a) == service.FamilyOf(to) })
	if i >= 0 && n.Addrs[i] == to && !local(to) && decide().Action == route.Forward {
		w.Obstacles = append(w.Obstacles, explain.Obstacle{
			What: fmt.Sprintf("no interface of this node has the address %s, which is the node's by its Node object or --hostname-override: nobody here answers for it", to),
		})
	}
}

// addBlocks adds what keeps all traffic of c's family from flowing, as far as the proxy knows.
func (p *proxy) addBlocks(w *explain.Walk, c route.Conn) {
	f := service.FamilyOf(c.To.Addr())
	all, some := p.reports.Health.Blocking(f)
	for _, name := range slices.Sorted(maps.Keys(some)) {
		w.Notes = append(w.Notes, fmt.Sprintf("the proxy reports %s, which may keep traffic of some Services from flowing: %s", name, some[name]))
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		setting, is := strings.CutPrefix(string(name), string(condition.Setting))
		if is && (c.Interface == "" || host.Forwards(f)) {
			continue
		}
		fix := ""
		if is {
			fix = "sysctl -w " + setting + "=1"
		}
		w.Block(setting, fmt.Sprintf("the proxy reports %s, which blocks traffic: %s", name, all[name]), fix)
	}
}

// pod looks a pod up in EndpointSlices, as a service proxy may not read pods.
func (p *proxy) pod(ctx context.Context, id types.NamespacedName) ([]netip.Addr, string, error) {
	if len(p.options.Manifests) > 0 {
		pods := explain.NewPods(track.New(TrackOptions(p.selected.Descriptor, p.active.config(), p.node)))
		files := source.Manifests{Paths: p.options.Manifests, NodeName: p.node}
		// What cannot be read is reported by the running source.
		_ = files.Load(ctx, pods)
		return pods.Find(id)
	}
	to, err := KubeClient(p.active.config(), p.process.Build.GitVersion).Config()
	if err != nil {
		return nil, "", err
	}
	all, err := source.Lookup{Config: to}.Slices(ctx, id.Namespace)
	if err != nil {
		return nil, "", fmt.Errorf("list the EndpointSlices of namespace %s: %w", id.Namespace, err)
	}
	pods := explain.NewPods(nil)
	for i := range all {
		pods.SetSlice(&all[i])
	}
	return pods.Find(id)
}

// interfaces lists the interfaces of the node.
func interfaces() []string {
	var names []string
	all, _ := net.Interfaces() // none: any name will do
	for i := range all {
		names = append(names, all[i].Name)
	}
	return names
}

// reaches reports whether the node has a route to an address.
func reaches(to netip.Addr) bool {
	return host.Route(to) == nil
}

// probed logs that somebody dials from this node.
func (p *proxy) probed(by string, x *explain.Explanation) {
	endpoints, more := x.Dialed(host.MostDials)
	p.log.Info("kube-proxy explain --probe dials endpoints and the destination", "by", by, "client", x.Source, "destination", x.Destination+"/"+x.Protocol,
		"service", x.Service, "endpoints", len(endpoints), "notDialed", len(more))
}

// isLocal reports whether a is an address of an interface, or of loopback.
func isLocal(a netip.Addr) bool { return a.IsLoopback() || ownAddrs()[a] }

// ownAddrs are the addresses of the interfaces of the node, none if they cannot be read.
func ownAddrs() map[netip.Addr]bool {
	own := map[netip.Addr]bool{}
	all, _ := net.InterfaceAddrs()
	for _, x := range all {
		if p, err := netip.ParsePrefix(x.String()); err == nil {
			own[p.Addr().Unmap()] = true
		}
	}
	return own
}

// The part of the memory limit that the Go runtime fills before it collects garbage more often: a
// percentage, less reserved bytes, at least half. The limit covers the kernel's memory for rules
// and sockets, too, and the program's pages, of which about 20 MB are in use.
const (
	memoryPercent  = 90
	memoryReserved = 24 << 20
)

func softLimit(limit int64, d mode.Descriptor) int64 {
	if d.MemoryShare > 1 {
		return limit / int64(d.MemoryShare)
	}
	return max(min(limit/100*memoryPercent, limit-memoryReserved), limit/2)
}

// LimitMemory sets the Go runtime's soft limit by the cgroup's memory limit in mode d, unless
// GOMEMLIMIT is set. Without, the heap may double before garbage is collected, and the kernel kill
// the process: https://pkg.go.dev/runtime/debug#SetMemoryLimit.
func LimitMemory(log klog.Logger, root fs.FS, d mode.Descriptor) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	limit, version := proc.MemoryLimit(root)
	if limit == 0 {
		return
	}
	soft := softLimit(limit, d)
	debug.SetMemoryLimit(soft)
	log.V(1).Info("Garbage is collected so that memory stays within the cgroup's limit", "limitBytes", limit, "softLimitBytes", soft, "cgroupVersion", version)
}
