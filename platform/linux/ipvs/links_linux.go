// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// links is a socket for interfaces, addresses and routes. The kernel notes in a
// list that something changed while it was told, as it does whenever a pod or
// the other family's interface comes; then it is asked again.
type links struct{ *netlink.Handle }

// LinkByName is that of the library.
func (l links) LinkByName(name string) (netlink.Link, error) {
	return retryInterrupted(func() (netlink.Link, error) { return l.Handle.LinkByName(name) })
}

// AddrList is that of the library.
func (l links) AddrList(of netlink.Link, family int) ([]netlink.Addr, error) {
	return retryInterrupted(func() ([]netlink.Addr, error) { return l.Handle.AddrList(of, family) })
}

// RouteListFiltered is that of the library.
func (l links) RouteListFiltered(family int, filter *netlink.Route, mask uint64) ([]netlink.Route, error) {
	return retryInterrupted(func() ([]netlink.Route, error) { return l.Handle.RouteListFiltered(family, filter, mask) })
}

// maxListAttempts is how often a list is asked for that something interrupts each
// time. One takes less than a millisecond.
const maxListAttempts = 20

// retryInterrupted calls list until nothing changed meanwhile.
func retryInterrupted[T any](list func() (T, error)) (T, error) {
	for n := 1; ; n++ {
		all, err := list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
		if n == maxListAttempts {
			return all, fmt.Errorf("%w, %d times in a row", err, n)
		}
	}
}
