// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
)

// Type returns the netlink type of a message, such as unix.NFT_MSG_GETCHAIN.
func Type(msg int) uint16 { return uint16(unix.NFNL_SUBSYS_NFTABLES<<8 | msg) }

// Family returns the number of the family whose tables see the packets of f alone.
func Family(f service.Family) uint8 {
	if f == service.IPv6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

// FamilyNames are the names of nft(8) for the families whose tables see packets of IPv4 or
// IPv6, by number.
var FamilyNames = map[uint8]string{unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_INET: "inet"}

// WithHint adds the usual remedy to an error of the kernel.
func WithHint(err error) error {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w: the right CAP_NET_ADMIN is needed", err)
	case IsUnsupported(err):
		return fmt.Errorf("%w: a kernel with nf_tables is needed (module nf_tables)", err)
	}
	return err
}

// IsUnsupported reports whether err means that the kernel has no nf_tables at all.
func IsUnsupported(err error) bool {
	return errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL)
}
