// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"kubeproxy/common/errtree"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// ObjectKinds is a set of the kinds of objects to list.
type ObjectKinds uint8

// The kinds of objects. Networks includes the version of HNS.
const (
	Networks ObjectKinds = 1 << iota
	Endpoints
	LoadBalancers
	All = Networks | Endpoints | LoadBalancers
)

// Driver is the access to Windows that this package needs. Its errors are of type Error.
// IDs are in lower case, in requests and in results.
type Driver interface {
	List(ctx context.Context, what ObjectKinds) (Listing, error)
	// CreateEndpoint creates an endpoint and returns it as HNS completed it.
	CreateEndpoint(ctx context.Context, e Endpoint) (Endpoint, error)
	// HasEndpoint reports whether an endpoint with this ID exists.
	HasEndpoint(ctx context.Context, id string) (bool, error)
	DeleteEndpoint(ctx context.Context, id string) error
	// CreateLoadBalancer creates a load balancer and returns it as HNS gives it back.
	CreateLoadBalancer(ctx context.Context, lb LoadBalancer) (LoadBalancer, error)
	// UpdateLoadBalancer changes the load balancer with lb's ID. It returns what HNS
	// holds afterwards, which may differ from lb.
	UpdateLoadBalancer(ctx context.Context, lb LoadBalancer) (LoadBalancer, error)
	// PortsLeft reports whether the node has another block of dynamic ports for a load
	// balancer with the family and protocol of k. An error means that this is unknown.
	PortsLeft(ctx context.Context, k service.Address) (bool, error)
	// DeleteLoadBalancer deletes the load balancer with lb's ID.
	DeleteLoadBalancer(ctx context.Context, lb LoadBalancer) error
}

// The classes of errors, by the reaction. An HNS that is not running differs from an empty one.
var (
	ErrNotFound     = errors.New("not found")
	ErrNotRunning   = errors.New("HNS is not running")
	ErrExists       = errors.New("exists already")
	ErrBusy         = errors.New("busy")
	ErrRefused      = errors.New("refused")
	ErrNotInstalled = errors.New("HNS is not installed")
)

// Error is a failed call to HNS.
type Error struct {
	Op   string // such as "create load balancer tcp 10.96.0.10:80"
	Code uint32 // HRESULT or Win32 error code, 0 if there is none
	Err  error  // the library's error, may be nil
}

func (e *Error) Error() string {
	c := e.class()
	if text := lookupCode(e.Code).text; text != "" {
		return fmt.Sprintf("%s: %s (0x%x)", e.Op, text, e.Code)
	}
	switch {
	case errors.Is(e.Err, c): // its text includes that of c
		return fmt.Sprintf("%s: %v", e.Op, e.Err)
	case e.Err != nil:
		return fmt.Sprintf("%s: %v: %v", e.Op, c, e.Err)
	}
	return fmt.Sprintf("%s: %v (0x%x)", e.Op, c, e.Code)
}

// Unwrap returns the class and the cause.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.class()}
	}
	return []error{e.class(), e.Err}
}

func (e *Error) class() error {
	if c := lookupCode(e.Code).class; c != nil {
		return c
	}
	for _, c := range []error{ErrNotFound, ErrNotRunning, ErrExists, ErrBusy, ErrNotInstalled} {
		if errors.Is(e.Err, c) {
			return c
		}
	}
	return ErrRefused
}

// code is the class and the text of an error code.
type code struct {
	class error
	text  string
}

const notRunning = "HNS is not running: Start-Service hns starts it"

