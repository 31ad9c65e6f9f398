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
		if got, stable := f.readStable(t.Context()); !stable || string(got.Data) != "whole" {
			t.Errorf("stable content %q, %v, want the whole file", got.Data, stable)
		}
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
			if err := check(t.Context()); err != nil {
				t.Error(err)
			}
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
	if want := []string{"a", "b", "", "b"}; !slices.Equal(got, want) {
		t.Errorf("changes %q, want %q", got, want)
	}
	f.Signals, data = signals, "last"
	f.Key = NewContent([]byte("last"), nil).Key
	go func() { signals <- syscall.SIGHUP }()
	if err := f.Run(t.Context()); !errors.Is(err, end) {
		t.Errorf("Run = %v, want the error of Changed", err)
	}
}

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

func TestNormalize(t *testing.T) {
	for name, given := range map[string]string{
		"plain":                "kind: Ä\r\n",
		"UTF-8 with a mark":    "\xef\xbb\xbfkind: Ä\r\n",
		"UTF-16 of Windows":    "\xff\xfek\x00i\x00n\x00d\x00:\x00 \x00\xc4\x00\r\x00\n\x00",
		"UTF-16 of the others": "\xfe\xff\x00k\x00i\x00n\x00d\x00:\x00 \x00\xc4\x00\r\x00\n",
	} {
		if got := string(Text([]byte(given))); got != "kind: Ä\r\n" {
			t.Errorf("%s: %q", name, got)
		}
	}
	for _, odd := range []string{"", "\xff", "\xfe\xff\x00", "\xff\xfea"} { // neither panics nor fails
		Text([]byte(odd))
	}
}

// A large file without a mark is neither copied nor read into a buffer that grows.
func TestLargeFileIsCopiedOnce(t *testing.T) {
	const size = 8 << 20
	path := filepath.Join(t.TempDir(), "large.yaml")
	if err := os.WriteFile(path, bytes.Repeat([]byte("kind: Ä\n"), size/9), 0o600); err != nil {
		t.Fatal(err)
	}
	r := testing.Benchmark(func(b *testing.B) {
		for range b.N {
			content, _, err := Read(path, 2*size)
			if err != nil || len(Text(content)) < size/2 {
				b.Fatalf("%d bytes, %v", len(content), err)
			}
		}
	})
	if got := r.AllocedBytesPerOp(); got > size+size/8 {
		t.Errorf("%d bytes of memory for a file of %d", got, size)
	}
}
