// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package mode defines the Descriptor, which is what the rest of the program knows of a
// proxy mode. Each backend has a function Mode with its own. Package modes has
// the Table of all of them. Code that selects, renders, starts or cleans up modes reads a
// Table; nothing else lists modes.
package mode

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"kubeproxy/common/condition"
	"kubeproxy/common/document"
	"kubeproxy/common/explain"
	"kubeproxy/common/metrics"
	"kubeproxy/common/peers"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/common/silence"
	"kubeproxy/common/takeover"
	"kubeproxy/common/track"
	"kubeproxy/common/traffic"
	"kubeproxy/config"
)

// Descriptor describes a mode.
type Descriptor struct {
	// Mode is the part that the configuration reads.
	config.Mode
	// DefaultRank is the place among modes to try if none is configured, from 1, 0 for none.
	DefaultRank int
	// FallbackRank is the place in --proxy-mode-fallback, from 1, 0 for none.
	FallbackRank int
	// Named says where the mode's objects have the name of --service-proxy-name. It is empty if
	// only one proxy of a node may use the mode.
	Named string
	// Deprecated is why Kubernetes is about to remove the mode, and what to use instead.
	Deprecated string
	// Relays is whether connections pass through the process, not only through rules.
	Relays bool
	// XTables is whether its rules are those of iptables, which accept in table filter what they
	// translated, and health checks.
	XTables bool
	// Routes is whether the mode makes routes to the addresses of Services itself.
	Routes bool
	// Consistent is whether it selects as service.Consistent says. Others name ports that ask.
	Consistent bool
	// MetricGroups are the words in names of metrics that count the mode, see metrics.NFTables.
	MetricGroups []string
	// ListedEndpoints is whether the mode needs to know endpoints that are not ready.
	ListedEndpoints bool
	// MemoryShare divides the memory of the cgroup: the process uses one such part and
	// leaves the rest to commands that it starts. 0 and 1 leave nothing to them.
	MemoryShare int
	// Needs and Leaves are cells of docs/modes.md: what a node must have, and gets. What a mode
	// cannot do is reported for each Service port, see reconcile.UnsupportedError.
	Needs, Leaves string

	// Section returns the section of the configuration for the mode.
	Section func(*config.Config) Section
	// Render returns what a node would install, as text and a document, without a system.
	Render func(want *service.Snapshot, r Rendering) (reconcile.Objects, any, error)
	// Limits, if set, returns what a round for a family of want would say of Service ports that the mode cannot serve as
	// they ask. It needs no system.
	Limits func(want *service.Snapshot, f service.Family, r Rendering) (reconcile.Outcome, error)
	// Differences, if set, returns what the mode would do with a connection otherwise than Kubernetes says. It needs no
	// system.
	Differences func(want *service.Snapshot, c route.Conn, r Rendering) ([]string, error)
	// System is what the mode does on its system, nil in programs for another system.
	System *System
}

// Section is what every mode has in a section of the configuration.
type Section struct {
	MinSyncPeriod, SyncPeriod time.Duration
	MasqueradeAll             bool
}

// Rendering is what Render needs beside a snapshot.
type Rendering struct {
	Config *config.Config
	Format document.Format
	// State is the file with what the node holds, if known, for modes with System.Dump.
	State string
	// Note receives what the reader of the output should know.
	Note func(string)
}

