// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kubeproxy/test/kit"
)

// Opening a named pipe without a writer would block for ever: fifo(7).
func TestLoadNamedPipe(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "a.yaml")
	kit.Must(t, unix.Mkfifo(pipe, 0o600))
	write(t, filepath.Join(dir, "b.yaml"), serviceYAML("b", "10.96.0.2"))
	for name, paths := range map[string][]string{"in a directory": {dir}, "named": {pipe, dir}, "device": {"/dev/zero", dir}} {
		var r recorder
		err := (&Manifests{Paths: paths}).Load(context.Background(), &r)
		kit.Check(t, err != nil && strings.Contains(err.Error(), "want a regular file"),
			"%s: Load = %v, want an error about the kind of file", name, err)
		kit.Check(t, len(r.calls) == 3, "%s: calls = %q, want those of b.yaml and unread", name, r.calls)
		if name == "in a directory" {
			continue
		}
		if err := (&Manifests{Paths: paths}).Run(context.Background(), &r); err == nil || !strings.Contains(err.Error(), "or a directory") {
			t.Errorf("%s: Run = %v, want an error at once", name, err)
		}
	}
}