// codes maps the low half of Win32 errors and whole HRESULTs of HCN, as in winerror.h.
var codes = map[uint32]code{
	0x5:        {ErrRefused, "access is denied: run as SYSTEM or as an administrator"},
	0x1f:       {ErrBusy, "HNS failed, and does not say why"},
	0x57:       {ErrRefused, "HNS rejects a parameter"},
	0x15:       {ErrBusy, "HNS is not ready"},
	0x7e:       {ErrNotInstalled, "HNS is not installed, its libraries are missing: add the Windows feature Containers"},
	0x7f:       {ErrNotInstalled, "HNS is too old, or a part of it is missing: add the Windows feature Containers, on Windows Server 2019 or newer"},
	0xaa:       {ErrBusy, "HNS is busy with it"},
	0xb7:       {ErrExists, "HNS has such an object already"},
	0x490:      {ErrNotFound, "HNS has no such object"},
	0x5b4:      {ErrBusy, "HNS did not answer in time"},
	0x424:      {ErrNotInstalled, "the service hns is not installed: add the Windows feature Containers"},
	0x426:      {ErrNotRunning, "the service hns is not started: Start-Service hns starts it"},
	0x6b5:      {ErrNotRunning, notRunning},
	0x6ba:      {ErrNotRunning, notRunning},
	0x6be:      {ErrNotRunning, "HNS stopped while it was asked"},
	0x45b:      {ErrNotRunning, "Windows shuts down"},
	0x6bb:      {ErrBusy, "HNS is too busy"},
	0x6bf:      {ErrNotRunning, "HNS stopped before it was asked"},
	0x6d9:      {ErrNotRunning, notRunning},
	0x1392:     {ErrExists, "HNS has such an object already"},
	0x80004001: {ErrRefused, "this HNS cannot do that"},
	0x803b0001: {ErrNotFound, "HNS has no such network"},
	0x803b0002: {ErrNotFound, "HNS has no such endpoint"},
	0x803b0004: {ErrBusy, "the virtual switch is not there yet"},
	0x803b0006: {ErrBusy, "the network adapter is not there yet"},
	0x803b0007: {ErrBusy, "an endpoint's switch port is not there yet"},
	0x803b0008: {ErrNotFound, "HNS has no such policy"},
	0x803b000d: {ErrRefused, "HNS rejects a policy"},
	0x803b000e: {ErrRefused, "HNS has no such policy on this type of network"},
	0x803b0010: {ErrExists, "HNS has such a network already"},
	0x803b0012: {ErrExists, "HNS has such a policy already"},
	0x803b0013: {ErrExists, "HNS says that the port is taken"},
	0x803b001e: {ErrRefused, "the address is in no subnet of the network"},
	0x803b001f: {ErrRefused, "the virtual switch lacks its extension VFP"},
	0x803b0020: {ErrNotRunning, "a part of HNS has stopped: Restart-Service hns starts it"},
	0x803b002f: {ErrExists, "the address is in use or reserved"},
}

// notImplemented is the answer of an HNS that lacks a function (E_NOTIMPL).
const notImplemented = 0x80004001

// lookupCode looks up c, a Win32 error or an HRESULT made from one.
func lookupCode(c uint32) code {
	const facility, win32 = 0xffff0000, 0x80070000
	if c&facility == win32 {
		c &^= facility
	}
	return codes[c]
}

// pendingError is the reason why a desired object waits for another process.
type pendingError string

func (p pendingError) Error() string { return string(p) }

// onlyPending reports whether err, and every error it joins, is pending or postponed.
func onlyPending(err error) bool {
	return errtree.Every(err, func(err error) bool {
		_, pending := err.(pendingError)
		return pending || isPostponed(err)
	})
}

// onlyPostponed reports whether all that err joins is about what was not tried.
func onlyPostponed(err error) bool { return errtree.Every(err, isPostponed) }

func isPostponed(err error) bool {
	_, postponed := err.(postponedError)
	return postponed
}

// appendUnique appends err, or each error that it joins, unless errs contains the text
// already. The frontends of a port often fail for the same reason.
func appendUnique(errs []error, err error) []error {
	errtree.Walk(err, func(err error) bool {
		if errtree.Joins(err) && !isHNSError(err) {
			return true
		}
		errs = appendOne(errs, err)
		return false
	})
	return errs
}

func appendOne(errs []error, err error) []error {
	i := slices.IndexFunc(errs, func(e error) bool { return e.Error() == err.Error() })
	if i < 0 {
		return append(errs, err)
	}
	if reconcile.InForce(errs[i]) { // err may be worse
		errs[i] = err
	}
	return errs
}

func isHNSError(err error) bool {
	_, ok := err.(*Error)
	return ok
}

// portErrors returns a PortError for each Service port that failed or has limits, by name.
func portErrors(f service.Family, all ...map[service.PortName][]error) []error {
	joined := map[service.PortName][]error{}
	for _, of := range all {
		for n, errs := range of {
			joined[n] = append(joined[n], errs...)
		}
	}
	var errs []error
	for _, n := range slices.SortedFunc(maps.Keys(joined), service.PortName.Compare) {
		errs = append(errs, &reconcile.PortError{Family: f, Name: n, Err: errors.Join(joined[n]...)})
	}
	return errs
}

// degraded wraps err in a DegradedError. It returns nil for nil.
func degraded(err error) error {
	if err == nil {
		return nil
	}
	return &reconcile.DegradedError{Err: err}
}

// postponedError is for what is not tried now, because HNS rejected it recently.
type postponedError string

func (p postponedError) Error() string { return string(p) }