// System is what a mode does on its system.
type System struct {
	// Probe, if set, returns in a sentence what the node lacks for a family. It changes nothing.
	Probe func(*config.Config, service.Family) error
	// ProbeLeavesTraces is whether a probe makes objects for a moment. Commands that must
	// change nothing run it in a network namespace of its own.
	ProbeLeavesTraces bool
	// Open returns the backends of families, which change nothing before their first round.
	Open func(context.Context, Setup, []service.Family) ([]*Backend, error)
	// Owned, if set, names targets that the rounds of a family keep in order and take over.
	Owned func(*config.Config, service.Family) ([]string, error)
	// Targets lists where the mode, or kube-proxy in a similar one, may have left something.
	Targets func(context.Context, Setup) ([]takeover.Target, error)
	// Prepare, if set, is what --init-only does for the mode.
	Prepare func(context.Context, Setup) error
	// Pending, if set, lists what Prepare would change, one a line. It changes nothing.
	Pending func(context.Context, Setup) ([]string, error)
	// ReadBack, if set, returns what the node holds of a family, and would for a snapshot, both in
	// the text and order of Render. It changes nothing.
	ReadBack func(context.Context, Setup, service.Family, *service.Snapshot) (held, wanted reconcile.Objects, err error)
	// SharedMark, if set, says by which rule another program uses the bit with which the mode
	// marks packets of a family, empty if none does.
	SharedMark func(*config.Config, service.Family) (string, error)
	// Dump, if set, returns what the node holds, for Rendering.State.
	Dump func() ([]byte, error)
	// Conntrack is whether the kernel tracks the connections of the mode, so that entries
	// become stale when rules change.
	Conntrack bool
	// Translates is whether it is these entries that translate packets, so that clients reach
	// an endpoint as long as the entry exists, whatever the rules are.
	Translates bool
}

// Setup is what a mode gets from the process.
type Setup struct {
	Config *config.Config
	// NodeName returns the name of the own Node.
	NodeName func() (string, error)
	// DetailedCondition returns the setter of a condition. The second text may name Services
	// and clients. Both are empty without a fault.
	DetailedCondition func(condition.Name) func(text, detail string)
	// Progress is called when a round makes progress that takes long.
	Progress func()
	// Attempted receives how the attempts of listeners to reach endpoints end. Without an
	// endpoint, a client could not be served.
	Attempted func(f service.Family, name service.PortName, endpoint netip.AddrPort, err error)
	// Silent returns what decides which endpoints do not answer.
	Silent func() *silence.Box
	// Draws reports whether connections that nobody answers get another endpoint, and Drawn
	// gets the endpoint that one of them had.
	Draws func() bool
	Drawn func(service.Address)
	// Peers returns the nodes at the other end of the tunnel for direct return.
	Peers func() Peers
}

// Peers are nodes that take packets through a tunnel, see package peers.
type Peers interface {
	// Want sets the nodes that are wanted as peers.
	Want(names []string)
	// Known returns the nodes that may send, and Answering those that answer as peers.
	Known(peers.IPv6) map[string]netip.Addr
	Answering(peers.IPv6) map[string]netip.Addr
	// Missing returns why wanted nodes are no peers.
	Missing(peers.IPv6) map[string]string
	// Settled reports whether each wanted node had the time to answer.
	Settled() bool
}

// Condition is DetailedCondition without names of Services and clients.
func (s Setup) Condition(name condition.Name) func(text string) {
	set := s.DetailedCondition(name)
	return func(text string) { set(text, "") }
}

// PrimaryFamily returns the IP family without which the proxy does not start.
func PrimaryFamily(c *config.Config) service.Family {
	if a, err := service.ParseAddr(c.BindAddress); err == nil && a.Is6() {
		return service.IPv6
	}
	return service.IPv4
}

// familiesOf returns the families that probe accepts, and why the others are missing. It
// fails if the primary family is missing.
func familiesOf(c *config.Config, probe func(service.Family) error) ([]service.Family, map[service.Family]string, error) {
	var found []service.Family
	unavailable := map[service.Family]string{}
	primary := PrimaryFamily(c)
	for _, f := range service.Families {
		err := probe(f)
		switch {
		case err == nil:
			found = append(found, f)
		case f == primary:
			return nil, nil, fmt.Errorf("%s is the primary family by bindAddress %s and cannot be programmed: %w", f, c.BindAddress, err)
		default:
			unavailable[f] = err.Error()
		}
	}
	return found, unavailable, nil
}

// Table lists modes. Their order is the order in which leftovers are removed: a mode
// comes before the modes whose objects its rules lead to.
type Table []Descriptor

