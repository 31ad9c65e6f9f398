// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// links is a socket for interfaces, addresses and routes. The kernel marks a dump that
// was interrupted by a change (NLM_F_DUMP_INTR, see
// docs.kernel.org/userspace-api/netlink/intro.html). That happens whenever the interface
// of a pod or of the other family is added. Then links repeats the request.
type links struct{ *netlink.Handle }

// LinkByName calls the function of netlink.Handle, see retryInterrupted.
func (l links) LinkByName(name string) (netlink.Link, error) {
	return retryInterrupted(func() (netlink.Link, error) { return l.Handle.LinkByName(name) })
}

// AddrList calls the function of netlink.Handle, see retryInterrupted.
func (l links) AddrList(of netlink.Link, family int) ([]netlink.Addr, error) {
	return retryInterrupted(func() ([]netlink.Addr, error) { return l.Handle.AddrList(of, family) })
}

// RouteListFiltered calls the function of netlink.Handle, see retryInterrupted.
func (l links) RouteListFiltered(family int, filter *netlink.Route, mask uint64) ([]netlink.Route, error) {
	return retryInterrupted(func() ([]netlink.Route, error) { return l.Handle.RouteListFiltered(family, filter, mask) })
}

// maxListAttempts limits the number of interrupted attempts. One takes less than a
// millisecond.
const maxListAttempts = 20

// retryInterrupted calls list until it is not interrupted.
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
