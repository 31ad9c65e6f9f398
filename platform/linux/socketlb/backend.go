// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"context"
	"fmt"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// Driver is the access to the kernel that Backend needs, for one family. Its methods are
// called from one goroutine at a time, except Attached, Watch and Taken.
type Driver interface {
	// Adopt returns the tables that an earlier process left in force, nil if there are
	// none that this program understands.
	Adopt() (*Memory, error)
	// Build returns new tables of a size, which no program reads yet.
	Build(frontends, slots int) (*Memory, error)
	// Activate puts the tables of the last Build in force in place of the ones before.
	// Each connect sees either of them.
	Activate() error
	// Attached returns why the tables are not in force in the kernel, if this process did
	// not cause that.
	Attached() error
	// Moved says how whose sockets are taken differs from what the tables in force say,
	// because the kubelet has made cgroups since. It is empty if it does not.
	Moved() (string, error)
	// Follow corrects that in the tables in force.
	Follow() error
	// Barrier returns when each program that runs now has ended.
	Barrier() error
	// Inspect returns what is in the kernel, whoever altered it, nil if there is nothing. It is
	// for a Driver that programs nothing, and changes nothing. Release ends it.
	Inspect() (*State, error)
	// Others says which programs are attached beside those of the tables in force.
	Others() (Others, error)
	// Evict detaches what else is attached of the layer, as far as this process may see it.
	Evict() error
	// Installed reports whether something of the layer is in the kernel.
	// The error is an UnseenError if this process may not look.
	Installed() (bool, error)
	// Remove removes the whole layer from the kernel. It succeeds if there is none. The error
	// is an UnseenError if this process may not look for what other processes left.
	Remove() error
	// Release unmaps the tables, which stay in force.
	Release()
	// Taken returns how many connections were taken.
	Taken() (Taken, error)
}

// Taken counts connections that were taken.
type Taken struct{ Node, Pods uint64 }

// Others is what may decide before the layer does, with old lists.
type Others struct {
	// Strays counts programs of the layer that an earlier process attached.
	Strays int
	// Text names them, or, if this process may not see whose they are, programs of somebody.
	// It is empty if there are none.
	Text string
}

// Backend keeps the tables of one family equal to the snapshot. It implements
// reconcile.Backend. Its failures are no errors of a round, because the rules then serve:
// they are in Outcome.Degraded. Only a layer that cannot be removed is an error.
type Backend struct {
	reconcile.Base
	family service.Family
	driver Driver
	off    bool
	resync time.Duration

	tables *tables           // nil while nothing is in force
	have   *service.Snapshot // of the last round, nil if none was finished
	fault  string            // why nothing is in force
	others string            // what else may be in force
	missed missed
	full   time.Time // when everything was compared
}

// New returns a Backend for family f.
func New(f service.Family, d Driver, o Options) *Backend {
	b := &Backend{family: f, driver: d, off: o.Off, resync: defaultResync}
	if !o.NodeOnly {
		b.missed.list = o.Connections
	}
	return b
}

const (
	// defaultResync is the pause between comparisons before SetResync is called.
	defaultResync = 30 * time.Second
	// watchPeriod is how often the programs are checked.
	watchPeriod = time.Second
)

// Plan implements reconcile.Backend. Its cost is proportional to the difference between
// want and the last snapshot. Once in a resync period it compares everything.
func (b *Backend) Plan(ctx context.Context, want *service.Snapshot) (reconcile.Plan, error) {
	if b.off {
		return b.planRemoval(want)
	}
	p := &plan{backend: b, want: want}
	first := b.have == nil
	full := first || want == b.have || time.Since(b.full) >= b.resync || b.have.Node != want.Node || b.have.Incomplete
	if full {
		b.full = time.Now()
	}
	if first {
		if err := b.adopt(); err != nil {
			p.rebuild = fmt.Sprintf("take over what an earlier process left: %v", err)
			return p, nil
		}
	}
	switch {
	case b.tables == nil && full:
		p.rebuild = "no tables are in force"
	case b.tables == nil: // not before the next resync
	case full:
		p.compare(first)
		b.missed.look(ctx, b, want)
	default:
		p.follow()
	}
	if p.Empty() {
		b.have = want
		if b.tables != nil { // a Remove that failed may have left them as they should be
			b.fault = ""
		}
	}
	return p, nil
}

func (b *Backend) adopt() error {
	m, err := b.driver.Adopt()
	if err != nil || m == nil {
		return err
	}
	b.tables, err = adopted(m)
	return err
}

// planRemoval returns the plan of a layer that is switched off.
func (b *Backend) planRemoval(want *service.Snapshot) (reconcile.Plan, error) {
	p := &plan{backend: b, want: want}
	if b.have != nil {
		return p, nil
	}
	var err error
	if p.remove, err = b.driver.Installed(); known(err) != nil {
		return nil, fmt.Errorf("look for socket acceleration that an earlier process left: %w", err)
	}
	b.others = suspicion(err)
	if !p.remove {
		b.have = want
	}
	return p, nil
}

// Cleanup implements reconcile.Backend.
func (b *Backend) Cleanup(context.Context) error {
	b.tables, b.have = nil, nil
	return known(b.driver.Remove())
}

// Watch implements reconcile.Backend. A check of the programs costs a few system calls.
func (b *Backend) Watch(ctx context.Context, touched func()) error {
	return reconcile.Every(ctx, watchPeriod, func() {
		if b.driver.Attached() != nil {
			touched()
		}
	})
}

// Taken returns how many connections were taken. It is safe for concurrent use.
func (b *Backend) Taken() (uint64, error) {
	t, err := b.driver.Taken()
	return t.Node + t.Pods, err
}

// SetResync implements reconcile.Backend.
func (b *Backend) SetResync(d time.Duration) { b.resync = d }

// Forget implements reconcile.Backend.
func (b *Backend) Forget() {
	b.tables, b.have = nil, nil
	b.driver.Release()
}

// Close implements reconcile.Backend. The layer stays in force, like rules.
func (b *Backend) Close() error {
	b.Forget()
	return nil
}
