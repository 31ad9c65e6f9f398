// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// patches are the changes to Go's standard library that tests need under Wine 8. The
// program itself is built without them.
var patches = []struct{ file, old, new string }{
	// Wine lacks the newer way to delete a file and returns an error code of its own. The
	// library has the older way as a fallback for other codes.
	{
		"internal/syscall/windows/at_windows.go",
		"case STATUS_INVALID_INFO_CLASS, ",
		"case NTStatus(0xC0000002), STATUS_INVALID_INFO_CLASS, ",
	},
	// Wine lacks SIO_UDP_NETRESET, which only matters to a program that evaluates its
	// effect. See https://learn.microsoft.com/windows/win32/winsock/winsock-ioctls
	{
		"net/fd_windows.go",
		"windows.SIO_UDP_NETRESET",
		"",
	},
}

// Overlay writes the patched files and the argument of go test -overlay into a folder,
// and returns the path of that argument.
func Overlay(ctx context.Context, folder string) (string, error) {
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOROOT: %w", err)
	}
	replace := map[string]string{}
	for _, p := range patches {
		from := filepath.Join(strings.TrimSpace(string(root)), "src", filepath.FromSlash(p.file))
		text, err := os.ReadFile(from)
		if err != nil {
			return "", err
		}
		patched, err := patch(string(text), p.old, p.new)
		if err != nil {
			return "", fmt.Errorf("patch %s: %w", from, err)
		}
		to := filepath.Join(folder, filepath.Base(from))
		if err := os.WriteFile(to, []byte(patched), 0o644); err != nil {
			return "", err
		}
		replace[from] = to
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	path := filepath.Join(folder, "overlay.json")
	return path, errors.Join(err, os.WriteFile(path, text, 0o644))
}

// patch replaces a text. If the new text is empty, it makes the first error check after
// the old one ignore WSAEOPNOTSUPP.
func patch(text, old, new string) (string, error) {
	before, after, ok := strings.Cut(text, old)
	if !ok {
		return "", fmt.Errorf("%q is not there: another version of Go", old)
	}
	if new != "" {
		return before + new + after, nil
	}
	const check = "err != nil"
	skipped, rest, ok := strings.Cut(after, check)
	if !ok {
		return "", fmt.Errorf("nothing is checked after %q: another version of Go", old)
	}
	return before + old + skipped + check + " && err != syscall.Errno(10045)" + rest, nil
}
