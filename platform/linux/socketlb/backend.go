// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package socketlb connects TCP sockets of the node and its pods to an endpoint of a
// Service at connect(2), so that their packets need no translation. It is a layer above
// the rules of a mode, which stay complete: they handle each connection that the layer
// does not take. A service.Snapshot goes in. Tables come out, which programs of the
// kernel read. They stand in memory that the kernel shares, so a changed list costs a few
// stores and no system call. If anything fails, the layer is removed from the kernel, and
// only speed is lost.
//
// The parts: frontends.go says which frontends are taken, table.go and slots.go lay out
// the memory, backend.go and plan.go find out what changes, driver_linux.go loads and
// attaches bpf/socketlb.c. All others build, and are tested, on any system.
package socketlb

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// bpffs is where systemd mounts the BPF file system.
const bpffs = "/sys/fs/bpf"

// Name is the folder of the layer below the BPF file system.
const Name = "kube-services"

// Options are what an operator decides.
type Options struct {
	// Off has the layer removed that an earlier process left.
	Off bool
	// NodeOnly leaves pods to the rules.
	NodeOnly bool
	// Connections, if set, is how a Backend finds out that it takes no connection of pods.
	Connections Connections
	// Watcher, if set, gives sockets whose endpoint does not answer another one.
	Watcher *Watcher
	// Name is that of the folder, Name if it is empty.
	Name string
	// Cgroup is the cgroup whose processes are taken, as a path. If it is empty, it is the
	// root of the hierarchy of version 2 that is mounted here.
	Cgroup string
	// Pins is where the BPF file system is mounted, /sys/fs/bpf if it is empty.
	Pins string
}

// NameOf returns Options.Name for a proxy of labelled Services, without the dots of a label, which
// the BPF file system refuses (kernel: kernel/bpf/inode.c, bpf_lookup), and no plus.
func NameOf(proxy string) string {
	if proxy == "" {
		return Name
	}
	return Name + "-" + strings.ReplaceAll(proxy, ".", "+")
}

// labels name the families in paths.
var labels = [...]string{service.IPv4: "ipv4", service.IPv6: "ipv6"}

// Driver is the access to the kernel that Backend needs, for one family. Its methods are
// called from one goroutine at a time, except Attached, Repeats and Taken.
type Driver interface {
	// Adopt returns the tables of an earlier process in force, nil for none understood here.
	Adopt() (*Memory, error)
	// Build returns new tables of a size, which no program reads yet.
	Build(frontends, slots int) (*Memory, error)
	// Activate puts the last Build in force. Each connect sees it or what was before.
	Activate() error
	// Attached returns why the tables are not in force though this process left them so.
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
	// Repeats calls each for connections of taken sockets that repeat their first packet, idle when
	// there is none for a while. An error says what the kernel lacks.
	Repeats(ctx context.Context, each func(repeat), idle func()) error
}

// Taken counts connections that were taken.
type Taken struct{ Node, Pods uint64 }

// Others is what may decide before the layer does, with old lists.
type Others struct {
	// Strays counts programs of the layer that an earlier process attached.
	Strays int
	// Text names them, or if it is not to be seen whose they are, programs of somebody.
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

	watcher *Watcher
	latest  atomic.Pointer[service.Snapshot] // that was planned, for watcher
}

// New returns a Backend for family f.
func New(f service.Family, d Driver, o Options) *Backend {
	b := &Backend{family: f, driver: d, off: o.Off, resync: defaultResync, watcher: o.Watcher}
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
	b.latest.Store(want)
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
	attached := func(ctx context.Context, touched func()) error {
		return reconcile.Every(ctx, watchPeriod, func() {
			if b.driver.Attached() != nil {
				touched()
			}
		})
	}
	return reconcile.WatchAll(ctx, touched, attached, b.watchRepeats)
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
	b.latest.Store(nil)
	b.driver.Release()
}

// Close implements reconcile.Backend. The layer stays in force, like rules.
func (b *Backend) Close() error {
	b.Forget()
	return nil
}

// Connections calls each for the tracked TCP connections of a family, as clients dialled.
type Connections func(ctx context.Context, f service.Family, each func(from, to netip.AddrPort)) error

// missed finds out that no connection of pods is taken, whatever the reason: that the
// programs are attached, and the tables are right, does not say that a socket meets them.
type missed struct {
	list Connections // nil to find out nothing
	last uint64      // connections of pods that were taken, at the last look
	seen map[[2]netip.AddrPort]bool
	next time.Time // not before
	text string    // empty if some were taken, or none was made
}

const (
	// fewMissed is how many connections may meet the rules, as those of bound sockets.
	fewMissed = 3
	// missedPause bounds the looks to 2 % of the time, as all into connection tracking.
	missedPause = 50
)

