// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package errtree walks the trees that errors.Join and %w make of errors, and finds in them
// what systems call differently. No other package looks into an error that joins several.
package errtree

import (
	"errors"
	"syscall"
)

// Causes returns the errors that err wraps directly: none, one, or those that it joins.
func Causes(err error) []error {
	if list, ok := err.(interface{ Unwrap() []error }); ok {
		return list.Unwrap()
	}
	if cause := errors.Unwrap(err); cause != nil {
		return []error{cause}
	}
	return nil
}

// Joins reports whether err joins errors, and so has no failure of its own.
func Joins(err error) bool {
	_, ok := err.(interface{ Unwrap() []error })
	return ok
}

// Walk calls visit for err and for the errors below it, each before its causes and in
// their order. If visit returns false, Walk leaves out the causes of that error.
func Walk(err error, visit func(error) (descend bool)) {
	if err == nil || !visit(err) {
		return
	}
	for _, cause := range Causes(err) {
		Walk(cause, visit)
	}
}

// Every reports whether each branch of err's tree has an error for which is returns true; nil has
// none. is is not called for errors that join others.
func Every(err error, is func(error) bool) bool {
	if err == nil {
		return false
	}
	if !Joins(err) && is(err) {
		return true
	}
	causes := Causes(err)
	for _, cause := range causes {
		if !Every(cause, is) {
			return false
		}
	}
	return len(causes) > 0
}

// Only reports whether each branch of err's tree ends with an error that is target.
func Only(err, target error) bool {
	return Every(err, func(err error) bool { return errors.Unwrap(err) == nil && errors.Is(err, target) })
}

// Find returns all errors of type T in err's tree, in order, but those below another one.
func Find[T error](err error) []T {
	var found []T
	Walk(err, func(err error) bool {
		one, ok := err.(T)
		if ok {
			found = append(found, one)
		}
		return !ok
	})
	return found
}

// InUse reports that err says that an address is in use. Windows has a number of its own
// for that, WSAEADDRINUSE:
// https://learn.microsoft.com/en-us/windows/win32/winsock/windows-sockets-error-codes-2
func InUse(err error) bool {
	const wsaAddrInUse = syscall.Errno(10048)
	return errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, wsaAddrInUse)
}
