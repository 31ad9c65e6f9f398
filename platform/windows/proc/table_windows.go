// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"errors"
	"fmt"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/windows"
)

// ownerPIDListener requests listeners with processes: TCP_TABLE_CLASS in iprtrmib.h.
const ownerPIDListener = 3

// tries bounds how often a table is requested that grows meanwhile.
const tries = 5

// Holding names the process that listens at the address, empty if it is unknown.
func Holding(at netip.AddrPort) string {
	all, _ := List() // the other family may have it
	for _, l := range all {
		if l.Keeps(at) {
			return Describe(l.PID)
		}
	}
	return ""
}

// List lists the TCP listeners of both families, with an error those of one.
func List() ([]Listener, error) {
	var all []Listener
	var errs []error
	for _, t := range []struct {
		family uintptr
		row    row
	}{{windows.AF_INET, rowIPv4}, {windows.AF_INET6, rowIPv6}} {
		b, err := table(t.family)
		errs = append(errs, err)
		all = append(all, parse(b, t.row)...)
	}
	return all, errors.Join(errs...)
}

// table returns the listeners of a family as Windows lists them.
func table(family uintptr) ([]byte, error) {
	ask := windows.NewLazySystemDLL("iphlpapi.dll").NewProc("GetExtendedTcpTable")
	if err := ask.Find(); err != nil {
		return nil, err
	}
	size := uint32(4 << 10)
	for range tries {
		b := make([]byte, size)
		code, _, _ := ask.Call(uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&size)), 0, family, ownerPIDListener, 0)
		switch err := windows.Errno(code); {
		case err == 0:
			return b, nil
		case !errors.Is(err, windows.ERROR_INSUFFICIENT_BUFFER):
			return nil, fmt.Errorf("list TCP listeners: %w", err)
		}
	}
	return nil, fmt.Errorf("list TCP listeners: there are more each time")
}

// Describe describes a process in one line.
func Describe(pid uint32) string {
	text := fmt.Sprintf("process %d", pid)
	h, err := windows.OpenProcess(windows.PROCESS_QUERY_LIMITED_INFORMATION, false, pid)
	if err != nil {
		return text
	}
	defer func() { _ = windows.CloseHandle(h) }()
	name := make([]uint16, windows.MAX_LONG_PATH)
	n := uint32(len(name))
	if windows.QueryFullProcessImageName(h, 0, &name[0], &n) != nil {
		return text
	}
	return text + " (" + windows.UTF16ToString(name[:n]) + ")"
}
