// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"compress/gzip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kubeproxy/test/kit"
)

// TestSupportDumpOfNothing makes an archive where no proxy runs: it is there, and says
// what is not in it. On Windows and Linux it has what the system says.
func TestSupportDumpOfNothing(t *testing.T) {
	dir := files(t, nil)
	got := call(t, dir, "support-dump", "DIR/dump.tar.gz", "--hostname-override=node-a", "--server=127.0.0.1:1", "--timeout=10s")
	kit.Check(t, got.Code == exitNotOK && strings.Contains(got.Err, "not collected: ") && strings.Contains(got.Err, "services.json") && strings.Contains(got.Out, "dump.tar.gz"),
		"exit %d, want %d: %s%s", got.Code, exitNotOK, got.Out, got.Err)
	f, err := os.Open(filepath.Join(dir, "dump.tar.gz"))
	kit.Must(t, err)
	defer f.Close()
	_, err = gzip.NewReader(f)
	kit.Check(t, err == nil, "%v", err)
}

func TestSupportDumpMistakes(t *testing.T) {
	dir := files(t, nil)
	for want, args := range map[string][]string{
		"wants one FILE, not 2":     {"a", "b"},
		"no such file or directory": {"DIR/none/dump.tar.gz", "--timeout=1s"},
		"did you mean --timeout?":   {"--timeuot=1s"},
		"DIR/none.yaml":             {"--config=DIR/none.yaml"},
	} {
		got := call(t, dir, append([]string{"support-dump", "--hostname-override=node-a"}, args...)...)
		kit.Check(t, got.Code == exitUnreachable && got.Out == "" && strings.Contains(got.Err, want),
			"%q: exit %d, want %d and %q: %s%s", args, got.Code, exitUnreachable, want, got.Out, got.Err)
	}
}
