// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/test/kit"
)

// TestReadDoesNotBlock reads files that would block a reader.
func TestReadDoesNotBlock(t *testing.T) {
	dir := t.TempDir()
	kit.WriteFile(t, filepath.Join(dir, "file"), "text")
	if err := unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"to-file": "file", "to-pipe": "pipe", "to-kmsg": "/proc/kmsg", "to-tty": "/dev/tty", "to-self": "/proc/self/status", "to-zero": "/dev/zero"} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{
		"file": "", "to-file": "", "pipe": "is a named pipe", "to-pipe": "is a named pipe", "to-kmsg": "is a file of the kernel",
		"to-tty": "is a device", "to-self": "is a file of the kernel", "to-zero": "is a device", "": "is a directory", "none": "no such file",
	} {
		text, _, err := Read(filepath.Join(dir, name), 4)
		switch {
		case want == "" && (err != nil || string(text) != "text"):
			t.Errorf("%s: %q, %v", name, text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %q, %v; want %q", name, text, err, want)
		}
	}
	if _, _, err := Read(filepath.Join(dir, "file"), 3); err == nil {
		t.Error("a file of four bytes is read where three are the most")
	}
}

// TestOpenPipe opens a named pipe that took a file's place after the check. It may not wait
// for a writer.
func TestOpenPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	opened := make(chan error, 1)
	go func() {
		f, err := openNonblocking(path)
		_ = f.Close()
		opened <- err
	}()
	select {
	case err := <-opened:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("waits for somebody to write to the pipe")
	}
}

// TestReadWhileAPipeTakesTheFilesPlace swaps a file and a named pipe as fast as possible.
// No Read may wait for a writer.
func TestReadWhileAPipeTakesTheFilesPlace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	kit.WriteFile(t, path, "text")
	ended := make(chan struct{})
	swapped := make(chan struct{})
	go func() {
		defer close(swapped)
		for {
			select {
			case <-ended:
				return
			default:
			}
			_ = unix.Mkfifo(path+"1", 0o600)
			_ = os.Rename(path+"1", path)
			_ = os.WriteFile(path+"2", []byte("text"), 0o600)
			_ = os.Rename(path+"2", path)
		}
	}()
	read, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		// However the two are scheduled, some reads must meet each of the two.
		var good, refused int
		for good < 100 || refused < 100 || good+refused < 20_000 {
			switch content, _, err := Read(path, 10); {
			case err != nil:
				refused++
			case string(content) != "text":
				t.Errorf("read %q", content)
				fallthrough
			default:
				good++
			}
			select {
			case read <- struct{}{}:
			default:
			}
		}
	}()
	for going := true; going; {
		select {
		case <-read:
		case <-done:
			going = false
		case <-time.After(time.Minute):
			t.Error("a Read waits for somebody to write to a pipe")
			going = false
		}
	}
	close(ended)
	<-swapped
}
