// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/windows"

	"kubeproxy/platform/windows/listeners"
)

// System implements Windows.
type System struct{}

// Listeners implements Windows.
func (System) Listeners() ([]listeners.Listener, error) { return listeners.List() }

// Describe implements Windows.
func (System) Describe(pid uint32) string { return listeners.Describe(pid) }

// Service implements Windows. It asks for no more rights than it needs.
func (System) Service(name string) (ServiceState, error) {
	manager, err := windows.OpenSCManager(nil, nil, windows.SC_MANAGER_CONNECT)
	if err != nil {
		return "", fmt.Errorf("open the service manager: %w", err)
	}
	defer func() { _ = windows.CloseServiceHandle(manager) }()
	text, err := windows.UTF16PtrFromString(name)
	if err != nil {
		return "", err
	}
	s, err := windows.OpenService(manager, text, windows.SERVICE_QUERY_STATUS)
	if errors.Is(err, windows.ERROR_SERVICE_DOES_NOT_EXIST) {
		return Missing, nil
	}
	if err != nil {
		return "", fmt.Errorf("open service %s: %w", name, err)
	}
	defer func() { _ = windows.CloseServiceHandle(s) }()
	var status windows.SERVICE_STATUS
	if err := windows.QueryServiceStatus(s, &status); err != nil {
		return "", fmt.Errorf("query service %s: %w", name, err)
	}
	if status.CurrentState == windows.SERVICE_RUNNING {
		return Running, nil
	}
	return Stopped, nil
}

// Processes implements Windows.
func (System) Processes(name string) ([]uint32, error) {
	snapshot, err := windows.CreateToolhelp32Snapshot(windows.TH32CS_SNAPPROCESS, 0)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	defer func() { _ = windows.CloseHandle(snapshot) }()
	var all []uint32
	entry := windows.ProcessEntry32{Size: uint32(unsafe.Sizeof(windows.ProcessEntry32{}))}
	for err = windows.Process32First(snapshot, &entry); err == nil; err = windows.Process32Next(snapshot, &entry) {
		own := entry.ProcessID == uint32(os.Getpid())
		if !own && strings.EqualFold(windows.UTF16ToString(entry.ExeFile[:]), name) {
			all = append(all, entry.ProcessID)
		}
	}
	if !errors.Is(err, windows.ERROR_NO_MORE_FILES) {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	return all, nil
}
