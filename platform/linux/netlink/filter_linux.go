// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// IgnorePort filters out notifications about changes made through a netlink port. The
// kernel groups notifications by transaction (kernel: net/netfilter/nf_tables_api.c,
// nft_commit_notify), so the port of the first message, at offset 12 of its header, applies
// to all.
func (s *Socket) IgnorePort(port uint32) error {
	// BPF loads words in network byte order. The header is in host byte order.
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], port)
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 12},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: binary.BigEndian.Uint32(b[:])},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
	}
	err := unix.SetsockoptSockFprog(s.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
	if err != nil {
		return fmt.Errorf("filter netlink notifications: %w", err)
	}
	return nil
}

// IgnoreNoPort removes the filter of IgnorePort.
func (s *Socket) IgnoreNoPort() error {
	err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("stop to filter netlink notifications: %w", err)
	}
	return nil
}