// ErrNoSystem is why only commands that need no node work here.
var ErrNoSystem = errors.New("the proxy runs on Linux and Windows only; render and config work here too")

// Config returns what the configuration needs to know of the modes.
func (t Table) Config() []config.Mode {
	var all []config.Mode
	for _, d := range t {
		all = append(all, d.Mode)
	}
	return all
}

// Find returns the mode of a name on os.
func (t Table) Find(name string, os config.OS) (Descriptor, bool) {
	for _, d := range t {
		if string(d.Name) == name && d.OS == os {
			return d, true
		}
	}
	return Descriptor{}, false
}

// Of returns the mode that c configures. If it configures none, and the node is unknown,
// that is the first of Defaults.
func (t Table) Of(c *config.Config) Descriptor {
	if d, ok := t.Find(string(c.Mode), c.OS); ok {
		return d
	}
	if all := t.Defaults(c.OS); len(all) > 0 {
		return all[0]
	}
	return Descriptor{}
}

// Defaults lists the modes of os to try if none is configured, best first.
func (t Table) Defaults(os config.OS) Table {
	return t.ranked(func(d Descriptor) int { return d.DefaultRank }, os)
}

// On lists the modes of os: those of Defaults first.
func (t Table) On(os config.OS) Table {
	all := t.Defaults(os)
	for _, d := range t {
		if d.OS == os && d.DefaultRank == 0 {
			all = append(all, d)
		}
	}
	return all
}

// Fallbacks lists the modes of os to try after a configured one that cannot work.
func (t Table) Fallbacks(os config.OS) Table {
	return t.ranked(func(d Descriptor) int { return d.FallbackRank }, os)
}

func (t Table) ranked(rank func(Descriptor) int, os config.OS) Table {
	all := slices.DeleteFunc(slices.Clone(t), func(d Descriptor) bool { return d.OS != os || rank(d) == 0 })
	slices.SortStableFunc(all, func(a, b Descriptor) int { return cmp.Compare(rank(a), rank(b)) })
	return all
}

// Names lists the names of the modes, in the order of the table.
func (t Table) Names() []string {
	var all []string
	for _, d := range t {
		all = append(all, string(d.Name))
	}
	return all
}

// CheckNamed refuses d for a proxy of labelled Services if objects of the mode have the
// same names for every service proxy. The first round would remove the rules of another
// proxy on the node.
func (t Table) CheckNamed(c *config.Config, d Descriptor) error {
	if c.ProxyName == "" || d.Named != "" {
		return nil
	}
	remedy := ""
	for _, other := range t {
		if other.Named != "" {
			remedy += fmt.Sprintf("take mode %s on %s, where %s, or ", other.Name, systemName(other.OS), other.Named)
		}
	}
	return fmt.Errorf("mode %s cannot work with --service-proxy-name %s: its rules have the names that every service proxy uses, so those of the proxy that serves the other Services would be removed; %sleave the name out", d.Name, c.ProxyName, remedy)
}

// systemName spells a system as a sentence does.
func systemName(os config.OS) string { return strings.ToUpper(string(os[:1])) + string(os[1:]) }

// Targets lists where any mode may have left something on this node, by family. A proxy
// of labelled Services has only targets of its own name, because another proxy uses the
// others.
func (t Table) Targets(ctx context.Context, s Setup) ([]takeover.Target, error) {
	var all []takeover.Target
	var errs []error
	asked, refused := false, error(nil)
	for _, d := range t {
		if d.System == nil || d.System.Targets == nil || d.OS != s.Config.OS {
			continue
		}
		if err := t.CheckNamed(s.Config, d); err != nil {
			refused = err
			continue
		}
		asked = true
		targets, err := d.System.Targets(ctx, s)
		all, errs = append(all, targets...), append(errs, err)
	}
	if !asked {
		return nil, cmp.Or(refused, ErrNoSystem)
	}
	slices.SortStableFunc(all, func(a, b takeover.Target) int { return cmp.Compare(a.Family, b.Family) })
	return all, errors.Join(errs...)
}

