// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package netlink

import "kubeproxy/common/service"

// Constants of include/uapi/linux/netfilter/nf_tables.h that golang.org/x/sys/unix lacks.
const (
	TableOwned      = 2    // NFT_TABLE_F_OWNER
	TableOwner      = 7    // NFTA_TABLE_OWNER
	ChainFlags      = 10   // NFTA_CHAIN_FLAGS
	ChainBase       = 1    // NFT_CHAIN_BASE
	SetConcatenated = 0x80 // NFT_SET_CONCAT
	SetDescConcat   = 2    // NFTA_SET_DESC_CONCAT
	SetFieldLen     = 1    // NFTA_SET_FIELD_LEN
	SetExpr         = 17   // NFTA_SET_EXPR
	SetExprs        = 18   // NFTA_SET_EXPRESSIONS
	ElemKeyEnd      = 10   // NFTA_SET_ELEM_KEY_END
	ElemExprs       = 11   // NFTA_SET_ELEM_EXPRESSIONS
	ElemCatchAll    = 2    // NFT_SET_ELEM_CATCHALL
	DynsetExprs     = 10   // NFTA_DYNSET_EXPRESSIONS
)

// Verdicts of netfilter, and policies (kernel: include/uapi/linux/netfilter.h).
const (
	Drop   = 0 // NF_DROP
	Accept = 1 // NF_ACCEPT
)

// FamilyName returns the name of nft(8) for the tables of f.
func FamilyName(f service.Family) string {
	if f == service.IPv6 {
		return "ip6"
	}
	return "ip"
}
