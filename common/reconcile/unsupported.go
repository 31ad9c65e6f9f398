// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"errors"
	"slices"

	"kubeproxy/common/service"
)

// ErrWaiting means that something is not there yet that others make. A new
// process would wait as well.
var ErrWaiting = errors.New("waiting")

// UnsupportedError is what a port asks of a dataplane that it will never do. It matches
// errors.ErrUnsupported. The rest of the port is in force.
type UnsupportedError struct {
	Text     string
	Affected []service.Frontend // that are not in force because of it
}

func (u *UnsupportedError) Error() string { return u.Text }

// Is makes errors.ErrUnsupported match.
func (u *UnsupportedError) Is(target error) bool { return target == errors.ErrUnsupported }

// DegradedError is what a port does without for now, and is tried again. The rest of the
// port is in force, each of its addresses included.
type DegradedError struct{ Err error }

func (l *DegradedError) Error() string { return l.Err.Error() }

// Unwrap returns the cause.
func (l *DegradedError) Unwrap() error { return l.Err }

// InForce reports that a port that err is about is in force but for what is Unmet
// or Lacking.
func InForce(err error) bool {
	return allBranches(err, func(err error) bool {
		_, degraded := err.(*DegradedError)
		return degraded || isUnsupported(err)
	})
}

// Unsupported reports that err is about nothing but what a dataplane cannot do,
// errors.ErrUnsupported, so that trying again is of no use.
func Unsupported(err error) bool { return allBranches(err, isUnsupported) }

// isUnsupported reports that err itself, and not its cause, is about that.
func isUnsupported(err error) bool {
	return errors.Unwrap(err) == nil && errors.Is(err, errors.ErrUnsupported)
}

// allBranches reports that on each branch of err's tree there is one that is.
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

// RetryablePortErrors lists the PortErrors in err's tree, in order, that are about more than
// what a dataplane cannot do.
func RetryablePortErrors(err error) []*PortError {
	return slices.DeleteFunc(PortErrors(err), func(e *PortError) bool { return Unsupported(e.Err) })
}

// Affects reports that f is not in force because of something Unmet in err.
func Affects(err error, f service.Frontend) bool {
	if list, ok := err.(interface{ Unwrap() []error }); ok {
		return slices.ContainsFunc(list.Unwrap(), func(err error) bool { return Affects(err, f) })
	}
	var u *UnsupportedError
	return errors.As(err, &u) && slices.ContainsFunc(u.Affected, func(l service.Frontend) bool {
		return l.Kind == f.Kind && l.Addr == f.Addr && l.Port == f.Port
	})
}
