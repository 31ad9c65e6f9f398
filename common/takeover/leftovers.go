// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"errors"
	"fmt"
	"time"

	"kubeproxy/common/service"
)

// Leftovers are what any service proxy may have left in one place. Remove removes all of
// it.
type Leftovers interface {
	// String names the place.
	String() string
	// Find describes what is there, empty for nothing.
	Find(context.Context) (string, error)
	// Remove removes it. An empty place is a success.
	Remove(context.Context) error
}

// Draining are leftovers that open connections need until they end. Only a cleanup
// removes them at once.
type Draining interface {
	Leftovers
	// Drain stops new connections to the leftovers and removes the parts that no
	// connection needs. It returns what stays and for how long at most, empty if all is
	// gone. since is when the drain began, zero if it begins now.
	Drain(ctx context.Context, since time.Time) (stays string, err error)
}

// Target is a place where a mode of ours, or kube-proxy itself, may have left rules.
type Target struct {
	Leftovers
	Family service.Family
	// IPVS is whether the target is virtual servers and their companions.
	IPVS bool
	// Upstream is whether no mode of ours leaves anything there. A cleanup skips the
	// target.
	Upstream bool
	// err is why the target could not be emptied, or an unreadError.
	err error
}

// unreadError is why the content of a target is unknown. The target may be empty.
type unreadError struct{ error }

// Unwrap returns the reason.
func (e unreadError) Unwrap() error { return e.error }

// UncheckedError is the error of Leftovers that this process may not look for. Only a cleanup
// reports it: what nobody sees keeps no proxy from its work.
type UncheckedError struct {
	// Err says which right is missing.
	Err error
	// Suspected is whether there may well be something, so that a cleanup is not complete.
	Suspected bool
}

// Error says which right is missing.
func (e *UncheckedError) Error() string { return e.Err.Error() }

// Unwrap returns what says which right is missing.
func (e *UncheckedError) Unwrap() error { return e.Err }

// AsUnchecked returns the UncheckedError that err is or wraps, nil if there is none.
func AsUnchecked(err error) *UncheckedError {
	if e := (*UncheckedError)(nil); errors.As(err, &e) {
		return e
	}
	return nil
}

// inspect is Find with an unreadError as its error.
func (p Target) inspect(ctx context.Context) (string, error) {
	what, err := p.Find(ctx)
	if err != nil {
		return "", unreadError{err}
	}
	return what, nil
}

// removeLeftovers empties a target, and returns what was there.
func removeLeftovers(ctx context.Context, p Target) (what string, err error) {
	if what, err = p.inspect(ctx); err != nil || what == "" {
		return "", err
	}
	if err := p.Remove(ctx); err != nil {
		return "", err
	}
	left, err := p.inspect(ctx)
	if err == nil && left != "" {
		err = fmt.Errorf("%s has %s again, which was removed: another program makes it", p, left)
	}
	return what, err
}
