// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package mode

import (
	"context"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"kubeproxy/common/explain"
	"kubeproxy/common/metrics"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/common/traffic"
	"kubeproxy/config"
)

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