// look compares what was taken of pods since the last look with the new connections of pods
// to addresses of the tables. The rules have seen those.
func (m *missed) look(ctx context.Context, b *Backend, want *service.Snapshot) {
	now := time.Now()
	if m.list == nil || now.Before(m.next) {
		return
	}
	taken, err := b.driver.Taken()
	if err != nil || taken.Pods != m.last {
		*m = missed{list: m.list, last: taken.Pods}
		return
	}
	seen := map[[2]netip.AddrPort]bool{}
	fresh, example := 0, [2]netip.AddrPort{}
	err = m.list(ctx, b.family, func(from, to netip.AddrPort) {
		i, found := b.tables.find(nameOf(to))
		if !found || b.tables.list(i) == 0 || !inPods(want.Node, from.Addr()) {
			return
		}
		c := [2]netip.AddrPort{from, to}
		seen[c] = true
		if m.seen != nil && !m.seen[c] {
			fresh, example = fresh+1, c
		}
	})
	m.next = now.Add(missedPause * time.Since(now))
	if err != nil {
		return
	}
	if m.seen = seen; fresh >= fewMissed {
		m.text = fmt.Sprintf("the rules saw %d new connections of pods, as from %s to %s, and none of a pod was taken since: "+
			"the cgroups of these pods are not where a kubelet makes them, or other programs decide first", fresh, example[0], example[1])
	}
}

// inPods reports whether a is that of a pod of this node, if prefixes tell.
func inPods(n *service.Node, a netip.Addr) bool {
	return n.Pods.Interface == "" && n.Pods.InterfacePrefix == "" && n.Pods.Contains(a, "pod")
}

// Site is what a node has for the layer, as a process sees it.
type Site struct {
	// Root is where the cgroup hierarchy of version 2 is mounted, empty if it is not.
	Root string
	// Whole is whether the hierarchy at Root begins at the root of the node.
	Whole bool
	// Pods is the cgroup of all pods, empty if there is none below Root.
	Pods string
	// NoPrograms is whether the kernel runs no programs in cgroups.
	NoPrograms bool
}

// Presence is what the kernel has of the layer of one family.
type Presence struct {
	// Installed is whether there is anything. The other fields are those of a State. They
	// count if Known, which needs the BPF file system that has the pins.
	Installed, Known bool
	Fault, Others    string
	Pods             bool
}

// unavailable is the Driver of a system that lacks what the layer needs, and so the layer.
type unavailable struct{ reason error }

func (u unavailable) Adopt() (*Memory, error)         { return nil, nil }
func (u unavailable) Build(int, int) (*Memory, error) { return nil, u.reason }
func (u unavailable) Activate() error                 { return u.reason }
func (u unavailable) Attached() error                 { return nil }
func (u unavailable) Moved() (string, error)          { return "", u.reason }
func (u unavailable) Follow() error                   { return u.reason }
func (u unavailable) Barrier() error                  { return u.reason }
func (u unavailable) Inspect() (*State, error)        { return nil, u.reason }
func (u unavailable) Others() (Others, error)         { return Others{}, nil }
func (u unavailable) Evict() error                    { return nil }
func (u unavailable) Installed() (bool, error)        { return false, nil }
func (u unavailable) Remove() error                   { return nil }
func (u unavailable) Release()                        {}
func (u unavailable) Taken() (Taken, error)           { return Taken{}, nil }

func (u unavailable) Repeats(context.Context, func(repeat), func()) error { return nil }

// UnseenError is why this process cannot tell whether the layer is in the kernel.
type UnseenError struct {
	Family service.Family
	// Likely is whether all places of the layer's programs have one of anybody.
	Likely bool
	// Err is what the kernel answered, if not Likely.
	Err error
}

// Error says which rights the process needs.
func (e *UnseenError) Error() string {
	const want = "want the capability SYS_ADMIN, or the BPF file system of the node at " + bpffs
	if e.Likely {
		return fmt.Sprintf("programs are attached where socket acceleration of %s attaches its own, and this process may not see whose they are: %s", e.Family, want)
	}
	return fmt.Sprintf("this process may not look for programs of socket acceleration (%v): %s", e.Err, want)
}

// suspicion returns what err says if the layer is likely in the kernel, else nothing.
func suspicion(err error) string {
	if unseen := (*UnseenError)(nil); errors.As(err, &unseen) && unseen.Likely {
		return unseen.Error()
	}
	return ""
}

// known returns err, or nil for an UnseenError: no round fails for what it neither made nor sees.
func known(err error) error {
	if _, is := errors.AsType[*UnseenError](err); is {
		return nil
	}
	return err
}
