// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"errors"
	"io"
	"io/fs"
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
	kit.Must(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	for name, to := range map[string]string{"to-file": "file", "to-pipe": "pipe", "to-kmsg": "/proc/kmsg", "to-tty": "/dev/tty", "to-self": "/proc/self/status", "to-zero": "/dev/zero"} {
		kit.Must(t, os.Symlink(to, filepath.Join(dir, name)))
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
	kit.Must(t, unix.Mkfifo(path, 0o600))
	opened := make(chan error, 1)
	go func() {
		f, err := openNonblocking(path)
		_ = f.Close()
		opened <- err
	}()
	select {
	case err := <-opened:
		kit.Check(t, err == nil, "%v", err)
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

// folder has files of every kind that whoever makes files there can prepare.
func folder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	kit.Must(t, errors.Join(
		os.WriteFile(filepath.Join(dir, "file"), []byte("before\n"), 0o640),
		os.WriteFile(filepath.Join(dir, "victim"), []byte("root\n"), 0o600),
		os.Mkdir(filepath.Join(dir, "folder"), 0o700),
		os.Symlink(filepath.Join(dir, "victim"), filepath.Join(dir, "link")),
		os.Symlink(filepath.Join(dir, "none"), filepath.Join(dir, "dangling")),
	))
	return dir
}

// unchanged requires that nothing that was there is different, but for one name.
func unchanged(t *testing.T, dir, but string) {
	t.Helper()
	for name, want := range map[string]string{"file": "before\n", "victim": "root\n"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		kit.Check(t, name == but || err == nil && string(text) == want, "%s: %q, %v", name, text, err)
	}
	for _, name := range []string{"link", "dangling"} {
		info, err := os.Lstat(filepath.Join(dir, name))
		kit.Check(t, err == nil && info.Mode()&fs.ModeSymlink != 0, "%s is no link any more: %v", name, err)
	}
	_, err := os.Lstat(filepath.Join(dir, "none"))
	kit.Check(t, err != nil, "a file was made where a link leads")
	left, _ := filepath.Glob(filepath.Join(dir, "*.next"))
	kit.Check(t, len(left) == 0, "left: %q", left)
}

func TestCreate(t *testing.T) {
	dir := folder(t)
	for name, want := range map[string]string{
		"file": "exists and is a regular file: want the name of a new file", "link": "is a symbolic link", "dangling": "is a symbolic link", "folder": "is a directory",
	} {
		_, err := Create(filepath.Join(dir, name), 0o600)
		kit.Check(t, err != nil && strings.Contains(err.Error(), want), "%s: %v, want %q", name, err, want)
	}
	for _, replaced := range []bool{false, true} {
		path := filepath.Join(dir, "new")
		f, err := Create(path, 0o600)
		kit.Must(t, err)
		if replaced {
			kit.Must(t, errors.Join(os.Remove(path), os.WriteFile(path, []byte("of another"), 0o600)))
		}
		if err := f.Discard(); err != nil {
			t.Error(err)
		}
		_, err = os.Lstat(path)
		kit.Check(t, (err == nil) == replaced, "replaced by another: %t, still there: %t", replaced, err == nil)
	}
	unchanged(t, dir, "")
}

func TestAppend(t *testing.T) {
	dir := folder(t)
	for name, want := range map[string]string{"link": "is a symbolic link: want a regular file", "dangling": "is a symbolic link", "folder": "is a directory"} {
		_, err := Append(filepath.Join(dir, name), 0o600)
		kit.Check(t, err != nil && strings.Contains(err.Error(), want), "%s: %v, want %q", name, err, want)
	}
	for name, want := range map[string]string{"file": "before\nafter\n", "new": "after\n"} {
		f, err := Append(filepath.Join(dir, name), 0o600)
		kit.Must(t, err)
		_, err = io.WriteString(f, "after\n")
		text, readErr := os.ReadFile(f.Name())
		if err := errors.Join(err, readErr, f.Close()); err != nil || string(text) != want {
			t.Errorf("%s: %q, %v, want %q", name, text, err, want)
		}
	}
	unchanged(t, dir, "file")
}

func TestReplace(t *testing.T) {
	dir := folder(t)
	after := func(w io.Writer) error {
		_, err := io.WriteString(w, "after\n")
		return err
	}
	failing := func(w io.Writer) error { return errors.Join(after(w), errors.New("disk full")) }
	for _, tt := range []struct {
		name  string
		write func(io.Writer) error
		want  string
	}{
		{"link", after, "is a symbolic link: want a regular file"}, {"dangling", after, "is a symbolic link"}, {"folder", after, "is a directory"},
		{"file", failing, "disk full"}, {"new", failing, "disk full"},
	} {
		err := Replace(filepath.Join(dir, tt.name), 0o644, tt.write)
		kit.Check(t, err != nil && strings.Contains(err.Error(), tt.want), "%s: %v, want %q", tt.name, err, tt.want)
		unchanged(t, dir, "")
	}
	for name, mode := range map[string]fs.FileMode{"file": 0o640, "new": 0o604} {
		path := filepath.Join(dir, name)
		kit.Must(t, Replace(path, 0o604, after))
		text, err := os.ReadFile(path)
		info, statErr := os.Stat(path)
		if err := errors.Join(err, statErr); err != nil || string(text) != "after\n" || info.Mode().Perm() != mode {
			t.Errorf("%s: %q, %v, %v, want mode %v", name, text, info.Mode(), err, mode)
		}
	}
	unchanged(t, dir, "file")
}
