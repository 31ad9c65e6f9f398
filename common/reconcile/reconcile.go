// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package reconcile keeps a dataplane equal to the latest snapshot. A Loop takes
// snapshots and a Backend, and produces one Result per round. It decides when rounds run:
// batching, retries and resyncs. The Backend decides what to change. Loop.Report handles
// a Result.
package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"kubeproxy/common/errtree"
	"kubeproxy/common/service"
)

// Backend programs one dataplane, such as nftables for IPv4. Its methods are called one at a time,
// except Watch. It embeds Base for what it does not need.
type Backend interface {
	// Plan compares want with the installed state and returns the changes. It makes none.
	Plan(ctx context.Context, want *service.Snapshot) (Plan, error)

	// Cleanup removes everything that any Backend of this kind installed, and nothing
	// else. That includes leftovers of earlier processes. Nothing to remove is success.
	Cleanup(ctx context.Context) error

	// Watch calls touched after each change of the dataplane by others, until ctx ends.
	Watch(ctx context.Context, touched func()) error

	// SetResync sets the longest pause between rounds, whenever that changes between two.
	SetResync(time.Duration)

	// Forget drops what the Backend remembers, so that the next Plan lists the dataplane: another
	// process has programmed it since the last round.
	Forget()

	// Close releases what the Backend holds of the system. The dataplane stays.
	Close() error
}

// Base is a Backend without Plan and Cleanup, which detects, remembers and holds nothing.
type Base struct{}

// Watch implements Backend.
func (Base) Watch(ctx context.Context, _ func()) error {
	<-ctx.Done()
	return nil
}

// SetResync implements Backend.
func (Base) SetResync(time.Duration) {}

// Forget implements Backend.
func (Base) Forget() {}

// Close implements Backend.
func (Base) Close() error { return nil }

// WatchAll runs watches, which are like Backend.Watch, until ctx or one of them ends.
func WatchAll(ctx context.Context, touched func(), watches ...func(context.Context, func()) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, len(watches))
	for _, watch := range watches {
		go func() {
			err := watch(ctx, touched)
			cancel()
			ended <- err
		}()
	}
	var errs []error
	for range watches {
		errs = append(errs, <-ended)
	}
	return errors.Join(errs...)
}

// Plan is an ordered list of changes to one dataplane. It is good for one Apply.
type Plan interface {
	// Changes lists the changes in order, as far as they can be told.
	Changes() Changes

	// Empty reports whether the dataplane already matches. Then Apply is not called.
	Empty() bool

	// Outcome returns what is known without Apply, for an empty plan that of the round.
	Outcome() Outcome

	// Apply makes the changes, and after a failure those that are safe. It joins the errors.
	Apply(ctx context.Context) Outcome
}

// Change is one change of a Plan.
type Change struct {
	Text string // one line
	// Port is the Service port that the change is for, the zero value for none.
	Port service.PortName
	// Named means that Text has the name of Port.
	Named bool
}

// String returns the line of a plan, with " # " and the Service port unless the text names it.
func (c Change) String() string {
	if c.Named || c.Port == (service.PortName{}) {
		return c.Text
	}
	return c.Text + " # " + c.Port.String()
}

// Changes are the changes of a Plan in order.
type Changes []Change

// Add adds a change with a formatted text for no Service port in particular.
func (ch *Changes) Add(format string, args ...any) {
	*ch = append(*ch, Change{Text: fmt.Sprintf(format, args...)})
}

// String prints one change a line.
func (ch Changes) String() string {
	var b strings.Builder
	for _, c := range ch {
		b.WriteString(c.String() + "\n")
	}
	return b.String()
}

// Object is a part of what a dataplane holds, or would hold.
type Object struct {
	Text string // whole lines
	// Port is the Service port that the object is for, the zero value for none.
	Port service.PortName
}

// Objects are the parts of a dataplane in order.
type Objects []Object

// Add adds an object with a formatted text for no Service port in particular.
func (ob *Objects) Add(format string, args ...any) { ob.AddFor(service.PortName{}, format, args...) }

// AddFor adds an object with a formatted text for the Service port of this name.
func (ob *Objects) AddFor(n service.PortName, format string, args ...any) {
	*ob = append(*ob, Object{fmt.Sprintf(format, args...), n})
}

// String prints all objects.
func (ob Objects) String() string {
	var b strings.Builder
	for _, o := range ob {
		b.WriteString(o.Text)
	}
	return b.String()
}

// Families returns the documents of both families, and their objects, IPv4 first.
func Families[D interface{ Objects() Objects }](document func(service.Family) D) (Objects, []D) {
	var all Objects
	var docs []D
	for _, f := range service.Families {
		d := document(f)
		all, docs = append(all, d.Objects()...), append(docs, d)
	}
	return all, docs
}

// Both returns a Backend that is main and a second one for a part of the same snapshots. If one
// fails, the other continues, and the errors are joined. Of the second one's Outcome, Err, Drift,
// Notes and Degraded are used.
func Both(main, second Backend) Backend { return &both{main, second} }

// both implements Backend.
type both struct{ main, second Backend }

func (b *both) Plan(ctx context.Context, want *service.Snapshot) (Plan, error) {
	p, err := b.main.Plan(ctx, want)
	q, err2 := b.second.Plan(ctx, want)
	switch {
	case err2 != nil && err != nil:
		return nil, errors.Join(err, err2)
	case err != nil && q.Empty():
		return nil, err
	case err != nil:
		p = failedPlan{err}
	case err2 != nil:
		q = failedPlan{err2}
	}
	return &combinedPlan{p, q}, nil
}

