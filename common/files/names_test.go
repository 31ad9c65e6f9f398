// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import "testing"

func TestNamesOfWindows(t *testing.T) {
	for _, path := range []string{
		"CON", "nul", `C:\m\con.yaml`, "m/AUX.json", `prn`, "Com1", "lpt9.yaml", "COM\u00b2", "CONIN$", "nul .yaml", "NUL:",
		`\\.\pipe\a`, `//./pipe/a`, `\\.\PhysicalDrive0`, `\\?\pipe\a`, `\\?\GLOBALROOT\Device\a`, `\\server\pipe\a`, `\\?\UNC\server\pipe\a`,
	} {
		if checkWindowsName(path) == nil {
			t.Errorf("%s is taken for a file", path)
		}
	}
	for _, path := range []string{"console.yaml", `C:\m\a.yaml`, "com.yaml", "com10", "lpt", `\\?\C:\m\a.yaml`, `\\server\share\pipe\a`, `\\?\UNC\server\share\a`, "null.yaml", "m/nul-1.yaml"} {
		if err := checkWindowsName(path); err != nil {
			t.Errorf("%s %v", path, err)
		}
	}
}