// Open returns the backends of d for each family that the node can have, and why others
// are missing. It fails if the primary family is missing.
func (d Descriptor) Open(ctx context.Context, s Setup) (all []*Backend, unavailable map[service.Family]string, err error) {
	if d.System == nil {
		return nil, nil, ErrNoSystem
	}
	families, unavailable, err := familiesOf(s.Config, func(f service.Family) error {
		if d.System.Probe == nil {
			return nil
		}
		return d.System.Probe(s.Config, f)
	})
	if err != nil {
		return nil, nil, err
	}
	all, err = d.System.Open(ctx, s, families)
	for _, b := range all {
		b.Mode = string(d.Name)
		if d.System.Owned != nil && err == nil {
			b.Owned, err = d.System.Owned(s.Config, b.Family)
		}
	}
	return all, unavailable, err
}

// ListensOnLocalhost returns whether listeners of this process answer NodePorts on the
// loopback address of f, if nodePortAddresses includes it.
func (d Descriptor) ListensOnLocalhost(f service.Family) bool {
	return d.Localhost == config.LocalhostListeners || d.Localhost == config.LocalhostRules && f == service.IPv6
}

// Backend is the part of a mode for one family. Fields that may be nil are for some modes
// only.
type Backend struct {
	reconcile.Backend
	Family service.Family
	Mode   string
	// Owned is what System.Owned returns for the family.
	Owned []string
	// Audit, if set, returns a backend that reports what is in force. The caller closes it.
	Audit func() (reconcile.Backend, error)
	// Tracer, if set, returns a backend that reads what is installed. The caller closes
	// it. The one that programs belongs to its Loop.
	Tracer func() (Tracer, error)
	// Packets, if set, returns the packet counters of the rules, and the previous ones if
	// they cannot be read now. It is safe for concurrent use.
	Packets func(context.Context) (metrics.Packets, error)
	// Relay is set if connections pass through this process.
	Relay Relay
	// Localhost, if set, answers NodePorts on the loopback address.
	Localhost Localhost
	// LacksLocalhost is set if rules of the mode answer them, and cannot in this process:
	// it may not make the setting that they need. Then the process listens instead.
	LacksLocalhost bool
	// Unrelayed, if set, returns how many packets the rules refused at the loopback address
	// because Localhost does not relay their protocol, SCTP. It is safe for concurrent use.
	Unrelayed func() (uint64, error)
	// Conntrack, if set, follows each round whose rules are at least partly in force.
	Conntrack Conntrack
	// LetGo, if set, makes the rules forget the endpoint of a client with session affinity, if it
	// is this one. It is safe for concurrent use.
	LetGo func(p *service.Port, client netip.Addr, endpoint service.Address) error
	// Orphans, if set, ends connections to endpoints that left.
	Orphans Orphans
	// Tunnel, if set, opens the tunnel for direct return from an address of this node.
	Tunnel func(own netip.Addr) (peers.Conn, error)
	// Traffic, if set, reads the counters of connections. It is set if the configuration
	// asks for that and the mode can count.
	Traffic traffic.Reader
	// Accelerated, if set, returns how many connections of the family sockets made without
	// translation. It is safe for concurrent use.
	Accelerated func() (uint64, error)
	// Collectors are the metrics that only this mode has. Backends may share some.
	Collectors []prometheus.Collector
	// Grace bounds what a round may still take at a stop, 0 for no bound.
	Grace time.Duration
}

// String names the backend in logs.
func (b *Backend) String() string { return b.Mode + " " + b.Family.String() }

// WithLocalhost returns the dataplane of b together with the listeners on its loopback
// address.
func (b *Backend) WithLocalhost() reconcile.Backend {
	if b.Localhost == nil {
		return b.Backend
	}
	return reconcile.Both(b.Backend, b.Localhost)
}

// Tracer is a backend that can follow a connection through what is installed.
type Tracer interface {
	reconcile.Backend
	// Trace follows the first packet of c. want is the snapshot that should be in force.
	// local reports whether an address belongs to the node.
	Trace(ctx context.Context, want *service.Snapshot, c route.Conn, local func(netip.Addr) bool) (*explain.Walk, error)
}

