// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package logging

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

const megabyte = 1 << 20

// writeHalves writes lines of half a megabyte. A full file is named by the millisecond.
func writeHalves(t *testing.T, path string, megabytes, lines int) {
	t.Helper()
	log := OpenFile(path, megabytes)
	for range lines {
		for now := time.Now().UnixMilli(); time.Now().UnixMilli() == now; {
			runtime.Gosched()
		}
		if n, err := log.Write(make([]byte, megabyte/2)); n != megabyte/2 || err != nil {
			t.Fatal(n, err)
		}
	}
	if err := log.Close(); err != nil {
		t.Error(err)
	}
}

// sizes returns the sizes of the files in a folder, those of backups under "backup".
func sizes(t *testing.T, dir string) map[string][]int64 {
	t.Helper()
	all := map[string][]int64{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		name := e.Name()
		if strings.HasPrefix(name, "a-2") {
			name = "backup"
		}
		all[name] = append(all[name], info.Size())
	}
	return all
}

// TestFile checks that a large log is rotated, and that the number of files is bounded.
func TestFile(t *testing.T) {
	for _, tt := range []struct{ megabytes, lines, backups, last int }{{1, 5, 2, 1}, {1, 4, 1, 2}, {1, 30, maxBackups, 2}, {0, 5, 0, 5}} {
		dir := filepath.Join(t.TempDir(), "logs")
		writeHalves(t, filepath.Join(dir, "a.log"), tt.megabytes, tt.lines)
		got := sizes(t, dir)
		if n := len(got["backup"]); n != tt.backups || len(got["a.log"]) != 1 || got["a.log"][0] != int64(tt.last)*megabyte/2 {
			t.Errorf("%+v: %v", tt, got)
		}
	}
}

// TestFileOfEarlierProcess goes on with a log that is there, keeps its permissions, and does not
// touch files with similar names.
func TestFileOfEarlierProcess(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.log")
	others := []string{"a-1.log", "a-2026.log", "b-2000-01-01T00-00-00.000.log", "a-2000-01-01T00-00-00.000.log.gz", "a.log.crash"}
	for _, name := range append(others, "a.log") {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, megabyte/2), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	writeHalves(t, path, 1, 15)
	for _, name := range others {
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			t.Errorf("%s has gone: %v", name, err)
		}
	}
	backups, _ := filepath.Glob(filepath.Join(dir, "a-20[1-9]?-*.log"))
	for _, file := range append(backups, path) {
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o640 && filepath.Separator == '/' {
			t.Errorf("%s: mode %v, %v; want that of the first file", file, info.Mode(), err)
		}
	}
	if len(backups) != maxBackups {
		t.Errorf("%d backups: %q", len(backups), backups)
	}
}

// TestFileLinks neither removes a link nor follows it.
func TestFileLinks(t *testing.T) {
	dir := t.TempDir()
	path, victim := filepath.Join(dir, "a.log"), filepath.Join(t.TempDir(), "victim")
	link := filepath.Join(dir, "a-2000-01-01T00-00-00.000.log")
	if err := errors.Join(os.WriteFile(victim, []byte("root\n"), 0o600), os.Symlink(victim, link)); err != nil {
		t.Fatal(err)
	}
	writeHalves(t, path, 1, 15)
	if _, err := os.Lstat(link); err != nil {
		t.Errorf("the link has gone: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, path); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenFile(path, 1).Write([]byte("line\n")); err == nil || !strings.Contains(err.Error(), "is a symbolic link: want a regular file") {
		t.Errorf("a link in place of the log: %v", err)
	}
	if text, err := os.ReadFile(victim); err != nil || string(text) != "root\n" {
		t.Errorf("a link was followed: %q, %v", text, err)
	}
}
