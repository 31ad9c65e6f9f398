// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftmonitor

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"kubeproxy/test/netlab"
)

// Generation returns the number of the latest change of rules on h, by any process.
func Generation(h *netlab.Host) (uint32, error) {
	var id uint32
	err := h.Do(func() error {
		conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
		if err != nil {
			return err
		}
		defer conn.Close()
		replies, err := conn.Execute(netlink.Message{
			Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: netlink.Request},
			Data:   []byte{unix.AF_UNSPEC, 0, 0, 0},
		})
		if err != nil {
			return err
		}
		if len(replies) == 0 {
			return errors.New("no reply")
		}
		id, err = generation(replies[0].Data)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("ask for the generation of the rules of %s: %w", h.Name, err)
	}
	return id, nil
}

// generation reads the message of the kernel about a commit, or about the present state.
func generation(data []byte) (uint32, error) {
	const header = 4
	if len(data) < header {
		return 0, fmt.Errorf("generation: message of %d bytes", len(data))
	}
	attrs, err := netlink.NewAttributeDecoder(data[header:])
	if err != nil {
		return 0, fmt.Errorf("generation: %w", err)
	}
	attrs.ByteOrder = binary.BigEndian
	var id uint32
	for attrs.Next() {
		if attrs.Type() == unix.NFTA_GEN_ID {
			id = attrs.Uint32()
		}
	}
	if err := attrs.Err(); err != nil {
		return 0, fmt.Errorf("generation: %w", err)
	}
	if id == 0 {
		return 0, errors.New("generation: the message has none")
	}
	return id, nil
}