func (b *both) Cleanup(ctx context.Context) error {
	return errors.Join(b.main.Cleanup(ctx), b.second.Cleanup(ctx))
}

func (b *both) Watch(ctx context.Context, touched func()) error {
	return WatchAll(ctx, touched, b.main.Watch, b.second.Watch)
}

func (b *both) SetResync(d time.Duration) {
	b.main.SetResync(d)
	b.second.SetResync(d)
}

func (b *both) Forget() {
	b.main.Forget()
	b.second.Forget()
}

func (b *both) Close() error { return errors.Join(b.main.Close(), b.second.Close()) }

// failedPlan is the placeholder for a plan whose Plan call failed.
type failedPlan struct{ err error }

func (f failedPlan) Changes() Changes              { return nil }
func (f failedPlan) Empty() bool                   { return false }
func (f failedPlan) Outcome() Outcome              { return Outcome{Err: fmt.Errorf("plan: %w", f.err)} }
func (f failedPlan) Apply(context.Context) Outcome { return f.Outcome() }

// combinedPlan is two plans as one.
type combinedPlan struct{ main, second Plan }

func (c *combinedPlan) Changes() Changes { return slices.Concat(c.main.Changes(), c.second.Changes()) }
func (c *combinedPlan) Empty() bool      { return c.main.Empty() && c.second.Empty() }
func (c *combinedPlan) Outcome() Outcome { return c.main.Outcome().with(c.second.Outcome()) }

func (c *combinedPlan) Apply(ctx context.Context) Outcome {
	first := outcomeOf(ctx, c.main)
	return first.with(outcomeOf(ctx, c.second))
}

// outcomeOf applies p unless it is empty.
func outcomeOf(ctx context.Context, p Plan) Outcome {
	if p.Empty() {
		return p.Outcome()
	}
	return p.Apply(ctx)
}

// with returns o with Err, Drift, Notes and Degraded of second added.
func (o Outcome) with(second Outcome) Outcome {
	switch {
	case o.Err == nil:
		o.Err = second.Err
	case second.Err != nil:
		o.Err = errors.Join(o.Err, second.Err)
	}
	o.Drift = slices.Concat(o.Drift, second.Drift)
	if o.Degraded != "" && second.Degraded != "" {
		o.Degraded += "; "
	}
	o.Degraded += second.Degraded
	switch {
	case len(o.Notes) == 0:
		o.Notes = second.Notes
	case len(second.Notes) > 0:
		o.Notes = maps.Clone(o.Notes)
		for name, notes := range second.Notes {
			o.Notes[name] = slices.Concat(o.Notes[name], notes)
		}
	}
	return o
}

// Pause waits for d. It returns false if ctx ended before.
func Pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// Every calls do after each period until ctx is done, to look at what nobody reports.
func Every(ctx context.Context, period time.Duration, do func()) error {
	t := time.NewTicker(period)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			do()
		}
	}
}

// ErrWaiting means that a prerequisite that another component creates does not exist yet.
// A new process would have to wait too, so a restart does not help.
var ErrWaiting = errors.New("waiting")

// UnsupportedError is a property of a port that a dataplane will never implement. It
// matches errors.ErrUnsupported. The rest of the port is in force.
type UnsupportedError struct {
	Text     string
	Affected []service.Frontend // frontends that are not in force because of it
}

func (u *UnsupportedError) Error() string { return u.Text }

// Is makes errors.ErrUnsupported match.
func (u *UnsupportedError) Is(target error) bool { return target == errors.ErrUnsupported }

// DegradedError is a property that a port lacks for now and that is retried. The rest of
// the port is in force, on each of its addresses.
type DegradedError struct{ Err error }

func (d *DegradedError) Error() string { return d.Err.Error() }

// Unwrap returns the cause.
func (d *DegradedError) Unwrap() error { return d.Err }

// InForce reports whether the port that err is about is in force, except for
// UnsupportedErrors and DegradedErrors.
func InForce(err error) bool {
	return errtree.Every(err, func(err error) bool {
		_, degraded := err.(*DegradedError)
		return degraded || Unsupported(err)
	})
}

// Unsupported reports whether err is errors.ErrUnsupported alone, so that a retry is useless.
func Unsupported(err error) bool { return errtree.Only(err, errors.ErrUnsupported) }

// PortError is a failure that concerns one Service port only.
type PortError struct {
	Family service.Family
	Name   service.PortName
	Err    error
}

func (e *PortError) Error() string {
	return fmt.Sprintf("service port %s (%s, %s): %v", e.Name, e.Name.Protocol, e.Family, e.Err)
}

// Unwrap returns the cause.
func (e *PortError) Unwrap() error { return e.Err }

// PortErrors lists the PortErrors in err's tree, in order.
func PortErrors(err error) []*PortError { return errtree.Find[*PortError](err) }

// RetryablePortErrors lists the PortErrors in err's tree in order, but Unsupported ones.
func RetryablePortErrors(err error) []*PortError {
	return slices.DeleteFunc(PortErrors(err), func(e *PortError) bool { return Unsupported(e.Err) })
}

// OnlyPortErrors reports whether err is nil or about single Service ports, so that everything else
// is in force: each branch of its tree has a PortError.
func OnlyPortErrors(err error) bool {
	return err == nil || errtree.Every(err, func(err error) bool {
		_, ok := err.(*PortError)
		return ok
	})
}

// Affects reports whether f is not in force because of an UnsupportedError in err.
func Affects(err error, f service.Frontend) bool {
	return slices.ContainsFunc(errtree.Find[*UnsupportedError](err), func(u *UnsupportedError) bool {
		return slices.ContainsFunc(u.Affected, f.SameAddress)
	})
}
