// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipset

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// module exists if the kernel has loaded ipsets, or has them built in: ipsets have a
// module parameter.
const module = "/sys/module/ip_set"

// Present reports whether the kernel has loaded ipsets. A request for ipsets would load
// them. A type may be missing nonetheless.
func Present() bool {
	_, err := os.Stat(module)
	return !errors.Is(err, fs.ErrNotExist)
}

// Errors of hash types (kernel: include/uapi/linux/netfilter/ipset/ip_set_hash.h).
const (
	hashFull = nl.IPSET_ERR_TYPE_SPECIFIC + iota
	hashElement
	invalidProtocol
)

// errnoText are texts for error numbers that only ipsets have.
var errnoText = map[unix.Errno]string{
	nl.IPSET_ERR_PROTOCOL:     "it does not fit the type or family of the set",
	nl.IPSET_ERR_MAX_SETS:     "the kernel takes no more sets",
	nl.IPSET_ERR_INVALID_CIDR: "the length of the prefix is not possible",
	hashFull:                  "the set is full",
	hashElement:               "no set takes the zero address",
	invalidProtocol:           "the protocol is not possible",
}

// describeErrno describes an error of the kernel.
func describeErrno(err error) error {
	var number unix.Errno
	if !errors.As(err, &number) {
		return err
	}
	switch {
	case number == unix.ENOENT:
		return ErrMissing
	case number == unix.EINVAL && !Present():
		return fmt.Errorf("the kernel has no ipsets: %w", errors.ErrUnsupported)
	case number == nl.IPSET_ERR_FIND_TYPE:
		return fmt.Errorf("the kernel lacks the type of the set: %w", errors.ErrUnsupported)
	case errnoText[number] != "":
		return fmt.Errorf("%s (%w)", errnoText[number], number)
	}
	return err
}
