// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
)

// sizes is the signal of iptables-legacy, whose kernel tells nobody of a
// change. What it tells, and cheaply, is the size of each table and where its
// chains begin. An edit that changes neither is found when all is read again.
type sizes struct {
	fd, level int
	names     string // of the file that lists the tables that exist
	seen      [2]tableInfo
	known     bool
	read      time.Time
}

// readAgain is how long sizes alone are believed.
const readAgain = 10 * time.Minute

// tableInfo is what the kernel says of a table: struct ipt_getinfo, which is
// the same for IPv6.
type tableInfo [84]byte

// getInfo is the option of IPv4 and of IPv6 that asks for it.
const getInfo = 64

func newSizes(f service.Family) (*sizes, error) {
	domain, level, names := unix.AF_INET, unix.IPPROTO_IP, "/proc/thread-self/net/ip_tables_names"
	if f == service.IPv6 {
		domain, level, names = unix.AF_INET6, unix.IPPROTO_IPV6, "/proc/thread-self/net/ip6_tables_names"
	}
	fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if errors.Is(err, unix.EPERM) {
		return nil, fmt.Errorf("open a raw socket: %w: the rights CAP_NET_ADMIN and CAP_NET_RAW are needed", err)
	}
	if err != nil {
		return nil, fmt.Errorf("open a raw socket: %w", err)
	}
	return &sizes{fd: fd, level: level, names: names}, nil
}

func (s *sizes) close() { _ = unix.Close(s.fd) }

func (s *sizes) ours(int) error { return nil }

func (s *sizes) settled() error {
	now, err := s.ask()
	s.seen, s.known = now, true
	return err
}

// reset notes the sizes. Where there is no table yet, which asking would
// create, that is left to the next change of ours.
func (s *sizes) reset() error {
	s.known, s.read = false, time.Now()
	names, err := os.ReadFile(s.names)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	there := strings.Fields(string(names))
	for _, t := range tables {
		if !slices.Contains(there, t) {
			return nil
		}
	}
	return s.settled()
}

func (s *sizes) touched() (bool, error) {
	now, err := s.ask()
	if err != nil {
		return false, err
	}
	if !s.known {
		s.seen, s.known = now, true
	}
	return now != s.seen || time.Since(s.read) > readAgain, nil
}

func (s *sizes) ask() ([2]tableInfo, error) {
	var all [2]tableInfo
	for i, table := range tables {
		info := &all[i]
		copy(info[:], table)
		size := uint32(len(info))
		_, _, code := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(s.fd), uintptr(s.level), getInfo,
			uintptr(unsafe.Pointer(info)), uintptr(unsafe.Pointer(&size)), 0)
		if code != 0 {
			return all, fmt.Errorf("ask the kernel for the size of table %s: %w", table, code)
		}
	}
	return all, nil
}
