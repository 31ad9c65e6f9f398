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

// Unmet is what a port asks of a dataplane that it will never do. It matches
// errors.ErrUnsupported. The rest of the port is in force.
type Unmet struct {
	Text string
	Lost []service.Frontend // that are not in force because of it
}

func (u *Unmet) Error() string { return u.Text }

// Is makes errors.ErrUnsupported match.
func (u *Unmet) Is(target error) bool { return target == errors.ErrUnsupported }

// Lacking is what a port does without for now, and is tried again. The rest of the
// port is in force, each of its addresses included.
type Lacking struct{ Err error }

func (l *Lacking) Error() string { return l.Err.Error() }

// Unwrap returns the cause.
func (l *Lacking) Unwrap() error { return l.Err }

// InForce reports that a port that err is about is in force but for what is Unmet
// or Lacking.
func InForce(err error) bool {
	return every(err, func(err error) bool {
		_, lacking := err.(*Lacking)
		return lacking || cannot(err)
	})
}

// Unsupported reports that err is about nothing but what a dataplane cannot do,
// errors.ErrUnsupported, so that trying again is of no use.
func Unsupported(err error) bool { return every(err, cannot) }

// cannot reports that err itself, and not its cause, is about that.
func cannot(err error) bool {
	return errors.Unwrap(err) == nil && errors.Is(err, errors.ErrUnsupported)
}

// every reports that on each branch of err's tree there is one that is.
func every(err error, is func(error) bool) bool {
	if list, ok := err.(interface{ Unwrap() []error }); ok {
		all := list.Unwrap()
		return len(all) > 0 && !slices.ContainsFunc(all, func(err error) bool { return !every(err, is) })
	}
	if is(err) {
		return true
	}
	cause := errors.Unwrap(err)
	return cause != nil && every(cause, is)
}

// Broken lists the PortErrors in err's tree, in order, that are about more than
// what a dataplane cannot do.
func Broken(err error) []*PortError {
	return slices.DeleteFunc(Failed(err), func(e *PortError) bool { return Unsupported(e.Err) })
}

// Loses reports that f is not in force because of something Unmet in err.
func Loses(err error, f service.Frontend) bool {
	if list, ok := err.(interface{ Unwrap() []error }); ok {
		return slices.ContainsFunc(list.Unwrap(), func(err error) bool { return Loses(err, f) })
	}
	var u *Unmet
	return errors.As(err, &u) && slices.ContainsFunc(u.Lost, func(l service.Frontend) bool {
		return l.Kind == f.Kind && l.Addr == f.Addr && l.Port == f.Port
	})
}