// Relay is the connections that pass through this process. It is safe for concurrent use
// except for HandOver, which no round may follow.
type Relay interface {
	// Tracked returns the snapshot that conntrack entries follow. Its endpoints may be
	// ports of this process.
	Tracked() *service.Snapshot
	// HandOver redirects new connections past this process before it ends. It returns
	// what clients lose by that.
	HandOver(ctx context.Context) (loss string, err error)
	// Drain waits until the open connections end or ctx ends.
	Drain(ctx context.Context)
	// Connections returns how many connections of all families end with this process.
	Connections() int
	// Use returns the open files and the refused connections of all families.
	Use() *metrics.Relay
}

// Localhost is listeners of NodePorts on a loopback address.
type Localhost interface {
	reconcile.Backend
	Listeners() int
	Failures() int // listeners that could not be opened
}

// Conntrack deletes entries of the kernel's connection tracking.
type Conntrack interface {
	// Clean deletes the entries that a round made stale. It returns how many, and
	// after which time it should be called again, 0 for no need.
	Clean(ctx context.Context, r reconcile.Result) (flows int, again time.Duration, err error)
	// Recheck makes the next Clean check entries again that were right before.
	Recheck()
}

// Orphans ends connections to endpoints that left, see package orphans of Linux.
type Orphans interface {
	// InForce receives the snapshot of each round whose rules are at least partly in force.
	InForce(*service.Snapshot)
	// Run looks for connections until ctx ends. Without enter, this process may always
	// change the node. report gets what is to end from now on, and how many connections ended.
	Run(ctx context.Context, t *track.Tracker, enter func(context.Context) (leave func(), ok bool), report func(begun []track.Ending, orphans, rebalanced int))
}

// Repeater is a Tracer that can read once what is installed, for many connections of a snapshot.
type Repeater interface{ ReadOnce() }

// Each opens a backend for each family.
func Each(families []service.Family, open func(service.Family) (*Backend, error)) ([]*Backend, error) {
	var all []*Backend
	for _, f := range families {
		b, err := open(f)
		if err != nil {
			return nil, err // err names the family
		}
		all = append(all, b)
	}
	return all, nil
}

// Reader is a backend that compares what the system holds with a snapshot.
type Reader interface {
	reconcile.Backend
	// ReadBack is System.ReadBack for the family of the backend.
	ReadBack(ctx context.Context, want *service.Snapshot) (held, wanted reconcile.Objects, err error)
}

// OpenEach returns System.Open of a mode that keeps all state in the system, so that one
// more backend of create can audit or trace what the first has installed. complete
// adds what only this mode has.
func OpenEach[B Tracer](create func(*config.Config, service.Family) (B, error), complete func(Setup, *Backend, B) error) func(context.Context, Setup, []service.Family) ([]*Backend, error) {
	return func(_ context.Context, s Setup, families []service.Family) ([]*Backend, error) {
		return Each(families, func(f service.Family) (*Backend, error) {
			b, err := create(s.Config, f)
			if err != nil {
				return nil, err
			}
			x := &Backend{
				Backend: b, Family: f,
				Audit:  func() (reconcile.Backend, error) { return create(s.Config, f) },
				Tracer: func() (Tracer, error) { return create(s.Config, f) },
			}
			return x, complete(s, x, b)
		})
	}
}

// ReadBack returns System.ReadBack of a mode whose backends are those of create.
func ReadBack[B Reader](create func(*config.Config, service.Family) (B, error)) func(context.Context, Setup, service.Family, *service.Snapshot) (held, wanted reconcile.Objects, err error) {
	return func(ctx context.Context, s Setup, f service.Family, want *service.Snapshot) (held, wanted reconcile.Objects, err error) {
		b, err := create(s.Config, f)
		if err != nil {
			return nil, nil, err
		}
		defer b.Close()
		return b.ReadBack(ctx, want)
	}
}
