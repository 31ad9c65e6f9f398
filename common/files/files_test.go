// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"kubeproxy/test/kit"
)

// TestFollowerWaitsForStableFile checks that a file does not count while it is being
// written.
func TestFollowerWaitsForStableFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	kit.WriteFile(t, path, "half")
	f := &Follower{Read: func() ([]byte, error) { return os.ReadFile(path) }}
	synctest.Test(t, func(t *testing.T) {
		go func() {
			time.Sleep(stableTime / 2)
			_ = os.WriteFile(path, []byte("whole"), 0o600)
		}()
		got, stable := f.readStable(t.Context())
		kit.Check(t, stable && string(got.Data) == "whole", "stable content %q, %v, want the whole file", got.Data, stable)
	})
}

// TestFollower checks which reads count as a change: other content, another error, and
// any read on request.
func TestFollower(t *testing.T) {
	var got []string
	data, readErr := "a", error(nil)
	signals := make(chan os.Signal)
	end := errors.New("the end")
	f := &Follower{
		Path:        filepath.Join(t.TempDir(), "c.yaml"),
		Read:        func() ([]byte, error) { return []byte(data), readErr },
		Key:         NewContent([]byte("a"), nil).Key,
		WatchFailed: func(error) {},
		Changed: func(_ context.Context, c Content) error {
			got = append(got, string(c.Data))
			if string(c.Data) == "last" {
				return end
			}
			return nil
		},
	}
	synctest.Test(t, func(t *testing.T) {
		check := func(check func(context.Context) error) {
			t.Helper()
			err := check(t.Context())
			kit.Check(t, err == nil, "%v", err)
		}
		check(f.Check) // as the caller knows it
		check(f.CheckNow)
		data = "b"
		check(f.Check)
		check(f.Check)
		readErr = errors.New("unreadable")
		check(f.Check)
		check(f.Check)
		readErr = nil
		check(f.Check)
	})
	want := []string{"a", "b", "", "b"}
	kit.Check(t, slices.Equal(got, want), "changes %q, want %q", got, want)
	f.Signals, data = signals, "last"
	f.Key = NewContent([]byte("last"), nil).Key
	go func() { signals <- syscall.SIGHUP }()
	err := f.Run(t.Context())
	kit.Check(t, errors.Is(err, end), "Run = %v, want the error of Changed", err)
}

func TestNamesOfWindows(t *testing.T) {
	for _, path := range []string{
		"CON", "nul", `C:\m\con.yaml`, "m/AUX.json", `prn`, "Com1", "lpt9.yaml", "COM\u00b2", "CONIN$", "nul .yaml", "NUL:",
		`\\.\pipe\a`, `//./pipe/a`, `\\.\PhysicalDrive0`, `\\?\pipe\a`, `\\?\GLOBALROOT\Device\a`, `\\server\pipe\a`, `\\?\UNC\server\pipe\a`,
	} {
		kit.Check(t, checkWindowsName(path) != nil, "%s is taken for a file", path)
	}
	for _, path := range []string{"console.yaml", `C:\m\a.yaml`, "com.yaml", "com10", "lpt", `\\?\C:\m\a.yaml`, `\\server\share\pipe\a`, `\\?\UNC\server\share\a`, "null.yaml", "m/nul-1.yaml"} {
		err := checkWindowsName(path)
		kit.Check(t, err == nil, "%s %v", path, err)
	}
}

func TestNormalize(t *testing.T) {
	for name, given := range map[string]string{
		"plain":                "kind: Ä\r\n",
		"UTF-8 with a mark":    "\xef\xbb\xbfkind: Ä\r\n",
		"UTF-16 of Windows":    "\xff\xfek\x00i\x00n\x00d\x00:\x00 \x00\xc4\x00\r\x00\n\x00",
		"UTF-16 of the others": "\xfe\xff\x00k\x00i\x00n\x00d\x00:\x00 \x00\xc4\x00\r\x00\n",
	} {
		kit.Equal(t, string(Text([]byte(given))), "kind: Ä\r\n", "%s", name)
	}
	for _, odd := range []string{"", "\xff", "\xfe\xff\x00", "\xff\xfea"} { // neither panics nor fails
		Text([]byte(odd))
	}
}

// A large file without a mark is neither copied nor read into a buffer that grows.
func TestLargeFileIsCopiedOnce(t *testing.T) {
	const size = 8 << 20
	path := filepath.Join(t.TempDir(), "large.yaml")
	kit.Must(t, os.WriteFile(path, bytes.Repeat([]byte("kind: Ä\n"), size/9), 0o600))
	r := testing.Benchmark(func(b *testing.B) {
		for range b.N {
			content, _, err := Read(path, 2*size)
			kit.Need(b, err == nil && len(Text(content)) >= size/2, "%d bytes, %v", len(content), err)
		}
	})
	got := r.AllocedBytesPerOp()
	kit.Check(t, got <= size+size/8, "%d bytes of memory for a file of %d", got, size)
}

// never is longer than any test may take. A Wait of that length missed the change.
const never = time.Minute

// TestNoticed changes a file in each way that people and tools use.
func TestNoticed(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"rewritten": func(path string) error { return os.WriteFile(path, []byte("b"), 0o600) },
		"renamed over": func(path string) error {
			return errors.Join(os.WriteFile(path+".next", []byte("b"), 0o600), os.Rename(path+".next", path))
		},
		"deleted": os.Remove,
		"deleted and created": func(path string) error {
			return errors.Join(os.Remove(path), os.WriteFile(path, []byte("b"), 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "c.yaml")
			kit.WriteFile(t, path, "a")
			expectNoticed(t, path, func() error { return change(path) })
		})
	}
}

// TestSwapped simulates a mounted volume: the file is a link through a link that is
// replaced, and its own directory entry never changes.
func TestSwapped(t *testing.T) {
	dir := t.TempDir()
	mount := func(version string) error {
		return errors.Join(
			os.Mkdir(filepath.Join(dir, version), 0o755),
			os.WriteFile(filepath.Join(dir, version, "c.yaml"), []byte(version), 0o600),
			os.Symlink(version, filepath.Join(dir, "..data_tmp")),
			os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	}
	path := filepath.Join(dir, "c.yaml")
	kit.Must(t, errors.Join(mount("..first"), os.Symlink(filepath.Join("..data", "c.yaml"), path)))
	expectNoticed(t, path, func() error { return mount("..second") })
}

// expectNoticed requires that change ends a Wait early, and so does a later change of the
// result.
func expectNoticed(t *testing.T, path string, change func() error) {
	t.Helper()
	w := NewWatch(path)
	defer w.Close()
	for _, change := range []func() error{change, func() error { return os.WriteFile(path, []byte("again"), 0o600) }} {
		kit.Must(t, w.Add())
		kit.Must(t, change())
		begin := time.Now()
		kit.Need(t, w.Wait(t.Context(), never) && time.Since(begin) < never, "not noticed")
	}
}

func TestKicked(t *testing.T) {
	w := NewWatch(filepath.Join(t.TempDir(), "nothing", "here"))
	defer w.Close()
	err := w.Add()
	kit.Check(t, err == nil, "Add of what does not exist: %v", err)
	w.Kick()
	w.Kick()
	begin := time.Now()
	kit.Check(t, w.Wait(t.Context(), never) && time.Since(begin) < never, "a kick does not end a Wait")
	kit.Check(t, w.Wait(t.Context(), time.Millisecond), "Wait ended in time, but says that ctx did")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	kit.Check(t, !w.Wait(ctx, never), "Wait goes on after ctx")
}
