// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/sysctl"
)

// NFTType returns the netlink type of a message, such as unix.NFT_MSG_GETCHAIN.
func NFTType(msg int) uint16 { return uint16(unix.NFNL_SUBSYS_NFTABLES<<8 | msg) }

// NFTFamily returns the number of the family whose tables see the packets of f alone.
func NFTFamily(f service.Family) uint8 {
	if f == service.IPv6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

// FamilyNames are nft(8)'s for families whose tables see packets of IPv4 or IPv6, by number.
var FamilyNames = map[uint8]string{unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_INET: "inet"}

// NFTHint adds the usual remedy to an error of the kernel.
func NFTHint(err error) error {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w: the right CAP_NET_ADMIN is needed", err)
	case LacksNFTables(err):
		return sysctl.Missing(fmt.Errorf("%w: a kernel with nf_tables is needed (module nf_tables)", err), "nf_tables")
	}
	return err
}

// LacksNFTables reports whether err means that the kernel has no nf_tables at all.
func LacksNFTables(err error) bool {
	return errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL)
}

// DumpNFT sends a request for a list and passes the family and the attributes of each answer
// to each. It starts again, with begin, whenever anything in the ruleset changes meanwhile.
func DumpNFT(ctx context.Context, s *Socket, request []byte, begin func(), each func(family uint8, attributes []byte) error) error {
	return RetryInterrupted(func() error {
		begin()
		return s.Query(ctx, request, func(m Message) error { return each(m.Netfilter()) })
	})
}

// Chain is a chain of nf_tables.
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
	Devices  []string
}

// Chains lists the chains of a family, or of all for unix.NFPROTO_UNSPEC, none without nf_tables.
func Chains(ctx context.Context, s *Socket, family uint8) ([]Chain, error) {
	e := &Encoder{}
	e.NetfilterMessage(NFTType(unix.NFT_MSG_GETCHAIN), unix.NLM_F_DUMP, family, 0)
	e.EndMessage()
	var all []Chain
	err := DumpNFT(ctx, s, e.Buf, func() { all = nil }, func(f uint8, body []byte) error {
		all = append(all, Chain{
			Family: f, Table: Text(Attribute(body, unix.NFTA_CHAIN_TABLE)),
			Name: Text(Attribute(body, unix.NFTA_CHAIN_NAME)), Base: decodeBase(body),
		})
		return nil
	})
	switch {
	case LacksNFTables(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("list chains of nftables: %w", err)
	}
	return all, nil
}

// Attributes of a hook with its devices: one, or a list (kernel:
// include/uapi/linux/netfilter/nf_tables.h, nft_hook_attributes).
const hookDevice, hookDevices = 3, 4

func decodeBase(chain []byte) *Base {
	hook := Attribute(chain, unix.NFTA_CHAIN_HOOK)
	if hook == nil {
		return nil
	}
	policy := Attribute(chain, unix.NFTA_CHAIN_POLICY)
	var devices []string
	for typ, v := range Attributes(hook) {
		switch typ {
		case hookDevice:
			devices = append(devices, Text(v))
		case hookDevices:
			for _, one := range Attributes(v) {
				devices = append(devices, Text(one))
			}
		}
	}
	return &Base{
		Devices: devices,
		Type:    Text(Attribute(chain, unix.NFTA_CHAIN_TYPE)), Hook: Uint32(Attribute(hook, unix.NFTA_HOOK_HOOKNUM)),
		Priority: int32(Uint32(Attribute(hook, unix.NFTA_HOOK_PRIORITY))),
		Drops:    policy != nil && Uint32(policy) == Drop,
	}
}
