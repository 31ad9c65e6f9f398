// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
)

// nftChains lists the chains in the tables of iptables-nft.
func nftChains(f service.Family) ([]id, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket to netfilter: %w", err)
	}
	defer conn.Close()
	family := byte(unix.NFPROTO_IPV4)
	if f == service.IPv6 {
		family = unix.NFPROTO_IPV6
	}
	replies, err := dumpConsistent(conn, netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETCHAIN, Flags: netlink.Request | netlink.Dump},
		Data:   []byte{family, unix.NFNETLINK_V0, 0, 0},
	})
	switch {
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EINVAL):
		return nil, nil // the kernel lacks nftables, so there are no chains
	case errors.Is(err, unix.EPERM):
		return nil, fmt.Errorf("list chains of nftables: %w: the right CAP_NET_ADMIN is needed", err)
	case err != nil:
		return nil, fmt.Errorf("list chains of nftables: %w", err)
	}
	var all []id
	for _, m := range replies {
		if i, ok := parseChain(m.Data, family); ok {
			all = append(all, i)
		}
	}
	return all, nil
}

// maxTries limits how often a dump is repeated because others change the ruleset.
const maxTries = 30

// dumpConsistent sends a dump request and returns the replies. The kernel sends a dump
// in several parts and continues by position, so a change in any table between two parts
// shifts the rest (kernel: net/netfilter/nf_tables_api.c). The dump is valid if the
// generation is the same before and after it.
func dumpConsistent(conn *netlink.Conn, question netlink.Message) ([]netlink.Message, error) {
	before, err := generation(conn)
	for try := 0; try < maxTries && err == nil; try++ {
		replies, listErr := conn.Execute(question)
		after, genErr := generation(conn)
		if err = errors.Join(listErr, genErr); err == nil && after == before {
			return replies, nil
		}
		before = after
		time.Sleep(time.Duration(min(try, 10)) * time.Millisecond)
	}
	if err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("others changed the rules each of %d times", maxTries)
}

// generation returns the generation of the ruleset in binary form.
func generation(conn *netlink.Conn) (string, error) {
	replies, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: netlink.Request},
		Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0},
	})
	if err != nil || len(replies) == 0 {
		return "", err
	}
	return string(replies[0].Data), nil
}

// parseChain parses the body of a reply. The result is false if the chain is not of the
// family.
func parseChain(body []byte, family byte) (id, bool) {
	const head = 4
	if len(body) < head || body[0] != family {
		return id{}, false
	}
	attributes, err := netlink.NewAttributeDecoder(body[head:])
	if err != nil {
		return id{}, false
	}
	var i id
	for attributes.Next() {
		switch attributes.Type() {
		case unix.NFTA_CHAIN_TABLE:
			i.table = attributes.String()
		case unix.NFTA_CHAIN_NAME:
			i.name = attributes.String()
		}
	}
	return i, attributes.Err() == nil
}

// legacyChains lists the chains in the tables of iptables-legacy. It reads only tables
// that exist, because a request for another one would create it (kernel:
// net/netfilter/x_tables.c).
func legacyChains(f service.Family) ([]id, error) {
	names, err := readTableNames(tableNamesFile(f))
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, nil // no capability is needed in this case
	}
	s, err := newLegacyMonitor(f, Standalone, nil)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		return nil, nil // the kernel lacks the family, so there are no chains
	}
	if err != nil {
		return nil, err
	}
	defer s.close()
	var all []id
	for _, table := range strings.Fields(string(names)) {
		if !slices.Contains(allTables, table) {
			continue
		}
		rules, err := s.chains(table)
		if err != nil {
			return nil, fmt.Errorf("read table %s from the kernel: %w", table, err)
		}
		all = append(all, rules...)
	}
	return all, nil
}

// chains lists the user-defined chains of a table.
func (s *legacyMonitor) chains(table string) ([]id, error) {
	var all []id
	err := error(unix.EAGAIN)
	for try := 0; try < maxTries && errors.Is(err, unix.EAGAIN); try++ {
		var info tableInfo
		copy(info[:], table)
		if err := s.getsockopt(getInfo, info[:]); err != nil {
			return nil, err
		}
		all = nil
		err = s.entries(table, info, func(rules []byte) {
			(&blob{table: table, family: s.family, bytes: rules}).rules(func(r blobRule) bool {
				if name, ok := r.chainStart(); ok && name != errorTarget { // marks the end of the table
					all = append(all, id{table, strings.Clone(name)})
				}
				return true
			})
		})
	}
	return all, err
}
