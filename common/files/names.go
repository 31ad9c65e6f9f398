// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"errors"
	"slices"
	"strings"
)

// checkWindowsName rejects a path to a device or pipe of Windows, which are not in the
// file system. Opening CON, or on some systems CON.yaml, waits for keyboard input. See
// https://learn.microsoft.com/windows/win32/fileio/naming-a-file.
func checkWindowsName(path string) error {
	path = strings.ToUpper(strings.ReplaceAll(path, "/", `\`))
	if rest, ok := strings.CutPrefix(path, `\\`); ok {
		parts := strings.Split(rest, `\`)
		if parts[0] == "." || parts[0] == "?" && len(parts) > 1 && (len(parts[1]) != 2 || parts[1][1] != ':') && parts[1] != "UNC" && !strings.HasPrefix(parts[1], "VOLUME{") {
			return errors.New("is a device or a named pipe; want a regular file")
		}
		if len(parts) > 1 && parts[1] == "PIPE" || len(parts) > 3 && parts[1] == "UNC" && parts[3] == "PIPE" {
			return errors.New("is a named pipe; want a regular file")
		}
	}
	for part := range strings.SplitSeq(path, `\`) {
		name, _, _ := strings.Cut(part, ".")
		name, _, _ = strings.Cut(name, ":")
		name = strings.TrimRight(name, " ")
		if slices.Contains([]string{"CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$"}, name) || isPortDevice(name) {
			return errors.New("is a device of Windows; want a regular file")
		}
	}
	return nil
}

// isPortDevice reports whether name is COM or LPT followed by a digit, which may be a
// superscript digit.
func isPortDevice(name string) bool {
	digit, com := strings.CutPrefix(name, "COM")
	if !com {
		var lpt bool
		if digit, lpt = strings.CutPrefix(name, "LPT"); !lpt {
			return false
		}
	}
	return len([]rune(digit)) == 1 && strings.Contains("123456789\u00b9\u00b2\u00b3", digit)
}
