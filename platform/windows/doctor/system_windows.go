// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
	"golang.org/x/sys/windows/svc/mgr"

	"kubeproxy/common/files"
	"kubeproxy/platform/windows/proc"
	"kubeproxy/platform/windows/scm"
)

// SystemCNI are the usual places: of the examples of Kubernetes, of containerd, of microsoft/SDN and of RKE2.
var SystemCNI = CNI{
	Folders: []string{
		`C:\etc\cni\net.d`, `C:\Program Files\containerd\cni\conf`, `C:\k\cni\config`, `C:\var\lib\rancher\rke2\agent\etc\cni\net.d`,
	},
	Leases: `C:\var\lib\cni\networks`,
}

// System implements Windows.
type System struct {
	// asking is held while the service manager is asked: that of Wine gives calls at the same time handles that are
	// not theirs.
	asking sync.Mutex
}

// Listeners implements Windows.
func (*System) Listeners() ([]proc.Listener, error) { return proc.List() }

// Describe implements Windows.
func (*System) Describe(pid uint32) string { return proc.Describe(pid) }

// Writers implements Windows.
func (*System) Writers(path string) ([]string, error) { return files.Writers(path) }

// Service implements Windows.
func (s *System) Service(name string) (ServiceState, error) {
	s.asking.Lock()
	defer s.asking.Unlock()
	found, err := scm.System{}.Query(name)
	switch {
	case errors.Is(err, windows.ERROR_SERVICE_DOES_NOT_EXIST):
		return Missing, nil
	case err != nil:
		return "", fmt.Errorf("query service %s: %w", name, err)
	case found.State == scm.Running:
		return Running, nil
	}
	return Stopped, nil
}

// Services implements Windows. It asks for no more rights than it needs.
func (s *System) Services() ([]scm.Status, error) {
	s.asking.Lock()
	defer s.asking.Unlock()
	h, err := windows.OpenSCManager(nil, nil, windows.SC_MANAGER_CONNECT|windows.SC_MANAGER_ENUMERATE_SERVICE)
	if err != nil {
		return nil, fmt.Errorf("open the service manager: %w", err)
	}
	m := mgr.Mgr{Handle: h}
	defer m.Disconnect()
	names, err := m.ListServices()
	if err != nil {
		return nil, fmt.Errorf("list services: %w", err)
	}
	var all []scm.Status
	for _, name := range names {
		found, err := scm.System{}.Query(name)
		if err != nil {
			continue // it may be removed by now, or hidden from this account
		}
		if strings.Contains(strings.ToLower(found.Command), nssm) {
			found.Command += nssmProgram(name)
		}
		all = append(all, found)
	}
	return all, nil
}

// nssmProgram returns what nssm runs as the service, empty if it cannot be read (https://nssm.cc/usage).
func nssmProgram(service string) (text string) {
	k, err := registry.OpenKey(registry.LOCAL_MACHINE, `SYSTEM\CurrentControlSet\Services\`+service+`\Parameters`, registry.QUERY_VALUE)
	if err != nil {
		return ""
	}
	defer func() { _ = k.Close() }()
	for _, value := range []string{"Application", "AppParameters"} {
		part, _, _ := k.GetStringValue(value)
		text += " " + part
	}
	return text
}

// maxAbove bounds the processes above one: numbers are used again, so there may be a circle.
const maxAbove = 16

// Processes implements Windows.
func (*System) Processes(name string) ([]Process, error) {
	snapshot, err := windows.CreateToolhelp32Snapshot(windows.TH32CS_SNAPPROCESS, 0)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	defer func() { _ = windows.CloseHandle(snapshot) }()
	entries := map[uint32]windows.ProcessEntry32{}
	entry := windows.ProcessEntry32{Size: uint32(unsafe.Sizeof(windows.ProcessEntry32{}))}
	for err = windows.Process32First(snapshot, &entry); err == nil; err = windows.Process32Next(snapshot, &entry) {
		entries[entry.ProcessID] = entry
	}
	if !errors.Is(err, windows.ERROR_NO_MORE_FILES) {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var all []Process
	for _, pid := range slices.Sorted(maps.Keys(entries)) {
		e := entries[pid]
		if pid == uint32(os.Getpid()) || !strings.EqualFold(windows.UTF16ToString(e.ExeFile[:]), name) {
			continue
		}
		p := Process{PID: pid}
		for above, runs := entries[e.ParentProcessID]; runs && len(p.Above) < maxAbove; above, runs = entries[above.ParentProcessID] {
			p.Above = append(p.Above, Parent{above.ProcessID, windows.UTF16ToString(above.ExeFile[:])})
		}
		all = append(all, p)
	}
	return all, nil
}
