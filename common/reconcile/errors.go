// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"errors"
	"fmt"
	"slices"

	"kubeproxy/common/errtree"
	"kubeproxy/common/service"
)

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

func (l *DegradedError) Error() string { return l.Err.Error() }

// Unwrap returns the cause.
func (l *DegradedError) Unwrap() error { return l.Err }

// InForce reports whether the port that err is about is in force, except for
// UnsupportedErrors and DegradedErrors.
func InForce(err error) bool {
	return errtree.Every(err, func(err error) bool {
		_, degraded := err.(*DegradedError)
		return degraded || Unsupported(err)
	})
}

// Unsupported reports whether err consists only of errors.ErrUnsupported, so that a retry
// is useless.
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

// RetryablePortErrors lists the PortErrors in err's tree, in order, except those that are
// Unsupported.
func RetryablePortErrors(err error) []*PortError {
	return slices.DeleteFunc(PortErrors(err), func(e *PortError) bool { return Unsupported(e.Err) })
}

// OnlyPortErrors reports whether err, if not nil, concerns single Service ports only. That
// is partial success: everything else of the snapshot is in force. It is so if each branch
// of err's tree has a PortError, whatever wraps it.
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
