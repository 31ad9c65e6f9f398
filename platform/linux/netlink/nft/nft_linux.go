// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink"
	"kubeproxy/platform/linux/sysctl"
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
		return sysctl.Missing(fmt.Errorf("%w: a kernel with nf_tables is needed (module nf_tables)", err), "nf_tables")
	}
	return err
}

// IsUnsupported reports whether err means that the kernel has no nf_tables at all.
func IsUnsupported(err error) bool {
	return errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL)
}

// Dump sends a request for a list and passes the family and the attributes of each answer
// to each. It starts again, with begin, whenever anything in the ruleset changes meanwhile.
func Dump(ctx context.Context, s *netlink.Socket, request []byte, begin func(), each func(family uint8, attributes []byte) error) error {
	return netlink.RetryInterrupted(func() error {
		begin()
		return s.Query(ctx, request, func(m netlink.Message) error { return each(m.Netfilter()) })
	})
}

// Chain is a chain of the ruleset.
type Chain struct {
	Family      uint8
	Table, Name string
	Base        *Base // nil if no hook of the kernel calls the chain
}

// Base is what only base chains have.
type Base struct {
	Type     string
	Hook     uint32
	Priority int32
	Drops    bool // by its policy
}

// Chains lists the chains in tables of a family, or in all tables for unix.NFPROTO_UNSPEC.
// There are none if the kernel lacks nf_tables.
func Chains(ctx context.Context, s *netlink.Socket, family uint8) ([]Chain, error) {
	e := &netlink.Encoder{}
	e.NetfilterMessage(Type(unix.NFT_MSG_GETCHAIN), unix.NLM_F_DUMP, family, 0)
	e.EndMessage()
	var all []Chain
	err := Dump(ctx, s, e.Buf, func() { all = nil }, func(f uint8, body []byte) error {
		all = append(all, Chain{
			Family: f, Table: netlink.Text(netlink.Attribute(body, unix.NFTA_CHAIN_TABLE)),
			Name: netlink.Text(netlink.Attribute(body, unix.NFTA_CHAIN_NAME)), Base: decodeBase(body),
		})
		return nil
	})
	switch {
	case IsUnsupported(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("list chains of nftables: %w", err)
	}
	return all, nil
}

func decodeBase(chain []byte) *Base {
	hook := netlink.Attribute(chain, unix.NFTA_CHAIN_HOOK)
	if hook == nil {
		return nil
	}
	policy := netlink.Attribute(chain, unix.NFTA_CHAIN_POLICY)
	return &Base{
		Type: netlink.Text(netlink.Attribute(chain, unix.NFTA_CHAIN_TYPE)), Hook: netlink.Uint32(netlink.Attribute(hook, unix.NFTA_HOOK_HOOKNUM)),
		Priority: int32(netlink.Uint32(netlink.Attribute(hook, unix.NFTA_HOOK_PRIORITY))),
		Drops:    policy != nil && netlink.Uint32(policy) == Drop,
	}
}
