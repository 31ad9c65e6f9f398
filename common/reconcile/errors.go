// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"errors"
	"slices"

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
	return allBranches(err, func(err error) bool {
		_, degraded := err.(*DegradedError)
		return degraded || isUnsupported(err)
	})
}

// Unsupported reports whether err consists only of errors.ErrUnsupported, so that a retry
// is useless.
func Unsupported(err error) bool { return allBranches(err, isUnsupported) }

// isUnsupported reports whether err itself, not its cause, is errors.ErrUnsupported.
func isUnsupported(err error) bool {
	return errors.Unwrap(err) == nil && errors.Is(err, errors.ErrUnsupported)
}

// allBranches reports whether each branch of err's tree contains an error for which is
// returns true.
func allBranches(err error, is func(error) bool) bool {
	if list, ok := err.(interface{ Unwrap() []error }); ok {
		all := list.Unwrap()
		return len(all) > 0 && !slices.ContainsFunc(all, func(err error) bool { return !allBranches(err, is) })
	}
	if is(err) {
		return true
	}
	cause := errors.Unwrap(err)
	return cause != nil && allBranches(cause, is)
}

// RetryablePortErrors lists the PortErrors in err's tree, in order, except those that are
// Unsupported.
func RetryablePortErrors(err error) []*PortError {
	return slices.DeleteFunc(PortErrors(err), func(e *PortError) bool { return Unsupported(e.Err) })
}

// Affects reports whether f is not in force because of an UnsupportedError in err.
func Affects(err error, f service.Frontend) bool {
	if list, ok := err.(interface{ Unwrap() []error }); ok {
		return slices.ContainsFunc(list.Unwrap(), func(err error) bool { return Affects(err, f) })
	}
	var u *UnsupportedError
	return errors.As(err, &u) && slices.ContainsFunc(u.Affected, f.SameAddress)
}
