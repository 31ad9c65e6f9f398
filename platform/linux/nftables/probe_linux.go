// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink/nft"
)

// Probe checks whether the kernel, in the network namespace of the calling thread,
// supports a table for f. It changes nothing. The error is one sentence that names what
// is missing.
func Probe(f service.Family) error {
	if err := probe(f); err != nil {
		return fmt.Errorf("nftables for %s: %w", f, nft.WithHint(err))
	}
	return nil
}

func probe(f service.Family) error {
	if err := checkFamily(f); err != nil {
		return err
	}
	s, err := dial()
	if err != nil {
		return err
	}
	defer s.Close()
	e := newEncoder(f)
	e.name = probeTable
	try := func(ops []op) error {
		batch, err := e.dryRun(ops)
		if err != nil {
			return err
		}
		return s.Transact(batch)
	}
	// Without CAP_NET_ADMIN or nf_tables every check would return this error.
	err = try([]op{{verb: addTable}})
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	return probeFeatures(f, try)
}

// checkFamily reports an error if the kernel does not support the family.
func checkFamily(f service.Family) error {
	domain := unix.AF_INET
	if f == service.IPv6 {
		domain = unix.AF_INET6
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		return fmt.Errorf("the kernel has no %s: it is built without or was started with ipv6.disable=1", f)
	}
	if err != nil {
		return fmt.Errorf("open a socket for %s: %w", f, err)
	}
	return unix.Close(fd)
}
