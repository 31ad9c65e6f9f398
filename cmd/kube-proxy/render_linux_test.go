// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/config"
)

// TestHNSStateThatIsANamedPipe gives render a named pipe without a writer.
func TestHNSStateThatIsANamedPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		r := &rendering{hnsState: path}
		ended <- r.renderHNS(&config.Config{}, &service.Snapshot{}, streams{io.Discard, io.Discard})
	}()
	select {
	case err := <-ended:
		if want := "is a named pipe; want a regular file"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	case <-time.After(10 * time.Second):
		t.Error("render waits for somebody to write to a pipe")
	}
}
